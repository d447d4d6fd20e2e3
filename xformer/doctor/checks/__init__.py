"""The checks of the model doctor. A file registers its checks; they run in the order of these imports."""

from xformer.doctor.checks import future as _future  # isort: skip
from xformer.doctor.checks import repeated as _repeated  # isort: skip
from xformer.doctor.checks import padding as _padding  # isort: skip
from xformer.doctor.checks import sequences as _sequences  # isort: skip
from xformer.doctor.checks import positions as _positions  # isort: skip
from xformer.doctor.checks import attention as _attention  # isort: skip
from xformer.doctor.checks import training as _training  # isort: skip
from xformer.doctor.checks import equations as _equations  # isort: skip

__all__ = ["_attention", "_equations", "_future", "_padding", "_positions", "_repeated", "_sequences", "_training"]
