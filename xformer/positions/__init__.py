"""Position schemes: how a transformer knows where a token stands. Each is one object in one file, registered in the list below.

Configurations, models, counts, checks, screens and forms read this list; its order is that of the screens.
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
"""Every kind there is, by the name that configurations use."""

__all__ = ["POSITION_KINDS", "PositionKind"]
