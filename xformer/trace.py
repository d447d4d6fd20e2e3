"""Traces: the recorded activations of one run by name. Every figure of this project is a function of a trace."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor

from xformer.config import ModelConfig
from xformer.edits import Edit, Replace
from xformer.errors import ActivationError, CheckpointError, ConfigError, InputError, MissingError, UnavailableError
from xformer.files import MAX_HEADER, Header, guarded, parse_header, strict_json, write_atomically
from xformer.formatting import similar_names
from xformer.layer_path import LayerPath
from xformer.model import Transformer
from xformer.tape import Tape, graph_of


@dataclass(frozen=True, eq=False)
class Trace(Mapping[str, Tensor]):
    """The activations and the inputs of one run.

    A trace is a mapping from names to tensors, in the order of the computation. Two traces are equal only if they are the same
    object.

    Attributes:
        tokens: The tokens that the model reads, [batch, pos].
        target: The tokens that the decoder of an encoder-decoder reads, [batch, target].
        edits: The edits applied during the run.

    Example:
        >>> import torch, xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> trace = xformer.record(model, torch.tensor([[3, 7, 12, 9]]))
        >>> trace["encoder.0.attn.pattern"].shape  # [batch, head, query, key]
        torch.Size([1, 4, 4, 4])
    """

    model_config: ModelConfig | None
    """The configuration of an xformer model, else None; see `config`."""
    tokens: Int[Tensor, "batch pos"]
    target: Int[Tensor, "batch target"] | None
    edits: tuple[Edit, ...]
    activations: dict[str, Tensor] = field(repr=False)
    valid: Bool[Tensor, "batch pos"] | None = None
    """True where there is a token and not padding; None: there is no padding."""
    target_valid: Bool[Tensor, "batch target"] | None = None
    mask: Bool[Tensor, "*batch query key"] | None = field(default=None, repr=False)
    """A further restriction of self-attention; see `Transformer.forward`."""
    added: tuple[int, int] = (0, 0)
    """The numbers of positions that the model puts before and after `tokens`; see `ModelShape.added`."""

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.activations:
            error = ActivationError if self.model_config else MissingError
            raise error(f"This run has no activation {name!r}; {similar_names(name, self.activations)}")
        return self.activations[name]

    def __contains__(self, name: object) -> bool:
        return name in self.activations

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  Mapping sets it to None; traces hash by identity

    def __iter__(self) -> Iterator[str]:
        return iter(self.activations)

    def __len__(self) -> int:
        return len(self.activations)

    @property
    def config(self) -> ModelConfig:
        """The configuration of the model. Raises `UnavailableError` for a trace of an external model."""
        if self.model_config is None:
            raise UnavailableError(
                "This needs the configuration of an xformer model, such as 'checkpoints/reverse'; this trace is of an external "
                "model, which has none."
            )
        return self.model_config

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        """The logits."""
        return self["logits"]

    def layer_paths(self) -> tuple[LayerPath, ...]:
        """Return the recorded attention layers, in forward order."""
        return tuple(LayerPath.parse(name) for name in self if name.endswith(".pattern"))

    def attention_layers(self) -> tuple[str, ...]:
        """Return the paths of the recorded attention layers, in forward order: "encoder.0.attn", …"""
        return tuple(site.path for site in self.layer_paths())

    def read_by(self, stack: str | None = None) -> Int[Tensor, "batch pos"]:
        """Return the tokens at a stack's positions: the target for an encoder-decoder's decoder, else the tokens.

        −1 stands for a position that the model adds.
        """
        if stack == "decoder" and self.target is not None:
            return self.target
        return self.tokens if self.added == (0, 0) else F.pad(self.tokens, self.added, value=-1)

    def cpu(self) -> Trace:
        """Return a copy of the trace in CPU memory."""
        inputs = ("tokens", "target", "valid", "target_valid", "mask")
        moved = {name: None if (value := getattr(self, name)) is None else value.cpu() for name in inputs}
        return replace(self, activations={name: value.cpu() for name, value in self.activations.items()}, **moved)

    def patterns(self) -> dict[str, Float[Tensor, "batch head query key"]]:
        """Return the attention patterns of all layers, by the path of the layer."""
        return {path: self[f"{path}.pattern"] for path in self.attention_layers()}

    def one(self, index: int) -> Trace:
        """Return the trace of one input of a batch."""
        n = len(self.tokens)
        if n == 1:
            return self
        rows = slice(index % n, index % n + 1)

        def of(name: str, value: Tensor) -> Tensor:
            is_shared = name.rpartition(".")[2] in ("pos_embed", "causal")  # [pos, d_model], [query, key]
            return value if is_shared or len(value) != n else value[rows]

        def row(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows]

        mask = self.mask if self.mask is None or self.mask.dim() == 2 else self.mask[rows]
        activations = {name: of(name, value) for name, value in self.activations.items()}
        return Trace(
            self.model_config, self.tokens[rows], row(self.target), self.edits, activations, row(self.valid),
            row(self.target_valid), mask, self.added,
        )  # fmt: skip

    def real(self, stack: str) -> Bool[Tensor, " pos"] | None:
        """Return a mask of the first input's positions that are tokens and not padding; None: all of them."""
        is_target = stack == "decoder" and self.target is not None
        valid = self.target_valid if is_target else self.valid
        return None if valid is None else valid[0]

    @property
    def n_bytes(self) -> int:
        """The memory used by the activations, in bytes, counting shared storage once."""
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in self.activations.values()}
        return sum(storage.nbytes() for storage in storages.values())

    def save_npz(self, path: str | Path) -> None:
        """Write a compressed NumPy archive of all activations, the tokens, and an xformer model's configuration as JSON."""
        arrays = {name: value.numpy(force=True) for name, value in self.activations.items()}
        arrays["tokens"] = self.tokens.numpy(force=True)
        if self.target is not None:
            arrays["target"] = self.target.numpy(force=True)
        if self.model_config is not None:
            arrays["config"] = np.array(json.dumps(self.model_config.to_json()))
        archive = io.BytesIO()  # given a path, NumPy would append .npz to it
        np.savez_compressed(archive, allow_pickle=False, **arrays)
        write_atomically(path, archive.getvalue())


