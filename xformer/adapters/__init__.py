"""What can be read: the protocol that every picture relies on, and the kinds of model that answer to it."""

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.bare import BareModel
from xformer.adapters.input import Input
from xformer.adapters.own import own_model, own_task_model
from xformer.adapters.task_model import TaskModel

__all__ = ["BareModel", "Input", "ModelAdapter", "TaskModel", "own_model", "own_task_model"]
