"""A trace on disk: safetensors with its configuration in the metadata, read back from anyone after every claim was checked.

save_trace(trace, "trace.safetensors")
trace = load_trace("trace.safetensors")

(`Trace.save_npz` writes the same arrays for NumPy; such an archive is not read back here.)
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from xformer.config import ModelConfig
from xformer.errors import CheckpointError, ConfigError, InputError
from xformer.files import MAX_HEADER, Header, guarded, parse_header, strict_json, write_atomically
from xformer.trace import Trace

FORMAT = "1"
KIND = "xformer-trace"
"""The word in the metadata by which a trace is told from a checkpoint."""
MAX_BYTES = 1024**3
MAX_CELLS = 2**40
"""Of one activation: what a shape with a zero in it may claim otherwise would overflow."""
READ = ("F64", "F32", "F16", "BF16", "I64", "I32", "BOOL")


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as one safetensors file, whole or not at all.

    Raises `OSError` where the disk refuses, `InputError` where the model is none of ours: it would not be read back.
    """
    tensors = {"tokens": trace.tokens, **trace.activations}
    if trace.target is not None:
        tensors["target"] = trace.target
    # What shares storage with another (a transpose, an expanded table) is written out on its own.
    separate = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = {KIND: FORMAT, "config": json.dumps(trace.config.to_json())}
    write_atomically(path, safetensors.torch.save(separate, metadata))


def load_trace(path: str | Path) -> Trace:
    """The trace in a file. Raises `InputError` with one plain sentence when it is not one."""
    with guarded(path, MAX_BYTES, InputError) as (file, size):
        try:
            start = file.read(8 + MAX_HEADER)
            config = _config(parse_header(start, size=size))
            tensors = safetensors.torch.load(start + file.read())
        except CheckpointError as error:
            raise InputError(str(error)) from None
        except SafetensorError:
            raise InputError("The file is no safetensors file, though its header reads like one.") from None
    return _trace(config, tensors)


def is_trace(path: str | Path) -> bool:
    """Whether a file says that it is a trace. Raises `InputError` where it is no safetensors file that can be read."""
    with guarded(path, 2 * MAX_BYTES, InputError) as (file, size):
        try:
            return KIND in parse_header(file.read(8 + MAX_HEADER), size=size).metadata
        except CheckpointError as error:
            raise InputError(str(error)) from None


def _config(header: Header) -> ModelConfig:
    if header.metadata.get(KIND) != FORMAT:
        raise InputError("The file is no trace: its metadata do not say so; write one with xformer trace.")
    for name, entry in header.tensors.items():
        if entry.dtype not in READ:
            raise InputError(f"The trace's {name!r:.100} must hold floats, integers or booleans, got {entry.dtype}.")
        if math.prod(max(1, size) for size in entry.shape) > MAX_CELLS:
            raise InputError(f"The trace's {name!r:.100} claims an impossible shape.")
    try:
        return ModelConfig.from_json(strict_json(header.metadata.get("config", ""), "configuration"))
    except ConfigError as error:
        raise InputError(f"The trace's configuration breaks a rule: {error!s:.300}") from None


def _trace(config: ModelConfig, tensors: dict[str, Tensor]) -> Trace:
    tokens = _tokens("tokens", tensors.pop("tokens", None), config)
    is_pair = config.architecture == "encoder-decoder"
    if is_pair != ("target" in tensors):
        raise InputError(
            f"A trace of architecture={config.architecture!r} {'must' if is_pair else 'cannot'} have a target."
        )
    target = _tokens("target", tensors.pop("target"), config) if is_pair else None
    for name, value in tensors.items():
        if value.dim() < 2 or 0 in value.shape:
            raise InputError(f"The activation {name!r:.100} must have at least two axes, got {list(value.shape)}.")
        if name.endswith(".pattern") and value.dim() != 4:
            raise InputError(f"A pattern must be [batch, head, query, key], but {name!r:.100} is {list(value.shape)}.")
    return Trace(config, tokens, target, (), tensors)


def _tokens(name: str, value: Tensor | None, config: ModelConfig) -> Tensor:
    if value is None:
        raise InputError(f"The file has no {name!r}, so it is no trace; write one with xformer trace.")
    if value.dim() != 2 or value.dtype not in (torch.int64, torch.int32) or value.numel() == 0:
        raise InputError(
            f"The trace's {name} must be integers shaped [batch, pos], got {value.dtype} {list(value.shape)}."
        )
    if int(value.min()) < 0 or int(value.max()) >= config.n_inputs:
        raise InputError(f"The trace's {name} must be from 0 to {config.n_inputs - 1}, its configuration says.")
    return value.long()
