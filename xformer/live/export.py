"""Export a model as one HTML file in which it runs: its weights, its vocabulary, and the script that computes with them.

    bytes = "XLIV" · header length (uint32, little endian) · header (JSON) · body (deflated): weights, snapshots, test images

The weights are stored as float16 if that changes no logit and no attention weight by more than `TOLERANCE`, or if float32 would
make the page too large; otherwise as float32. The header names the precision and the largest change. Training snapshots are
stored as float16 or, if those are too large, as 8-bit differences from the trained weights.
"""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from xformer.adapters.load import is_external
from xformer.adapters.own_models import BareModel, TaskModel
from xformer.checkpoints import Checkpoint, load
from xformer.errors import InputError
from xformer.files import snapshot_file, snapshot_steps, write_atomically
from xformer.layers.attention import Attention
from xformer.model import Transformer
from xformer.reading import Readable
from xformer.tasks.images import digit_images
from xformer.trace import Trace, record
from xformer.viz.packing import Blocks, joined
from xformer.widgets.page import stand_alone_page

MAGIC = b"XLIV"
TOLERANCE = 1e-4
"""Largest change of a logit or an attention weight at which float16 weights count as equivalent."""
MAX_BYTES, MAX_BYTES_OF_A_RUN = 1_000_000, 3_000_000
"""Largest size of a page without and with training snapshots."""
SCRIPT_BYTES = 240_000
"""Size of a page without the model."""
MAX_SNAPSHOTS = 40
INSIDE = ("attention_view", "scene", "matrices", "digit_pad")
"""The widgets that the page contains."""
KNOWN = {
    "positions": ("sinusoidal", "learned", "mirror", "rotary", "alibi", "t5", "none"),
    "norm_kind": ("layer", "rms"),
    "activation": ("relu", "gelu", "swiglu"),
    "mask": ("full", "sliding_window"),
}
"""The components that the page's script can compute, by the model setting that selects them."""
KNOWN_TASKS = (
    "reverse", "sort", "copy", "copy-twice", "induction", "addition", "parity", "brackets", "modular", "characters", "digits",
)  # fmt: skip
"""The tasks whose inputs the page's script can read."""


