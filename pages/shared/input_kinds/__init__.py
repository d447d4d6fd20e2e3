"""How screens ask for an input and show what a model makes of it: a file a kind, named as the library names the kind."""

from __future__ import annotations

from importlib import import_module

from pages.shared.input_kinds.kind import InputKind
from xformer.adapters import ModelAdapter


def kind_of(subject: ModelAdapter) -> InputKind:
    """What the screens know of the kind of input that a model reads."""
    return import_module(f"pages.shared.input_kinds.{subject.input.kind}").KIND
