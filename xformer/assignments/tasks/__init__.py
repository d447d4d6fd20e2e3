"""The ten tasks, in the order in which they build one GPT."""

from __future__ import annotations

from xformer.assignments.task import AssignmentTask
from xformer.assignments.tasks.attention import ATTENTION, SOFTMAX
from xformer.assignments.tasks.blocks import LAYER_NORM_AND_BLOCK
from xformer.assignments.tasks.decoding import CACHE_AND_DECODING, LOSS
from xformer.assignments.tasks.heads import MULTI_HEAD_ATTENTION, SPLIT_AND_MERGE_HEADS
from xformer.assignments.tasks.masks import CAUSAL_MASK, PADDING_MASK
from xformer.assignments.tasks.positions import POSITIONS

_ORDER = (
    SOFTMAX, ATTENTION, CAUSAL_MASK, PADDING_MASK, SPLIT_AND_MERGE_HEADS, MULTI_HEAD_ATTENTION, POSITIONS,
    LAYER_NORM_AND_BLOCK, LOSS, CACHE_AND_DECODING,
)  # fmt: skip
TASKS: dict[str, AssignmentTask] = {task.name: task for task in _ORDER}
"""The tasks by name."""
