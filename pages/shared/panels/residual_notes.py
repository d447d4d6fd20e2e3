"""What to notice in the residual stream: when each output is decided, who adds the most, and what a lens cannot see."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from pages.shared.layout import run_title, what_to_notice
from pages.shared.panels.lens import when_decided


def residual_notes(frames: Mapping[str, pd.DataFrame], parts: pd.DataFrame, position: int) -> None:
    """The notes on the `lens` frames of all runs, and on the `attribution` parts of the output at `position`."""
    best = parts[parts["kind"] != "bias"].nlargest(1, "contribution").iloc[0]
    worst = parts.nsmallest(1, "contribution").iloc[0]
    against = f" and **{worst['part']}** works against it the most ({_signed(worst['contribution'])})"
    what_to_notice(
        [
            *(
                when_decided(frame, "" if len(frames) == 1 else f"{run_title(name)}: ")
                for name, frame in frames.items()
            ),
            f"At position {position}, **{best['part']}** adds the most ({_signed(best['contribution'])})"
            + (against if worst["contribution"] < 0 else "")
            + ". Silence that part on the Attention or Feed-forward screen and come back: its bar goes, and others may "
            "move, because later layers read what it wrote.",
            "A lens can be blind: early layers may hold the answer in a direction that the unembedding does not read. "
            "A wrong token in an early row means “not yet written in the output’s language”, not “not yet known”.",
        ]
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
