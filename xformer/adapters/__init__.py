"""What can be read: the protocol that every picture relies on, and the kinds of model that answer to it."""

from xformer.adapters.adapter import Input, ModelAdapter
from xformer.adapters.own_models import BareModel, TaskModel, own_model, own_task_model

__all__ = ["BareModel", "Input", "ModelAdapter", "TaskModel", "own_model", "own_task_model"]
