"""The interface that every analysis and figure relies on, and the adapters of our own models."""

from xformer.adapters.adapter import Input, ModelAdapter
from xformer.adapters.own_models import BareModel, TaskModel, own_model, own_task_model

__all__ = ["BareModel", "Input", "ModelAdapter", "TaskModel", "own_model", "own_task_model"]
