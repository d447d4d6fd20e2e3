"""xformer: a transformer one can see through. A run of a model leaves a `Trace`; every picture is made from one.

Each public name is imported when it is first used: a list of runs or a help text need not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer import analysis, edits, viz
    from xformer.checkpoints import Checkpoint, load, save
    from xformer.config import ModelConfig, TaskConfig, TrainConfig
    from xformer.decoding import Sampling, Step, decode
    from xformer.model import Transformer
    from xformer.reading import Reading, gradients, read
    from xformer.tasks import Task
    from xformer.trace import Trace, record
    from xformer.training.loop import train
    from xformer.training.progress import Progress
    from xformer.training.train_many import sweep, train_many
    from xformer.widgets.attention_view import AttentionView, attention_view
    from xformer.widgets.page import save_html
else:  # for those who run it; a type checker would take any name for one that is here
    __getattr__, __dir__, _ = attach(
        __name__,
        {
            "AttentionView": "widgets.attention_view",
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
            "analysis": "",
            "attention_view": "widgets.attention_view",
            "decode": "decoding",
            "edits": "",
            "gradients": "reading",
            "load": "checkpoints",
            "read": "reading",
            "record": "trace",
            "save": "checkpoints",
            "save_html": "widgets.page",
            "sweep": "training.train_many",
            "train": "training.loop",
            "train_many": "training.train_many",
            "viz": "",
        },
    )

__all__ = [
    "AttentionView",
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
    "analysis",
    "attention_view",
    "decode",
    "edits",
    "gradients",
    "load",
    "read",
    "record",
    "save",
    "save_html",
    "sweep",
    "train",
    "train_many",
    "viz",
]
