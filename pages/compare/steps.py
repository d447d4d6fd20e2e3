"""How sure the players are: what the ruler draws in the browser, as code, as numbers and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pages.compare.comparison import Comparison
from pages.shared.call import Call
from pages.shared.picture import footer, table
from xformer import analysis, viz
from xformer.widgets.page import comparison_page


def steps_panel(comparison: Comparison, step: int) -> None:
    """The ruler above has drawn it all; here is where it comes from."""
    rollouts = comparison.rollouts()
    calls = [
        Call(viz.step_lanes, (rollouts,), {"step": step}),
        Call(viz.predictions_by_step, (rollouts,), {"what": "entropy"}),
        Call(viz.divergence_by_step, (rollouts,)),
        Call(viz.likeliest_tokens, (rollouts,), {"step": step}),
    ]
    numbers = table(comparison, analysis.predictions_by_step, rollouts)
    drawn = [calls[0], calls[-1]]  # what stands on the screen: the lanes with their curves, and the likeliest tokens
    footer(comparison, "steps", calls, numbers, page=partial(_standalone, comparison, step), drawn=drawn)


def _standalone(comparison: Comparison, step: int, caption: Sequence[str]) -> str:
    """The ruler as a page of its own, that begins at this step."""
    names = ", ".join(rollout.name for rollout in comparison.rollouts())
    return comparison_page({**comparison.data(), "start": step}, [names, *caption])
