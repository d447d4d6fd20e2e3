"""How sure the players are: what the ruler draws in the browser, as code and as numbers."""

from __future__ import annotations

from pages.compare.comparison import Comparison
from pages.shared.call import Call
from pages.shared.picture import footer, table
from xformer import analysis, viz


def steps_panel(comparison: Comparison, step: int) -> None:
    """The ruler above has drawn it all; here is where it comes from."""
    rollouts = comparison.rollouts()
    calls = [
        Call(viz.predictions_by_step, (rollouts,), {"what": "entropy"}),
        Call(viz.divergence_by_step, (rollouts,)),
        Call(viz.likeliest_tokens, (rollouts,), {"step": step}),
    ]
    footer(comparison, "steps", calls, table(comparison, analysis.predictions_by_step, rollouts))