def live_page(
    model: Readable,
    input: str | None = None,
    *,
    lesson: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of an HTML file in which an xformer model runs, without a server or a network.

    Args:
        model: The folder or file of a checkpoint, the folder of a training run with its snapshots, or a loaded
            checkpoint or xformer model.
        input: The initial input as a user types it: "3 7 12 9". By default the task's example.
        lesson: A lesson as JSON values, see `xformer.live.lesson`.
        state: Other initial values, with the names of the page's URL parameters: {"mask": "causal", "layer": 2, "head": 1}.

    Returns:
        The HTML.

    Raises:
        InputError: The model is external, has a component that the page cannot compute, or cannot read the input.
        CheckpointError: There is no checkpoint at the path.

    Example:
        >>> from xformer.live.export import live_page
        >>> live_page("checkpoints/reverse-mirror", "3 7 12 9").startswith("<!doctype html>")
        True
    """
    from xformer.widgets import matrices_data, scene_data  # imported here because they import the analyses

    name, checkpoint, snapshots = opened(model)
    values = {"colours": matrices_data.COLOURS | scene_data.COLOURS, "lesson": lesson, "state": state}
    data = {"model": pack_model(checkpoint, snapshots, input, name=name)}
    data |= {part: json.dumps(value).encode() for part, value in values.items() if value is not None}
    title = str((lesson or {}).get("title") or checkpoint.card.get("title") or name)
    return stand_alone_page("live", "live", data, title=title, styles=INSIDE)


def save_live(path: str | Path, model: Readable, input: str | None = None) -> None:
    """Write an HTML file in which an xformer model runs offline, with editable input and mask, and heads to ablate.

    Args:
        path: The file.
        model: The folder or file of a checkpoint, the folder of a training run with its snapshots, or a loaded
            checkpoint or xformer model.
        input: The initial input as a user types it. By default the task's example.

    Raises:
        InputError: The model is external, has a component that the page cannot compute, or cannot read the input.
        CheckpointError: There is no checkpoint at the path.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile, xformer
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.save_live(f"{folder}/reverse.html", "checkpoints/reverse-mirror", "3 7 12 9")
        ...     Path(f"{folder}/reverse.html").stat().st_size < 1_000_000
        True
    """
    write_atomically(path, live_page(model, input).encode())


Snapshots = Sequence[tuple[int, Checkpoint]]
"""The step and the model of each snapshot of a training, in order."""


def pack_model(
    checkpoint: Checkpoint, snapshots: Snapshots = (), input: str | None = None, *, name: str = "model"
) -> bytes:
    """Pack a model for the page's script, in the layout that the module docstring describes.

    Args:
        checkpoint: The trained model.
        snapshots: (step, checkpoint) pairs of its training, in order; the last one is the trained model. Without them the page
            has no timeline. If they do not all fit, an evenly spaced selection is stored.
        input: The initial input.
        name: The name of the model.

    Returns:
        The bytes that `makeLive` of the script reads.

    Raises:
        InputError: The model has a component that the page cannot compute, or cannot read the input.

    Example:
        >>> import xformer
        >>> from xformer.live.export import pack_model
        >>> pack_model(xformer.load("checkpoints/reverse-mirror"), input="3 7 12 9")[:4]
        b'XLIV'
    """
    check_exportable(checkpoint)
    model, task = checkpoint.model, checkpoint.task
    adapter = BareModel(model, name) if task is None else TaskModel(model, task, name)
    text = _opening(adapter) if input is None else input
    _run(adapter, text)
    most = (MAX_BYTES_OF_A_RUN if snapshots else MAX_BYTES) - SCRIPT_BYTES
    limit = most * 3 // 4  # base64 adds a third
    exact = _numbers(model)
    difference = _difference(adapter, model, exact.astype("<f2").astype("<f4"), text)
    is_half = difference <= TOLERANCE or len(_deflated(_planes(exact).tobytes())) > limit
    trained = exact.astype("<f2") if is_half else exact
    header: dict[str, Any] = {
        "name": name, "instruction": adapter.input.instruction, "config": model.config.to_json(), "defaultInput": text,
        "labels": list(adapter.token_labels),
        "precision": "float16" if is_half else "float32", "difference": difference if is_half else 0.0,
        "weights": [[path, list(value.shape)] for path, value in model.named_parameters()],
    }  # fmt: skip
    earlier, step = snapshots[:-1], snapshots[-1][0] if snapshots else int(checkpoint.card.get("step") or 0)
    kind, n = "float16", len(earlier)
    while True:  # until it fits: snapshots as float16, then as differences, then fewer of them
        body = Blocks()
        last = {"step": step, "kind": header["precision"], "at": body.add(_planes(trained))}
        header["snapshots"] = [*_put_snapshots(body, _spread(earlier, n), trained.astype("<f4"), kind), last]
        header["task"] = None if task is None else _task(adapter, body)
        packed = _deflated(b"".join(body.parts))
        if len(packed) <= limit or not n:
            return joined(MAGIC, header, packed)
        kind, n = "delta8", n if kind == "float16" else min(n - 1, n * limit // len(packed))


def check_exportable(checkpoint: Checkpoint) -> None:
    """Raise `InputError` if the page's script cannot compute a model or read the inputs of its task.

    Args:
        checkpoint: The model and its task.

    Raises:
        InputError: It cannot be exported.

    Example:
        >>> import xformer
        >>> from xformer.live.export import check_exportable
        >>> check_exportable(xformer.load("checkpoints/reverse"))
    """
    model, task = checkpoint.model, checkpoint.task
    changed = [module for module in model.modules() if isinstance(module, Attention) and type(module) is not Attention]
    if type(model) is not Transformer or changed:
        raise _external(type((changed or [model])[0]).__name__)
    for setting, known in KNOWN.items():
        if (value := getattr(model.config, setting)) not in known:
            raise InputError(f"A live page cannot compute {setting}={value!r} yet; it supports {', '.join(known)}.")
    if task is not None and task.config.name not in KNOWN_TASKS:
        what = f"A live page cannot read the inputs of the task {task.config.name!r} yet"
        raise InputError(f"{what}; export the model without its task: xformer.save_live(path, checkpoint.model).")


def _external(name: str) -> InputError:
    """Return the exception for a model that is not one of xformer's own."""
    what = f"Only xformer's own models can run in a live page, got {name:.60}"
    return InputError(f"{what}; save a picture of it with xformer.save_html.")


def _opening(adapter: BareModel) -> Any:
    """Return the default input: the task's example or, without a task, the first token on each side or an empty image."""
    config = adapter.model.config
    if isinstance(adapter, TaskModel):
        return adapter.input.default
    return [0] * config.image**2 if config.image else "0 > 0" if config.architecture == "encoder-decoder" else "0"


def opened(what: Readable) -> tuple[str, Checkpoint, list[tuple[int, Checkpoint]]]:
    """Return the name, the checkpoint and the snapshots of a model to export. Raises `InputError` for an external model."""
    if isinstance(what, Checkpoint):
        return what.task.config.name if what.task else "model", what, []
    if isinstance(what, Transformer):
        return "model", Checkpoint(what), []
    if isinstance(what, TaskModel | BareModel):
        return what.name, Checkpoint(what.model, what.task if isinstance(what, TaskModel) else None), []
    if not isinstance(what, str | Path) or is_external(Path(what)):
        raise _external(Path(what).name if isinstance(what, str | Path) else type(what).__name__)
    path = Path(what)
    steps = snapshot_steps(path)
    if not steps:
        return path.stem if path.suffix == ".safetensors" else path.name, load(path), []
    found = [(step, load(snapshot_file(path, step))) for step in _spread(steps, MAX_SNAPSHOTS)]
    final = load(path) if (path / "model.safetensors").is_file() else found[-1][1]
    return path.name, final, [*found[:-1], (found[-1][0], final)]


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(1, most - 1))] for index in range(most)]


