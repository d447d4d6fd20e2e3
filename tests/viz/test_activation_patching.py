"""Bars of activation patching have the numbers of their table."""

from __future__ import annotations

from tests.analysis.duel import SOURCE, variant_of
from tests.viz.drawn_file import all_rows as rows
from tests.viz.test_generation import RUNS, VARIANTS
from xformer import analysis, viz
from xformer.analysis.generation import decode_steps, first_divergence
from xformer.edits import zero_positions
from xformer.viz import theme

CHANGED = variant_of("changed", VARIANTS[0].model, VARIANTS[0].task, (zero_positions(),))
TWINS = [RUNS[0], decode_steps(CHANGED, SOURCE)]
CHANGES_AT = first_divergence(TWINS)
assert CHANGES_AT is not None
PATCHED = [one[CHANGES_AT] for one in TWINS]


def test_patching_bars_are_sorted_in_the_hues_of_their_heads() -> None:
    both = analysis.patching(PATCHED)
    frame = both[both["source"] == PATCHED[0].adapter.name]
    shown = [row for row in rows(viz.patching(PATCHED)) if "part" in row]
    assert [row["restored"] for row in shown] == frame["restored"].head(20).tolist()
    assert all(row["hue"] == theme.head_hue(row["head"] - 1) for row in shown if row["head"])
    assert ["⇒" in row["text"] for row in shown] == [row["turns"] for row in shown]
    assert any(row["turns"] for row in shown)
    there = [row for row in rows(viz.patching(PATCHED, out_of=1, table=both)) if "part" in row]
    assert {row["source"] for row in there} == {PATCHED[1].adapter.name}
