"""Foreign models by whatever names them: a folder, a file, a loaded model, any module. Each is opened once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from xformer.errors import InputError
from xformer.subjects.foreign.any_module import AnyModule
from xformer.subjects.foreign.language_model import LanguageModel
from xformer.subjects.foreign.load import open_model
from xformer.subjects.subject import Subject

_KEPT = "_xformer_subject"
"""Under which name an opened module keeps its subject, so that it is taken over once."""


def is_foreign(path: Path) -> bool:
    """Whether a path holds a model in the layout of the Transformers library, or a .gguf file."""
    return path.suffix == ".gguf" or (path / "config.json").is_file() or any(path.glob("*.gguf"))


def opened_from(path: Path) -> Subject:
    """The model in a folder or a .gguf file; the last one stays open."""
    return _opened_from(path.resolve())


@lru_cache(maxsize=1)
def _opened_from(path: Path) -> Subject:
    return open_model(path)


def opened_module(module: nn.Module, inputs: Any, tokenizer: Any) -> Subject:
    """A loaded language model with its tokenizer, or any module with inputs that it is called with."""
    kept = module.__dict__.get(_KEPT)
    by_name = isinstance(inputs, Mapping) or not hasattr(module, "config") or tokenizer is None
    if by_name:
        if isinstance(inputs, str):
            raise InputError("A text is read with a tokenizer; give tokenizer=AutoTokenizer.from_pretrained(…).")
        if isinstance(kept, AnyModule):
            return kept.given(inputs)
        subject: Subject = AnyModule.open(module, inputs, type(module).__name__)
    elif isinstance(kept, LanguageModel):
        return replace(kept, tokenizer=tokenizer)
    else:
        subject = LanguageModel.open(module, tokenizer, type(module).__name__)
    module.__dict__[_KEPT] = subject
    return subject