def _put_snapshots(
    body: Blocks, snapshots: Snapshots, trained: Float[np.ndarray, " weight"], kind: str
) -> list[dict[str, Any]]:
    """Pack the snapshots that precede the trained weights, as float16 or as differences from them, and return their headers."""
    placed = []
    for step, checkpoint in snapshots:
        numbers, shapes = _numbers(checkpoint.model), [value.shape for value in checkpoint.model.parameters()]
        parts = (_planes(numbers.astype("<f2")),) if kind == "float16" else _difference_codes(numbers - trained, shapes)
        placed.append({"step": step, "kind": kind, "at": body.add(*parts)})
    return placed


def _planes(numbers: np.ndarray) -> np.ndarray:
    """Return the lowest bytes of all numbers, then the next ones, and so on; the similar exponent bytes then compress well."""
    return np.ascontiguousarray(numbers.view(np.uint8).reshape(len(numbers), -1).T)


def _deflated(content: bytes) -> bytes:
    return zlib.compress(content, 9, wbits=-zlib.MAX_WBITS)  # raw deflate, without a header


def _difference_codes(
    difference: Float[np.ndarray, " weight"], shapes: Sequence[torch.Size]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a scale for each row of each tensor, and int8 codes q with difference ≈ scale · q / 127, q from −127 to 127."""
    scales, codes, at = [], [], 0
    for shape in shapes:
        rows = difference[at : at + shape.numel()].reshape(shape[0], -1)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        scales.append(largest[:, 0])
        codes.append(np.rint(127 * rows / np.where(largest > 0, largest, 1)).astype(np.int8).ravel())
        at += shape.numel()
    return np.concatenate(scales).astype("<f4"), np.concatenate(codes)


def _numbers(model: Transformer) -> Float[np.ndarray, " weight"]:
    """Return all weights of a model as one vector."""
    return parameters_to_vector(model.parameters()).numpy(force=True).astype("<f4")


def _difference(adapter: BareModel, model: Transformer, numbers: Float[np.ndarray, " weight"], text: str) -> float:
    """Return the largest change of a logit or an attention weight over a few inputs when a model uses other weights."""
    other = copy.deepcopy(model)
    vector_to_parameters(torch.from_numpy(numbers), other.parameters())
    task = adapter.task if isinstance(adapter, TaskModel) else None
    changed = BareModel(other) if task is None else TaskModel(other, task)
    inputs = [text]
    if task is not None and not adapter.input.no_sample_reason:
        inputs += [task.draw(seed) for seed in range(4)]
    largest = 0.0
    for one in inputs:
        before, after = (_run(model, one) for model in (adapter, changed))
        largest = max(largest, *(float((value - after[name]).abs().max()) for name, value in before.items()))
    return largest


def _run(adapter: BareModel, inputs: Any) -> Trace:
    """Return the attention patterns and logits of an input. Raises `InputError` if the model cannot read it."""
    keep = ("*.pattern", "logits")
    if not isinstance(adapter, TaskModel) and adapter.model.config.image:  # pixels without a task
        return record(adapter.model, torch.tensor([list(inputs)]), keep=keep)
    return adapter.record(adapter.to_example(inputs), keep=keep)


def _task(adapter: BareModel, body: Blocks) -> dict[str, Any]:
    """Return the parameters of a task that the script needs to read its inputs."""
    assert isinstance(adapter, TaskModel)
    task, rule, special = adapter.task, adapter.task.rule, adapter.task.vocabulary.special
    images = {}
    if rule.is_image and find_spec("sklearn") is not None:
        sources = digit_images()[1].sources.numpy()
        images = {"images": {"at": body.add(sources.astype(np.uint8)), "n": len(sources)}}
    return {
        **{name: getattr(task.config, name) for name in ("name", "architecture", "symbols", "max_len", "alphabet")},
        "pad": special.pad, "end": special.end, "start": special.start, "example": rule.typed_example, "unit": rule.unit,
        "default": rule.default, "separator": rule.separator, "labels": list(adapter.token_labels),
        "typedLabels": list(rule.typed_labels), "instruction": rule.instruction, **images,
    }  # fmt: skip
