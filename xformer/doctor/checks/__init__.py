"""The checks of the model doctor. Each module registers its checks on import; they run in the order of these imports."""

from xformer.doctor.checks import repeated as _repeated  # isort: skip
from xformer.doctor.checks import rows as _rows  # isort: skip
from xformer.doctor.checks import positions as _positions  # isort: skip
from xformer.doctor.checks import attention as _attention  # isort: skip
from xformer.doctor.checks import formula as _formula  # isort: skip
from xformer.doctor.checks import loss as _loss  # isort: skip
from xformer.doctor.checks import training as _training  # isort: skip
from xformer.doctor.checks import reference as _reference  # isort: skip

__all__ = ["_attention", "_formula", "_loss", "_positions", "_reference", "_repeated", "_rows", "_training"]
