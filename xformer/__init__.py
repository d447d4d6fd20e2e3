"""xformer: a transformer one can see through. A run of a model leaves a `Trace`; every picture is made from one."""

from xformer import edits
from xformer.checkpoints import Checkpoint, load, save
from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.decoding import Sampling, Step, decode
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.trace import Trace, record
from xformer.training.loop import train
from xformer.training.progress import Progress

__all__ = [
    "Checkpoint",
    "ModelConfig",
    "Progress",
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
    "record",
    "save",
    "train",
]
