"""Position encodings, one per module, registered in the list below.

Configurations, models, counts, checks, screens and forms read this list; screens show it in this order.
"""

from xformer.positions.alibi import Alibi
from xformer.positions.kind import PositionKind
from xformer.positions.learned import Learned
from xformer.positions.mirror import Mirror
from xformer.positions.none import NoPositions
from xformer.positions.rotary import Rotary
from xformer.positions.sinusoidal import Sinusoidal
from xformer.positions.t5 import T5

_KINDS = (Sinusoidal(), Learned(), Mirror(), Rotary(), Alibi(), T5(), NoPositions())

POSITION_KINDS: dict[str, PositionKind] = {kind.name: kind for kind in _KINDS}
"""All position encodings, by their names in configurations."""

__all__ = ["POSITION_KINDS", "PositionKind"]
