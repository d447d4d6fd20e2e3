"""Checkpoints: safetensors files with the configuration in their metadata, fully validated before a model is built.

A checkpoint is a folder with `model.safetensors`, which is self-contained, and `card.json`, a human-readable copy of its card:
the origin of the model, its seed, and its scores. Neither file can execute code.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from xformer import notebook_html
from xformer.config import ModelConfig, TaskConfig
from xformer.counting import n_parameters
from xformer.errors import CheckpointError, ConfigError
from xformer.files import CARD, FILE, MAX_HEADER, guarded, parse_header, strict_json, write_atomically
from xformer.installed import shipped
from xformer.model import Transformer
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task

FORMAT = "1"
MAX_BYTES = 2 * 1024**3


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A trained model with its task and its card.

    Attributes:
        model: The model, in `eval()` mode and without gradients.
        task: The task that it was trained on, or None.
        card: Title, seed, scores and learning curve, as stored in the file.

    Example:
        >>> import xformer
        >>> xformer.load("checkpoints/reverse")
        <Checkpoint: encoder, 84,948 parameters, task reverse>
    """

    model: Transformer
    task: Task | None = None
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def __repr__(self) -> str:
        config, task = self.config, "no task" if self.task is None else f"task {self.task.config.name}"
        return f"<Checkpoint: {config.architecture}, {n_parameters(config):,} parameters, {task}>"

    def _repr_html_(self) -> str:
        """Show the architecture, the training settings and the scores on the card in a notebook."""
        config, card = self.config, self.card
        is_text = self.task is not None and TASK_LIMITS[self.task.config.name].is_text  # no answer is right or wrong
        measure = "token_accuracy" if is_text else "exact_match"
        shape = f"{config.n_layers} × {config.n_heads} heads of {config.d_head}, d_model {config.d_model}, d_ff {config.d_ff}"
        rows = [
            ("task", None if self.task is None else self.task.config.name),
            ("architecture", config.architecture),
            ("layers", shape),
            ("positions", config.positions),
            ("parameters", f"{n_parameters(config):,}"),
            *((name, card.get(name)) for name in ("step", "seed", "seconds")),
            *notebook_html.scores(card.get("figures"), measure, "loss"),
        ]
        about = notebook_html.text(str(card.get("about") or ""))
        learning = notebook_html.curve(card.get("curve"), f"held_out_{measure}")
        return notebook_html.card(str(card.get("title") or "Checkpoint"), about, notebook_html.facts(rows), learning)