def first_nan(activations: Mapping[str, Tensor]) -> str:
    """Describe the location of the first NaN of a run, and the cause if it is a mask; "" if there is no NaN."""
    for name, value in activations.items():
        if not value.is_floating_point() or not bool(value.isnan().any()):
            continue
        place = [int(at) for at in value.isnan().nonzero()[0]]
        path, _, what = name.rpartition(".")
        if what != "pattern":
            return f"The first NaN is in {name} at {place}."
        batch, head, query, _ = place
        where = f"The first NaN is in {name}, head {head}, row {query}"
        mask = activations.get(f"{path}.mask")
        is_empty = mask is not None and not bool(mask.expand(value.shape)[batch, head, query].any())
        return f"{where}: row {query} has no permitted key." if is_empty else f"{where}."
    return ""


def record(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    target: Int[Tensor, "batch target"] | None = None,
    *,
    edits: Sequence[Edit] = (),
    keep: Sequence[str] = ("*",),
    pad: int | None = None,
    valid: Bool[Tensor, "batch pos"] | None = None,
    target_valid: Bool[Tensor, "batch target"] | None = None,
    mask: Bool[Tensor, "*batch query key"] | None = None,
    fused: bool = False,
) -> Trace:
    """Run an xformer model once and record its activations. Any number of threads can record the same model at once.

    Dropout is off in a recorded run. `xformer.read` does this for any model, and adds token labels and answers.

    Args:
        model: The model. It is not changed.
        tokens: The input, [batch, pos]; for an encoder-decoder the source.
        target: The input of an encoder-decoder's decoder, [batch, target].
        edits: Edits of activations, see `xformer.edits`.
        keep: Globs of the activations to keep; all of them by default.
        pad: The token id of padding.
        valid: True where there is a token, [batch, pos].
        target_valid: True where the target has a token, [batch, target].
        mask: A further restriction of self-attention, true where a query may attend, [query, key] or [batch, query, key].
        fused: Use fused attention in layers of which nothing is kept or edited: several times as fast on long inputs, and equal
            up to rounding.

    Returns:
        The trace.

    Raises:
        EditError: An edit, or a glob of `keep`, matches no activation, or an edit does not fit.
        InputError: The model cannot read the tokens.

    Example:
        >>> import torch, xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> trace = xformer.record(model, torch.tensor([[3, 7, 12, 9]]), keep=["*.pattern", "logits"])
        >>> trace["encoder.3.attn.pattern"].shape  # [batch, head, query, key]
        torch.Size([1, 4, 4, 4])
    """
    tokens = tokens.to(model.device)
    target, valid, target_valid, mask = (
        None if value is None else value.to(model.device) for value in (target, valid, target_valid, mask)
    )
    tape = Tape(edits, keep, fused=fused)
    options = {"pad": pad, "valid": valid, "target_valid": target_valid, "mask": mask}
    with graph_of(edits):
        model(tokens, target, **options, tape=tape)
    tape.check_all_fired(lambda everything: model(tokens, target, **options, tape=everything))
    if pad is not None:  # as in the model, an explicit mask has priority
        valid = tokens != pad if valid is None else valid
        target_valid = target != pad if target_valid is None and target is not None else target_valid
    return Trace(model.config, tokens, target, tuple(edits), tape.activations, valid, target_valid, mask)


