"""Reading a trace back from the .npz that `Trace.save_npz` wrote, from anyone: plain arrays only, checked before they are read.

The archive is a zip file of .npy files. A header that claims more than its file holds, or an archive that unpacks to more than
`MAX_BYTES`, is refused before any memory is asked for; pickled objects are never read.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from xformer.config import ModelConfig
from xformer.errors import ConfigError, InputError
from xformer.trace import Trace

MAX_BYTES = 1024**3
MAX_ARRAYS = 20_000
KINDS = "fbi"
"""NumPy's letters for floats, booleans and signed integers."""


def load_npz(path: str | Path) -> Trace:
    """The trace in a file. Raises `InputError` with one plain sentence when it is not one."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _arrays(archive)
    except OSError as error:
        raise InputError(f"The file {path!s:.200} cannot be read: {error.strerror or error}.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError):
        raise InputError(f"The file {path!s:.200} is not a whole .npz archive; write one with xformer trace.") from None
    return _trace(arrays)


def _arrays(archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    entries = archive.infolist()
    if len(entries) > MAX_ARRAYS or len({entry.filename for entry in entries}) != len(entries):
        raise InputError(f"The archive must hold at most {MAX_ARRAYS:,} arrays, each of them once.")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_BYTES:
        raise InputError(f"The archive unpacks to {unpacked:,} bytes; at most {MAX_BYTES:,} are read.")
    found = {}
    for entry in entries:
        if not entry.filename.endswith(".npy"):
            raise InputError(f"The archive holds {entry.filename!r:.100}, which is not an array.")
        with archive.open(entry) as file:
            found[entry.filename.removesuffix(".npy")] = _array(file, entry)
    return found


def _array(file: IO[bytes], entry: zipfile.ZipInfo) -> np.ndarray:
    """One array whose header says what its file holds."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, SyntaxError, UnicodeDecodeError):
        raise InputError(f"The array {entry.filename!r:.100} has no header that can be read.") from None
    is_config = entry.filename == "config.npy"
    if dtype.hasobject or (dtype.kind not in KINDS and not (is_config and dtype.kind == "U" and shape == ())):
        raise InputError(f"The array {entry.filename!r:.100} must hold plain numbers, got {dtype!s:.50}.")
    n_bytes = math.prod(shape) * dtype.itemsize
    content = file.read(n_bytes + 1) if n_bytes <= entry.file_size else b""
    if len(content) != n_bytes:
        raise InputError(f"The array {entry.filename!r:.100} claims {n_bytes:,} bytes, which its file does not hold.")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _trace(arrays: dict[str, np.ndarray]) -> Trace:
    if missing := [name for name in ("config", "tokens") if name not in arrays]:
        raise InputError(f"The archive has no {missing[0]!r}, so it is no trace; write one with xformer trace.")
    try:
        config = ModelConfig.from_json(json.loads(str(arrays.pop("config"))))
    except (ConfigError, ValueError, RecursionError) as error:
        raise InputError(f"The trace's configuration cannot be read: {error!s:.300}") from None
    tokens = _tokens("tokens", arrays.pop("tokens"), config)
    target = _tokens("target", arrays.pop("target"), config) if "target" in arrays else None
    if (target is not None) != (config.architecture == "encoder-decoder"):
        raise InputError(
            f"A trace of architecture={config.architecture!r} must have a target only for an encoder-decoder."
        )
    activations = {name: _tensor(value) for name, value in arrays.items()}
    for name, value in activations.items():
        if value.dim() < 2 or 0 in value.shape:
            raise InputError(f"The activation {name!r:.100} must have at least two axes, got {list(value.shape)}.")
        if name.endswith(".pattern") and value.dim() != 4:
            raise InputError(f"A pattern must be [batch, head, query, key], but {name!r:.100} is {list(value.shape)}.")
    return Trace(config, tokens, target, (), activations)


def _tokens(name: str, value: np.ndarray, config: ModelConfig) -> Tensor:
    if value.ndim != 2 or value.dtype.kind != "i" or value.size == 0:
        raise InputError(
            f"The trace's {name} must be integers shaped [batch, pos], got {value.dtype} {list(value.shape)}."
        )
    if value.min() < 0 or value.max() >= config.n_inputs:
        raise InputError(f"The trace's {name} must be from 0 to {config.n_inputs - 1}, its configuration says.")
    return _tensor(value).long()


def _tensor(value: np.ndarray) -> Tensor:
    """A copy that may be written to, in the machine's byte order."""
    try:
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    except TypeError:
        raise InputError(f"A trace holds floats, integers and booleans, got {value.dtype}.") from None
