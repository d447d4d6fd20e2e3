"""How sure the players are: what the ruler draws in the browser, as code and as numbers."""

from __future__ import annotations

from pages.compare.code import footer
from pages.compare.match import Match
from pages.compare.notes import frames


def steps_panel(match: Match, step: int) -> None:
    """The ruler above has drawn it all; here is where it comes from."""
    steps, _ = frames(match)
    lines = [
        "import altair as alt",
        "from xformer.analysis.parting import first_parting, pair_frame, step_frame, top_frame",
        "from xformer.viz.decoding import pairs_chart, steps_chart, top_chart",
        "parting = first_parting(plays)",
        "entropy = steps_chart(step_frame(plays), 'entropy', parting, dark=False)",
        "kl = pairs_chart(pair_frame(plays), 'kl', parting, dark=False)",
        f"bars = top_chart(top_frame(plays, 5, [{step}]), dark=False)",
        "alt.vconcat(entropy, kl, bars).resolve_scale(color='independent', shape='independent', strokeDash='independent')",
    ]
    footer(match, lines, steps, "steps")
