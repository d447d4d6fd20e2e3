"""What can be read: the protocol that every picture relies on, and the kinds of model that answer to it."""

from xformer.subjects.bare import BareModel
from xformer.subjects.own import own_model
from xformer.subjects.subject import Subject
from xformer.subjects.task_model import TaskModel

__all__ = ["BareModel", "Subject", "TaskModel", "own_model"]
