"""Read headers of untrusted weight files. Every count and size is checked against the file before it is used.

A GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    "GGUF"    4 bytes, then version (uint32), number of tensors, number of keys (uint64 each)
    keys      name, type, value; strings are a length (uint64) and bytes, arrays a type, a length and their elements
    tensors   name, number of dimensions, dimensions, type, offset
    the rest  the tensors, each at a multiple of general.alignment

`gguf.GGUFReader` is not used, as it trusts claimed array lengths (a file of 100 bytes can keep it busy for minutes).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from xformer.errors import CheckpointError, MissingLibraryError, ModelFileError
from xformer.files import MAX_TENSORS, Header, guarded, parse_header
from xformer.installed import needed

MAX_BYTES = 2**44
"""The size limit of a weight file in bytes."""
MAX_KEYS = 4_096
"""The limit on the keys of a GGUF header."""
MAX_ELEMENTS = 8_000_000
"""The limit on the elements of all arrays. A large vocabulary has 256,000 tokens with as many scores, types and merges."""
LONGEST = 1_000_000
"""The length limit of a string in bytes. A chat template has thousands."""
KEPT = 1_000
"""The length limit in bytes of strings that are kept; longer ones are skipped."""

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@cache
def block_sizes() -> Mapping[int, tuple[int, int]]:
    """Elements per block and bytes per block of each tensor type, from the package gguf."""
    try:
        with needed("gguf", "A GGUF file", "xformer-studio[models]"):
            from gguf import GGML_QUANT_SIZES
    except MissingLibraryError as error:  # the catalogue lists the model with this reason
        raise ModelFileError(str(error)) from None
    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


@dataclass(frozen=True)
class GgufHeader:
    """The contents of a checked header."""

    values: dict[str, str | int | float | bool]
    """Scalar keys, and the lengths of arrays."""
    n_tensors: int
    n_parameters: int
    n_bytes: int

    @property
    def architecture(self) -> str:
        """The kind of model, like "llama"."""
        return str(self.values.get("general.architecture", ""))


def read_gguf_header(file: Path) -> GgufHeader:
    """Read and check a header. Raises `ModelFileError` with one sentence for the first false claim."""
    with guarded(file, MAX_BYTES, ModelFileError) as (opened, size):
        return _Reader(opened, size, file.name).header()


class _Reader:
    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.file, self.size, self.name = file, size, name
        self.elements = 0

    def header(self) -> GgufHeader:
        if self._read(4) != b"GGUF":
            self._refuse("it does not begin with the letters GGUF")
        if (version := self._number("I")) not in (2, 3):
            is_other = version % 65_536 == 0
            kind = "is big-endian" if is_other else f"has version {version}"
            self._refuse(f"it {kind}; little-endian files of versions 2 and 3 are read")
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        if n_tensors > MAX_TENSORS or n_keys > MAX_KEYS:
            most = f"at most {MAX_TENSORS:,} and {MAX_KEYS:,} are read"
            self._refuse(f"it claims {n_tensors:,} tensors and {n_keys:,} keys; {most}")
        values: dict[str, str | int | float | bool] = {}
        for _ in range(n_keys):
            key = self._string(256)
            if key in values:
                self._refuse(f"it names the key {key!r:.80} twice")
            values[key] = self._value(self._number("I"))
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
            self._refuse(f"its alignment {alignment!r:.40} is not a power of two from 8 to 65536")
        tensors = [self._tensor() for _ in range(n_tensors)]
        start = -(-self.file.tell() // alignment) * alignment
        self._check_layout([(begin, n_bytes) for _, begin, n_bytes in tensors], start, alignment)
        return GgufHeader(values, n_tensors, sum(numbers for numbers, _, _ in tensors), self.size)

    def _tensor(self) -> tuple[int, int, int]:
        """Number of elements, offset, and size in bytes."""
        name, n_dims = self._string(256), self._number("I")
        if n_dims > 4:
            self._refuse(f"its tensor {name!r:.80} claims {n_dims:,} dimensions; at most 4 are supported")
        shape = [self._number("Q") for _ in range(n_dims)]
        kind, begin = self._number("I"), self._number("Q")
        if kind not in block_sizes():
            self._refuse(f"its tensor {name!r:.80} has the unknown type {kind}")
        numbers, (width, n_bytes) = prod(shape), block_sizes()[kind]
        if not shape or not numbers or shape[0] % width:
            self._refuse(f"its tensor {name!r:.80} has an impossible shape")
        return numbers, begin, numbers // width * n_bytes

    def _check_layout(self, places: list[tuple[int, int]], start: int, alignment: int) -> None:
        free = 0
        for begin, n_bytes in sorted(places):
            if begin % alignment or begin < free:
                self._refuse("two of its tensors overlap, or one is misaligned")
            free = begin + n_bytes
        if start + free > self.size:
            self._refuse(f"it is truncated: its tensors end at byte {start + free:,}, but it has {self.size:,} bytes")

    def _value(self, kind: int) -> str | int | float | bool:
        if kind == STRING:
            return self._string(LONGEST)
        if kind != ARRAY:
            return self._number(SCALARS[kind]) if kind in SCALARS else self._refuse(f"it has a value of type {kind}")
        inner, n = self._number("I"), self._number("Q")
        self.elements += n
        if self.elements > MAX_ELEMENTS:
            self._refuse(f"its lists claim {self.elements:,} elements; at most {MAX_ELEMENTS:,} are read")
        if inner == STRING:
            for _ in range(n):
                self._pass_over(self._number("Q"))
        elif inner in SCALARS:
            self._pass_over(n * struct.calcsize(SCALARS[inner]))
        else:
            self._refuse(f"it has a list of type {inner}")
        return n

    def _string(self, longest: int) -> str:
        length = self._number("Q")
        if length > longest:
            self._refuse(f"it has a string of {length:,} bytes; at most {longest:,} are read")
        if length > KEPT:
            self._pass_over(length)
            return ""
        return self._read(length).decode("utf-8", "replace")

    def _number(self, kind: str) -> int:
        return struct.unpack(f"<{kind}", self._read(struct.calcsize(kind)))[0]

    def _pass_over(self, n: int) -> None:
        if n <= LONGEST:
            self._read(n)  # a seek would discard the read-ahead buffer
        elif self.file.tell() + n > self.size:
            self._refuse("it is truncated")
        else:
            self.file.seek(n, os.SEEK_CUR)

    def _read(self, n: int) -> bytes:
        content = self.file.read(n)
        if len(content) < n:
            self._refuse("it is truncated")
        return content

    def _refuse(self, reason: str) -> NoReturn:
        raise ModelFileError(f"{self.name!r:.100} cannot be used as a GGUF file: {reason}.")


SINGLE = "model.safetensors"

INDEX = "model.safetensors.index.json"

MAX_HEADER = 16 * 1024**2
"""The size limit of a safetensors header in bytes."""

MAX_PARTS = 1_000
"""The limit on the files of a sharded model."""


@dataclass(frozen=True)
class WeightFiles:
    """Weight files and the totals of their headers."""

    files: tuple[Path, ...]
    n_parameters: int
    n_bytes: int
    """The size of the files on disk."""
    n_tensors: int = 0
    largest: int = 0
    """The largest dimension of any tensor."""


def weights_in(folder: Path, names: list[str]) -> WeightFiles | None:
    """The folder's safetensors files, single or indexed; None if there are none. Raises `ModelFileError`."""
    if SINGLE in names:
        headers = {folder / SINGLE: _header(folder / SINGLE)}
    elif INDEX in names:
        headers = _parts(folder, names)
    else:
        return None
    tensors = [tensor for header in headers.values() for tensor in header.tensors.values()]
    n_parameters = sum(prod(tensor.shape) for tensor in tensors)
    largest = max((length for tensor in tensors for length in tensor.shape), default=0)
    return WeightFiles(
        tuple(headers), n_parameters, sum(file.stat().st_size for file in headers), len(tensors), largest
    )


