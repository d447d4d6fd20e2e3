"""What can be read: the protocol that every picture relies on, and the kinds of model that answer to it."""

from xformer.subjects.bare import BareModel
from xformer.subjects.input import Input
from xformer.subjects.own import own_model, own_task_model
from xformer.subjects.subject import Subject
from xformer.subjects.task_model import TaskModel

__all__ = ["BareModel", "Input", "Subject", "TaskModel", "own_model", "own_task_model"]
