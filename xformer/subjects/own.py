"""The model behind a subject, for what only our own models can be asked: their weights, layer by layer."""

from __future__ import annotations

from xformer.errors import InputError
from xformer.model import Transformer
from xformer.subjects.subject import Subject


def own_model(subject: Subject) -> Transformer:
    """Our `Transformer` that a subject runs. Raises `InputError` where it runs another kind of model."""
    model = getattr(subject, "model", None)
    if not isinstance(model, Transformer):
        raise InputError(
            f"This reads the weights of a model of xformer, like 'checkpoints/reverse', got {subject.name!r}."
        )
    return model
