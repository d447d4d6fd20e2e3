"""Training tasks: sampling, vocabularies, right answers, and scoring."""

from xformer.tasks.batch import Batch, Score, score
from xformer.tasks.task import Task

__all__ = ["Batch", "Score", "Task", "score"]
