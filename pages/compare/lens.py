"""When each player's answer was decided: the logit lens of all at the deciding position, the layer where two part marked."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.compare.compared import Compared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.differences import lens_divergence
from xformer.errors import InputError
from xformer.reading import Reading


def lens_panel(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """Draw the lens of everyone at the position that decided a step; the rule is where the `two` part."""
    sentence, parts = lens_sentence(comparison, step, [readings[at] for at in two])
    st.markdown(sentence)
    known = "✓ marks the right token, the" if readings[0].has_right_answer else "The"
    line = "; below the line the two differ to the end" if parts else ""
    st.caption(
        "What the stream would say if it stopped there, from the embedding down to the output (the logit lens). "
        f"{known} colour how sure it is{line}."
    )
    shapes: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        points = tuple(table(comparison, analysis.decision_lens, [reading])["point"])
        shapes.setdefault(points, []).append(reading)
    calls = []
    widths = [len(group) + 1 for group in shapes.values()]  # the names of the points take the room of a player
    for place, group in zip(st.columns(widths, gap="medium"), shapes.values(), strict=True):
        pair = tuple(group.index(readings[at]) for at in two if readings[at] in group)
        calls.append(Call(viz.decision_lens, (group,), {"pair": pair} if parts and len(pair) == 2 else {}))
        with place:
            shown(comparison, calls[-1], f"compare_lens_{len(calls) - 1}")
    footer(comparison, "lens", calls, lambda: table(comparison, analysis.decision_lens, readings))


def lens_sentence(comparison: Compared, step: int, two: Sequence[Reading]) -> tuple[str, bool]:
    """Where the two part in the lens, in words, and whether they do."""
    a, b = (reading.subject.name[0] for reading in two)
    both = table(comparison, analysis.decision_lens, two)
    try:
        divergence = lens_divergence(both)
    except InputError as error:
        return escape_markdown(str(error)), False
    if divergence is None:
        return f"In the lens {a} and {b} end in the same likeliest token at {comparison.unit} {step}.", False
    depth, point = divergence
    said = [escape_markdown(str(token)) for token in both.loc[both["depth"] == depth, "token"]]
    return (
        f"At {comparison.unit} {step} the likeliest tokens of {a} and {b} differ to the end from **{point}** on: "
        f"{said[0]} against {said[1]}.",
        True,
    )
