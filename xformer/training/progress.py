"""The report that a training run makes every few steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from xformer.tasks import Score


@dataclass(frozen=True)
class Progress:
    """One report: the figures since the last report, and a score on held-out examples."""

    step: int
    steps: int
    loss: float
    """Mean training loss since the last report, in nats."""
    held_out: Score
    learning_rate: float
    gradient_norm: float
    """Of the last step, before clipping."""
    seconds: float
    """Time spent in training steps so far, including the parts before a resume."""
    tokens_per_second: float
    scores: dict[str, list[float]] = field(default_factory=dict)
    """The task score of each head, 0 to 1, by the path of its layer; see `Task.head_scores`."""
    note: str = ""
    """A sentence when a run stalls or reaches its target."""
    done: bool = False

    def row(self) -> dict[str, Any]:
        """Return the report as one flat row of a table."""
        row = asdict(self)
        held_out = row.pop("held_out")
        best = max((score for heads in self.scores.values() for score in heads), default=0.0)
        return row | {f"held_out_{name}": value for name, value in held_out.items()} | {"best_head_score": best}
