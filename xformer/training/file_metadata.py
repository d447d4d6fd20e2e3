"""What a file of weights says of itself in its header: the card of a model, or where an interrupted run stands.

Read without torch and without the weights, so that a list of a hundred folders is there at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xformer.errors import CheckpointError
from xformer.files import MAX_HEADER, guarded, parse_header, strict_json
from xformer.paths import FILE, STATE

MAX_STATE_HEADER = 100_000_000
"""What safetensors itself reads: the metrics of a long run take more than a stranger's header may."""
MAX_BYTES = 2**40


def read_metadata(folder: Path) -> dict[str, Any]:
    """The card of the model in a folder, or the values of the state that it was interrupted in.

    Raises `CheckpointError` with one plain sentence where the file is not whole.
    """
    if (folder / STATE).exists():
        return _said(folder / STATE, "state", MAX_STATE_HEADER)
    return _said(folder / FILE, "card", MAX_HEADER)


def _said(path: Path, key: str, most: int) -> dict[str, Any]:
    with guarded(path, MAX_BYTES, CheckpointError) as (file, size):
        length = file.read(8)
        start = length + file.read(min(most, int.from_bytes(length, "little")))
    value = strict_json(parse_header(start, most, size=size).metadata.get(key, "{}"), key)
    if not isinstance(value, dict):
        raise CheckpointError(f"The file's {key} must be a JSON object.")
    return value
