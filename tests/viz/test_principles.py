"""Charts of the attention computation, read back from their specifications."""

from __future__ import annotations

from tests.viz.drawn_file import datasets, ends_of
from xformer import viz
from xformer.analysis.principles import AFTER, BEFORE, ZERO, Sentence
from xformer.viz import theme

SENTENCE = Sentence("the cat saw the dog", d=4)


def test_weights_run_from_0_to_1_and_masked_cells_are_grey() -> None:
    mixed = SENTENCE.attention(mask=BEFORE)
    for which, written in (("scores", "−∞"), ("weights", "0.00")):
        chart = viz.matrix(mixed, what=which)
        [rows] = datasets(chart)
        assert [row["hidden"] for row in rows] == [at % 5 > at // 5 for at in range(25)]
        assert rows[1]["shown"] == written
    assert ends_of(chart) == (0.0, 1.0)
    hidden_layer = chart.to_dict(validate=False)["layer"][1]
    assert hidden_layer["mark"]["color"] == theme.MASKED
    assert hidden_layer["transform"] == [{"filter": "datum.hidden"}]
    hidden = {
        mask: sum(row["hidden"] for row in datasets(viz.matrix(SENTENCE.attention(mask=mask), what="weights"))[0])
        for mask in (AFTER, ZERO)
    }
    assert hidden == {AFTER: 10, ZERO: 0}  # setting a score to 0 masks nothing
