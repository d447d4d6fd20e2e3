"""What a model and a training run are made of: frozen, validated at birth, with a JSON round trip.

Every choice that the paper (Vaswani et al. 2017, "Attention Is All You Need", arXiv:1706.03762) and its descendants make
differently is a field here, under the name the field uses.
"""

from xformer.config.base import Config
from xformer.config.model import DROPOUT_SITES, MAX_INK, DropoutSite, ModelConfig
from xformer.config.training import TaskConfig, TaskName, TrainConfig
from xformer.task_limits import Architecture

__all__ = [
    "DROPOUT_SITES",
    "MAX_INK",
    "Architecture",
    "Config",
    "DropoutSite",
    "ModelConfig",
    "TaskConfig",
    "TaskName",
    "TrainConfig",
]
