"""Reading a JSON file that came with somebody else's model: of bounded size, an object, and never more than data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xformer.errors import ModelFileError
from xformer.guarded_file import guarded

MOST = 16 * 1024**2
"""The index of a model in a thousand files has one; a configuration takes kilobytes."""


def read_object(file: Path, max_bytes: int = MOST) -> dict[str, Any]:
    """The JSON object in a file. Raises `ModelFileError` with one plain sentence.

    Infinity and NaN are let through: some published configurations have them.
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
