"""xformer: a transformer one can see through. A run of a model leaves a `Trace`; every picture is made from one."""

from xformer import edits
from xformer.config import ModelConfig
from xformer.model import Transformer
from xformer.trace import Trace, record

__all__ = ["ModelConfig", "Trace", "Transformer", "edits", "record"]
