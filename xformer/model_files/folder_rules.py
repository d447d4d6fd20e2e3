"""What no folder of a model may ask for: files from elsewhere, code of its own, another model to be fetched."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xformer.errors import ModelFileError
from xformer.model_files.guarded_json import read_object

MOST_FILES = 2_000
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
        if (folder / name).is_symlink() and not (folder / name).resolve().is_relative_to(inside):
            raise ModelFileError(
                f"{name!r:.100} is a link that leads out of the model's folder; put the file itself there."
            )
    return names


def _whole_model(folder: Path) -> Path:
    """Where its files may be; a snapshot of the hub's cache is links to the blobs beside it."""
    folder = folder.resolve()
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
    _check_no_code("config.json", config)
    if "tokenizer_config.json" in names:
        _check_no_code("tokenizer_config.json", read_object(folder / "tokenizer_config.json"))
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise ModelFileError(
            f"The weights are quantised with {str(method or 'a method of its own')[:40]!r}, which is not read here; take the "
            "model's float weights, or a GGUF file of it."
        )
    return config


def _check_no_code(file: str, config: Mapping[str, Any]) -> None:
    if own := config.get("auto_map"):
        first = next(iter(own.values()), "") if isinstance(own, Mapping) else own
        raise ModelFileError(
            f"This model brings its own code ({file} names {str(first)[:60]!r} under auto_map), and no code of a model is "
            "run here; take a model that the package transformers knows by itself."
        )
