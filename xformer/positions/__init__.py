"""Position schemes: how a transformer knows where a token stands. Each is one object, registered in the list below.

Configurations, models, counts, checks, screens and forms read this list; its order is that of the screens.
"""

from xformer.positions.added_vectors import Learned, Mirror, NoPositions, Sinusoidal
from xformer.positions.kind import PositionKind
from xformer.positions.rotary import Rotary
from xformer.positions.score_biases import T5, Alibi

_KINDS = (Sinusoidal(), Learned(), Mirror(), Rotary(), Alibi(), T5(), NoPositions())

POSITION_KINDS: dict[str, PositionKind] = {kind.name: kind for kind in _KINDS}
"""Every kind there is, by the name that configurations use."""

__all__ = ["POSITION_KINDS", "PositionKind"]