def save(what: Checkpoint | Transformer, path: str | Path) -> None:
    """Write a checkpoint atomically as safetensors with its configuration.

    Args:
        what: An xformer model, or a checkpoint with its task and card.
        path: A folder, or a file whose name ends in ".safetensors".

    Raises:
        CheckpointError: It is no xformer model, the weights or the card contain non-finite numbers, or the card is too large.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile, xformer
        >>> checkpoint = xformer.load("checkpoints/reverse")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.save(checkpoint, f"{folder}/copy")
        ...     xformer.load(f"{folder}/copy").config == checkpoint.config
        True
    """
    if not isinstance(what, Checkpoint | Transformer):
        raise CheckpointError(
            f"xformer.save takes an xformer model or a checkpoint, such as xformer.load('checkpoints/reverse'), got a "
            f"{type(what).__name__}; save a model of Transformers with its save_pretrained."
        )
    checkpoint = what if isinstance(what, Checkpoint) else Checkpoint(what)
    path = Path(path)
    content = to_bytes(checkpoint)
    if path.suffix == ".safetensors":
        write_atomically(path, content)
        return
    write_atomically(path / FILE, content)
    write_atomically(path / CARD, (json.dumps(checkpoint.card, indent=1) + "\n").encode())


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as the content of one safetensors file."""
    weights = {name: value.detach().cpu().contiguous() for name, value in checkpoint.model.named_parameters()}
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise CheckpointError(f"The weights were not saved because {name} contains NaN or infinity.")
    try:
        card = json.dumps(checkpoint.card, allow_nan=False)
    except ValueError:
        raise CheckpointError("The model was not saved because its card contains NaN or infinity.") from None
    metadata = {"xformer": FORMAT, "config": json.dumps(checkpoint.config.to_json()), "card": card}
    if checkpoint.task is not None:
        metadata["task"] = json.dumps(checkpoint.task.config.to_json())
    content = safetensors.torch.save(weights, metadata)
    if int.from_bytes(content[:8], "little") > MAX_HEADER:
        raise CheckpointError(f"The model was not saved because its card takes more than {MAX_HEADER:,} bytes.")
    return content


@torch.inference_mode(False)  # else no run of the model could be differentiated
def load(path: str | Path) -> Checkpoint:
    """Load a checkpoint. The file is fully validated before the model is built, and cannot execute code.

    Args:
        path: A folder with model.safetensors, or such a file. "checkpoints/reverse" is a shipped model, whatever the current
            folder.

    Returns:
        The checkpoint, with its model in `eval()` mode.

    Raises:
        CheckpointError: There is no checkpoint at the path, or it is invalid.

    Example:
        >>> import xformer
        >>> checkpoint = xformer.load("checkpoints/reverse")
        >>> checkpoint.config.n_layers, checkpoint.task.config.name
        (4, 'reverse')
    """
    path = shipped(Path(path))
    file = path / FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):  # also False for an invalid path
        raise CheckpointError(f"There is no checkpoint at {path!s:.200}; a checkpoint is a folder with {FILE} in it.")
    with guarded(file, MAX_BYTES, CheckpointError) as (stream, size):
        start = stream.read(8 + MAX_HEADER)
        checked = _check(start, size)  # before the rest is read, so that an invalid header costs little memory
        return _build(checked, start + stream.read())


def from_bytes(content: bytes) -> Checkpoint:
    """Return the checkpoint in the content of an untrusted file, which is fully validated first.

    Raises `CheckpointError` with one sentence.
    """
    return _build(_check(content, len(content)), content)


def _check(start: bytes, size: int) -> tuple[ModelConfig, Task | None, dict[str, Any]]:
    """Validate the header of a file of `size` bytes and return its content. `start` must contain the whole header."""
    header = parse_header(start, size=size)
    config, task, card = _metadata(header.metadata)
    n_bytes, found = 4 * n_parameters(config), size - header.data_start
    if n_bytes != found:
        raise CheckpointError(f"The configuration needs {n_bytes:,} bytes of weights, but the file has {found:,}.")
    with torch.device("meta"):
        shapes = {name: list(value.shape) for name, value in Transformer(config).named_parameters()}
    if missing := sorted(set(shapes) - set(header.tensors)):
        raise CheckpointError(f"The file lacks the weights {missing[0]!r}, which its configuration requires.")
    for name, tensor in header.tensors.items():
        if name not in shapes:
            raise CheckpointError(f"The file has weights {name!r:.100} that its configuration does not have.")
        if tensor.dtype != "F32" or tensor.shape != shapes[name]:
            what = f"The weights {name!r} must be F32 with shape {shapes[name]}"
            raise CheckpointError(f"{what}, got {tensor.dtype} {tensor.shape}.")
    return config, task, card


def _build(checked: tuple[ModelConfig, Task | None, dict[str, Any]], content: bytes) -> Checkpoint:
    """Build the checkpoint of a file whose header has been validated."""
    config, task, card = checked
    try:
        weights = safetensors.torch.load(content)
    except SafetensorError:
        raise CheckpointError("The file is not a safetensors file, although its header looks like one.") from None
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise CheckpointError(f"The weights {name!r} contain NaN or infinity.")
    model = Transformer(config, torch.Generator())  # the global generator stays as it is
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return Checkpoint(model.eval().requires_grad_(False), task, card)


def _metadata(metadata: dict[str, str]) -> tuple[ModelConfig, Task | None, dict[str, Any]]:
    if metadata.get("xformer") != FORMAT:
        raise CheckpointError("The file was not written by xformer, according to its metadata.")
    if "config" not in metadata:
        raise CheckpointError("The file has no model configuration in its metadata.")
    try:
        config = ModelConfig.from_json(strict_json(metadata["config"], "configuration"))
        task = None
        if "task" in metadata:
            task = Task(TaskConfig.from_json(strict_json(metadata["task"], "task")))
            task.check_fits(config)
    except ConfigError as error:
        raise CheckpointError(f"The file's configuration breaks a rule: {_short(str(error))}") from None
    card = strict_json(metadata.get("card", "{}"), "card")
    if not isinstance(card, dict):
        raise CheckpointError("The file's card must be a JSON object.")
    return config, task, card


def _short(message: str) -> str:
    """Return a message, which may quote a whole file, cut to 300 characters."""
    return message if len(message) <= 300 else message[:299] + "…"