def repeat_first(
    model: Transformer,
    trace: Trace,
    n: int,
    *,
    edits: Sequence[Edit] = (),
    keep: Sequence[str] = ("*",),
    fused: bool = False,
) -> Trace:
    """Run the first input of a trace again, `n` times in one batch, with its padding, mask and edits, and then `edits`.

    Of an edit with one value per input, the first input's value is used.
    """

    def spread(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[:1].expand(n, *value.shape[1:])

    mask = trace.mask if trace.mask is None or trace.mask.dim() == 2 else spread(trace.mask)
    return record(
        model,
        trace.tokens[:1].expand(n, -1),
        spread(trace.target),
        edits=[*(_of_first(edit, trace) for edit in trace.edits), *edits],
        keep=keep,
        valid=spread(trace.valid),
        target_valid=spread(trace.target_valid),
        mask=mask,
        fused=fused,
    )


def _of_first(edit: Edit, trace: Trace) -> Edit:
    """Reduce an edit of a batch to its first input: of one value per input, keep the first."""
    n = len(trace.tokens)
    if n == 1 or not isinstance(edit, Replace) or edit.value.shape[:1] != (n,):
        return edit
    at = next((value for name, value in trace.activations.items() if fnmatchcase(name, edit.name)), None)
    return edit if at is None or at.dim() != edit.value.dim() else replace(edit, value=edit.value[:1])


FORMAT = "1"

KIND = "xformer-trace"
"""The key in the metadata that distinguishes a trace from a checkpoint."""

MAX_BYTES = 1024**3

MAX_CELLS = 2**40
"""Largest number of cells of one activation, counting zero dimensions as 1: larger claims would overflow."""

READ = ("F64", "F32", "F16", "BF16", "I64", "I32", "BOOL")


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace atomically to one safetensors file.

    Raises `OSError` if it cannot be written, `UnavailableError` for an external model's trace, which could not be loaded.
    """
    tensors = {"tokens": trace.tokens, **trace.activations}
    if trace.target is not None:
        tensors["target"] = trace.target
    # safetensors rejects tensors that share storage (a transpose, an expanded table), so each is copied.
    separate = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = {KIND: FORMAT, "config": json.dumps(trace.config.to_json())}
    write_atomically(path, safetensors.torch.save(separate, metadata))


def load_trace(path: str | Path) -> Trace:
    """Load a trace from a file. Raises `InputError` if the file is not a trace."""
    with guarded(path, MAX_BYTES, InputError) as (file, size):
        try:
            start = file.read(8 + MAX_HEADER)
            config = _config(parse_header(start, size=size))
            tensors = safetensors.torch.load(start + file.read())
        except CheckpointError as error:
            raise InputError(str(error)) from None
        except SafetensorError:
            raise InputError("The file is not a valid safetensors file, although its header is.") from None
    return _trace(config, tensors)


def is_trace(path: str | Path) -> bool:
    """Return whether a file is marked as a trace. Raises `InputError` if it is not a readable safetensors file."""
    with guarded(path, 2 * MAX_BYTES, InputError) as (file, size):
        try:
            return KIND in parse_header(file.read(8 + MAX_HEADER), size=size).metadata
        except CheckpointError as error:
            raise InputError(str(error)) from None


def _config(header: Header) -> ModelConfig:
    if header.metadata.get(KIND) != FORMAT:
        raise InputError("The file is not marked as a trace in its metadata; write one with xformer trace.")
    for name, entry in header.tensors.items():
        if entry.dtype not in READ:
            raise InputError(f"The trace's {name!r:.100} must hold floats, integers or booleans, got {entry.dtype}.")
        if math.prod(max(1, size) for size in entry.shape) > MAX_CELLS:
            raise InputError(f"The trace's {name!r:.100} claims an impossible shape.")
    try:
        return ModelConfig.from_json(strict_json(header.metadata.get("config", ""), "configuration"))
    except ConfigError as error:
        raise InputError(f"The trace's configuration is invalid: {error!s:.300}") from None


def _trace(config: ModelConfig, tensors: dict[str, Tensor]) -> Trace:
    tokens = _tokens("tokens", tensors.pop("tokens", None), config)
    is_encoder_decoder = config.architecture == "encoder-decoder"
    if is_encoder_decoder != ("target" in tensors):
        must = "must" if is_encoder_decoder else "cannot"
        raise InputError(f"A trace of architecture={config.architecture!r} {must} have a target.")
    target = _tokens("target", tensors.pop("target"), config) if is_encoder_decoder else None
    for name, value in tensors.items():
        if value.dim() < 2 or 0 in value.shape:
            raise InputError(f"The activation {name!r:.100} must have at least two axes, got {list(value.shape)}.")
        if name.endswith(".pattern") and value.dim() != 4:
            raise InputError(f"A pattern must be [batch, head, query, key], but {name!r:.100} is {list(value.shape)}.")
    return Trace(config, tokens, target, (), tensors)


def _tokens(name: str, value: Tensor | None, config: ModelConfig) -> Tensor:
    if value is None:
        raise InputError(f"The file has no {name!r}, so it is not a trace; write one with xformer trace.")
    if value.dim() != 2 or value.dtype not in (torch.int64, torch.int32) or value.numel() == 0:
        raise InputError(f"The trace's {name} must be integers [batch, pos], got {value.dtype} {list(value.shape)}.")
    if int(value.min()) < 0 or int(value.max()) >= config.n_inputs:
        raise InputError(f"The trace's {name} must be from 0 to {config.n_inputs - 1}, according to its configuration.")
    return value.long()
