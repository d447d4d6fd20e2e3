"""Charts of the differences of two runs have the numbers of their tables."""

from __future__ import annotations

import pytest

from tests.analysis.duel import SOURCE, random_variant
from tests.viz.drawn_file import all_rows as rows
from tests.viz.test_generation import RUNS, STEP
from xformer import analysis, viz
from xformer.analysis.differences import lens_divergence
from xformer.analysis.generation import decode_steps

READINGS = [one[STEP] for one in RUNS[:2]]


def test_layers_over_different_tokens_are_not_mixed() -> None:
    reading = decode_steps(random_variant("pair", "encoder-decoder"), SOURCE, forced=True)[2]
    frame = analysis.decision_rows([reading])
    with pytest.raises(ValueError, match="one by one"):
        viz.decision_rows([reading])
    cross = frame[frame["layer"].str.endswith("cross_attn")]
    shown = rows(viz.decision_rows([reading], kind_label="cross-attention"))
    assert [row["weight"] for row in shown] == cross["weight"].tolist()
    assert {row["row"] for row in shown} >= {"decoder 1 · cross · head 1", "decoder 2 · cross · mean"}


def test_lens_shows_the_likeliest_tokens_and_where_they_diverge() -> None:
    frame = analysis.decision_lens(READINGS)
    parted = lens_divergence(frame)
    assert parted is not None
    chart = viz.decision_lens(READINGS, pair=(0, 1))
    says = [f"{row['token']} ✓" if row["right"] else row["token"] for row in frame.to_dict("records")]
    assert [row["says"] for row in rows(chart) if "model" in row] == says
    assert [row["point"] for row in rows(chart) if "note" in row] == [parted[1]]
    assert not [row for row in rows(viz.decision_lens(READINGS)) if "note" in row]
