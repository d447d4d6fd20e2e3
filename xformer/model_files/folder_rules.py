"""What no folder of a model may ask for: files from elsewhere, code of its own, another model to be fetched."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xformer.errors import ModelFileError
from xformer.model_files.headers import read_object

MOST_FILES = 2_000
TEXTS = (".json", ".txt", ".jinja", ".model", ".spm", ".tiktoken")
MOST_TEXT = 128 * 1024**2
"""Bytes of a tokenizer, which is read whole; the largest known has 35 MB."""
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
)
"""Any one of these cuts text into tokens."""


def file_names(folder: Path) -> list[str]:
    """The names of a model's files. Raises `ModelFileError` where one of them leads out of the model."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MOST_FILES + 1))
    except OSError as problem:
        raise ModelFileError(f"The folder {folder.name!r:.100} cannot be read: {problem.strerror}.") from None
    if len(names) > MOST_FILES:
        raise ModelFileError(
            f"The folder {folder.name!r:.100} has more than {MOST_FILES:,} files; give one model's folder."
        )
    inside = _whole_model(folder)
    for name in names:
        file = folder / name
        if file.is_symlink() and not _leads_inside(file, inside):
            raise ModelFileError(
                f"{name!r:.100} is a link that leads out of the model's folder; put the file there itself."
            )
        if name.endswith(TEXTS) and (size := _size(file)) > MOST_TEXT:
            raise ModelFileError(
                f"{name!r:.100} has {size:,} bytes; of a file beside the weights {MOST_TEXT:,} are read."
            )
    return names


def _leads_inside(link: Path, inside: Path) -> bool:
    """Whether a link leads to something within a folder; one that leads round in a circle leads nowhere."""
    try:
        return link.resolve().is_relative_to(inside)
    except (OSError, RuntimeError):
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # a link to what is gone
        return 0


def _whole_model(folder: Path) -> Path:
    """Where its files may be; a snapshot of the hub's cache is links to the blobs beside it."""
    try:
        folder = folder.resolve()
    except (OSError, RuntimeError):
        raise ModelFileError(f"The folder {folder.name!r:.100} is a link that leads nowhere.") from None
    beside = folder.parent.parent
    return beside if folder.parent.name == "snapshots" and beside.name.startswith("models--") else folder


def checked_config(folder: Path, names: list[str]) -> dict[str, Any]:
    """config.json, or nothing where there is none. Raises `ModelFileError` for what is never done here."""
    if "adapter_config.json" in names:
        raise ModelFileError(
            "This folder holds an adapter to another model (adapter_config.json); merge the two with merge_and_unload, and "
            "save the whole with save_pretrained."
        )
    config = read_object(folder / "config.json") if "config.json" in names else {}
    tokenizer = read_object(folder / "tokenizer_config.json") if "tokenizer_config.json" in names else {}
    for part in (config, *config.values()):  # a model of pictures and text has a configuration for each
        _check_no_code("config.json", part)
    _check_no_code("tokenizer_config.json", tokenizer)
    if named := config.get("transformers_weights"):
        raise ModelFileError(
            f"config.json names {str(named)[:60]!r} under transformers_weights, and other files than those that are looked at "
            "here are not read; name the weights model.safetensors and remove the entry."
        )
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise ModelFileError(
            f"The weights are quantised with {str(method or 'a method of its own')[:40]!r}, which is not read here; take the "
            "model's float weights, or a GGUF file of it."
        )
    return config


def _check_no_code(file: str, config: Any) -> None:
    if isinstance(config, Mapping) and (own := config.get("auto_map")):
        first = next(iter(own.values()), "") if isinstance(own, Mapping) else own
        raise ModelFileError(
            f"This model brings its own code ({file} names {str(first)[:60]!r} under auto_map), and no code of a model is "
            "run here; take a model that the package transformers knows by itself."
        )
