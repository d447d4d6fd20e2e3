"""The safetensors files of a folder: one, or the parts that an index names; every header is checked, no tensor is read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from xformer.errors import CheckpointError, ModelFileError
from xformer.guarded_file import guarded
from xformer.model_files.guarded_json import read_object
from xformer.safe_header import Header, parse_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_BYTES = 2**44
MAX_HEADER = 16 * 1024**2
MOST_PARTS = 1_000


@dataclass(frozen=True)
class Weights:
    """Files of weights, as far as their headers tell."""

    files: tuple[Path, ...]
    n_parameters: int
    n_bytes: int
    """What the files take on the disk."""
    n_tensors: int = 0
    largest: int = 0
    """The largest dimension of any tensor."""


def weights_in(folder: Path, names: list[str]) -> Weights | None:
    """What the folder has; None where it has none under these names. Raises `ModelFileError`."""
    if SINGLE in names:
        headers = {folder / SINGLE: _header(folder / SINGLE)}
    elif INDEX in names:
        headers = _parts(folder, names)
    else:
        return None
    tensors = [tensor for header in headers.values() for tensor in header.tensors.values()]
    n_parameters = sum(prod(tensor.shape) for tensor in tensors)
    largest = max((length for tensor in tensors for length in tensor.shape), default=0)
    return Weights(tuple(headers), n_parameters, sum(file.stat().st_size for file in headers), len(tensors), largest)


def _parts(folder: Path, names: list[str]) -> dict[Path, Header]:
    places = read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(part, str) for part in places.values()):
        raise ModelFileError(f"{INDEX} must say in weight_map which file holds each tensor.")
    parts = sorted(set(places.values()))
    if len(parts) > MOST_PARTS:
        raise ModelFileError(f"{INDEX} names {len(parts):,} files; at most {MOST_PARTS:,} are read.")
    for part in parts:
        if part != Path(part).name or "\\" in part or not part.endswith(".safetensors"):
            raise ModelFileError(
                f"{INDEX} names {part!r:.100}; a part is a file of the same folder, like 'model-00001-of-00002.safetensors'."
            )
        if part not in names:
            raise ModelFileError(f"{INDEX} names {part!r:.100}, which is missing; fetch or copy it into the folder.")
    headers = {folder / part: _header(folder / part) for part in parts}
    for tensor, part in places.items():
        if tensor not in headers[folder / part].tensors:
            raise ModelFileError(f"{INDEX} says that {part!r:.100} holds {tensor!r:.100}, and it does not.")
    return headers


def _header(file: Path) -> Header:
    with guarded(file, MOST_BYTES, ModelFileError) as (opened, size):
        start = opened.read(8)
        length = min(int.from_bytes(start, "little"), MAX_HEADER)
        try:
            return parse_header(start + opened.read(length), MAX_HEADER, size=size)
        except CheckpointError as error:
            raise ModelFileError(f"{file.name} cannot be used. {error}") from None
