"""Callbacks for training loops outside xformer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.integrations.attention_health import AttentionHealth as AttentionHealth
    from xformer.integrations.health_record import HealthRecord as HealthRecord
    from xformer.integrations.trackers import MLflowTracker as MLflowTracker
    from xformer.integrations.trackers import TensorBoardTracker as TensorBoardTracker
    from xformer.integrations.trackers import Tracker as Tracker
    from xformer.integrations.trackers import TrackioTracker as TrackioTracker
    from xformer.integrations.trackers import WandbTracker as WandbTracker
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