def _parts(folder: Path, names: list[str]) -> dict[Path, Header]:
    places = read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(part, str) for part in places.values()):
        raise ModelFileError(f"{INDEX} must map each tensor to its file in weight_map.")
    parts = sorted(set(places.values()))
    if len(parts) > MAX_PARTS:
        raise ModelFileError(f"{INDEX} names {len(parts):,} files; at most {MAX_PARTS:,} are read.")
    for part in parts:
        if part != Path(part).name or "\\" in part or not part.endswith(".safetensors"):
            what = "a part must be a file of the same folder, like 'model-00001-of-00002.safetensors'"
            raise ModelFileError(f"{INDEX} names {part!r:.100}; {what}.")
        if part not in names:
            raise ModelFileError(f"{INDEX} names {part!r:.100}, which is missing; copy it into the folder.")
    headers = {folder / part: _header(folder / part) for part in parts}
    for tensor, part in places.items():
        if tensor not in headers[folder / part].tensors:
            raise ModelFileError(f"{INDEX} maps {tensor!r:.100} to {part!r:.100}, which does not contain it.")
    return headers


def _header(file: Path) -> Header:
    with guarded(file, MAX_BYTES, ModelFileError) as (opened, size):
        start = opened.read(8)
        length = min(int.from_bytes(start, "little"), MAX_HEADER)
        try:
            return parse_header(start + opened.read(length), MAX_HEADER, size=size)
        except CheckpointError as error:
            raise ModelFileError(f"{file.name} cannot be used. {error}") from None


MOST = 16 * 1024**2
"""The size limit of a JSON file. The index of a model in a thousand files has one megabyte, a configuration kilobytes."""


def read_object(file: Path, max_bytes: int = MOST) -> dict[str, Any]:
    """Read the JSON object in a file. Raises `ModelFileError` with one plain sentence.

    Infinity and NaN are accepted, as some published configurations have them.
    """
    with guarded(file, max_bytes, ModelFileError) as (opened, _):
        content = opened.read(max_bytes)
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise ModelFileError(f"{file.name} is not valid JSON; save the model again with save_pretrained.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{file.name} must hold a JSON object, got {type(value).__name__}.")
    return value
