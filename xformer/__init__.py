"""xformer: a transformer one can see through. A run of a model leaves a `Trace`; every picture is made from one.

Each public name is imported when it is first used: a list of runs or a help text need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xformer import edits
    from xformer.checkpoints import Checkpoint, load, save
    from xformer.config import ModelConfig, TaskConfig, TrainConfig
    from xformer.decoding import Sampling, Step, decode
    from xformer.model import Transformer
    from xformer.reading import Reading, read
    from xformer.tasks import Task
    from xformer.trace import Trace, record
    from xformer.training.loop import train
    from xformer.training.progress import Progress
else:  # for those who run it; a type checker would take any name for one that is here
    _HOME = {
        "Checkpoint": "checkpoints",
        "ModelConfig": "config",
        "Progress": "training.progress",
        "Reading": "reading",
        "Sampling": "decoding",
        "Step": "decoding",
        "Task": "tasks",
        "TaskConfig": "config",
        "Trace": "trace",
        "TrainConfig": "config",
        "Transformer": "model",
        "decode": "decoding",
        "load": "checkpoints",
        "read": "reading",
        "record": "trace",
        "save": "checkpoints",
        "train": "training.loop",
    }

    def __getattr__(name: str) -> object:
        """A public name at its first use (PEP 562)."""
        if name == "edits":
            return import_module("xformer.edits")
        if name not in _HOME:
            raise AttributeError(f"module 'xformer' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"xformer.{_HOME[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Checkpoint",
    "ModelConfig",
    "Progress",
    "Reading",
    "Sampling",
    "Step",
    "Task",
    "TaskConfig",
    "Trace",
    "TrainConfig",
    "Transformer",
    "decode",
    "edits",
    "load",
    "read",
    "record",
    "save",
    "train",
]
