"""What is behind a subject, for what only our own models can be asked: their weights layer by layer, and their task."""

from __future__ import annotations

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.task_model import TaskModel
from xformer.errors import UnavailableError
from xformer.model import Transformer


def own_model(subject: ModelAdapter) -> Transformer:
    """Our `Transformer` that a subject runs. Raises `UnavailableError` where it runs another kind of model."""
    model = getattr(subject, "model", None)
    if not isinstance(model, Transformer):
        raise UnavailableError(
            f"This reads the weights of a model of xformer, like 'checkpoints/reverse'; {subject.name!r} is of another kind."
        )
    return model


def own_task_model(subject: ModelAdapter) -> TaskModel:
    """The subject where it is a model of ours with its task. Raises `UnavailableError` where it is not."""
    if not isinstance(subject, TaskModel):
        raise UnavailableError(
            f"This needs a model that was trained here for a task, like 'checkpoints/reverse', and {subject.name!r} is none."
        )
    return subject
