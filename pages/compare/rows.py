"""Where every player looked when it decided a step: the deciding row of every layer and head."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.compare.compared import Compared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.notebook import heads_from_1
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.differences import ALL_ROWS, deciding_layers, why_incomparable
from xformer.reading import Reading
from xformer.site import Site

MAX_KEYS = 48
"""Keys of a row that are drawn one by one; longer rows are drawn in blocks."""
CLEAREST_HEADS = 12
"""Of more than `ALL_ROWS` heads those that tell most."""


def rows_panel(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """The row that decided, in every layer and head of every player; of many heads those in which the `two` differ."""
    options = {"pair": two, "n_heads": CLEAREST_HEADS, "max_keys": MAX_KEYS}
    st.markdown(_summary(comparison, step, readings, two))
    kinds = list(dict.fromkeys(Site.parse(path).does for one in readings for path in deciding_layers(one)))
    frame = table(comparison, analysis.decision_rows, readings, **options)
    calls = []
    for does in kinds:
        places = [place for _ in range(0, len(readings), 2) for place in st.columns(2, gap="medium")]
        for index, (place, reading) in enumerate(zip(places, readings, strict=False)):
            name = escape_markdown(reading.subject.name)
            with place:
                if does not in {Site.parse(path).does for path in deciding_layers(reading)}:
                    st.caption(f"{name} has no {does} here.")
                    continue
                st.markdown(f"**{name}**" if len(kinds) == 1 else f"**{name}: {does}**")
                calls.append(
                    Call(viz.decision_rows, (readings,), {**options, "show": index, "does": does, "table": frame})
                )
                shown(comparison, calls[-1], f"compare_look_{does}_{index}")
    footer(comparison, "rows", calls, lambda: heads_from_1(frame, no_head="mean"))


def _summary(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> str:
    """What the rows are, and which of them where not all are drawn."""
    what = f"**The row that decided {comparison.unit} {step}**"
    layers = [[one[f"{path}.pattern"].shape[1] for path in deciding_layers(one)] for one in readings]
    if max(sum(n_heads + 1 for n_heads in of_one) for of_one in layers) <= ALL_ROWS:
        return f"{what}, in every layer and head."
    one, other = (readings[at] for at in two)
    which = (
        f"in which {one.subject.name[0]} and {other.subject.name[0]} differ most"
        if why_incomparable(one, other) is None
        else "that look at one key most of all"
    )
    return (
        f"{what}, in the {CLEAREST_HEADS} heads {which}; the CSV has the same rows, "
        "“where they looked” every layer and head."
    )
