"""External models by whatever names them: a folder, a file, a loaded model, any module."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import open_model
from xformer.errors import InputError


def is_foreign(path: Path) -> bool:
    """Whether a path holds a model in the layout of the Transformers library, or a .gguf file."""
    return path.suffix == ".gguf" or (path / "config.json").is_file() or any(path.glob("*.gguf"))


def opened_from(path: Path) -> ModelAdapter:
    """The model in a folder or a .gguf file; the last one stays open."""
    return _opened_from(path.resolve())


@lru_cache(maxsize=1)
def _opened_from(path: Path) -> ModelAdapter:
    return open_model(path)


def opened_module(module: nn.Module, inputs: Any, tokenizer: Any) -> ModelAdapter:
    """A loaded model of the Transformers library, or any module with inputs that it is called with."""
    if hasattr(module, "config") and hasattr(module, "main_input_name"):
        return HuggingFaceModel.open(module, tokenizer, type(module).__name__)
    if isinstance(inputs, str):
        raise InputError("This module reads tensors, not a text; give what it is called with.")
    return AnyModule.open(module, inputs, type(module).__name__)
