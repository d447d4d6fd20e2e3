"""The lanes of Compare as a figure: true vectors with every token, verdict, curve and parting of the ruler on the screen."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.analysis.duel import SOURCE, contender_of
from tests.viz.drawn_file import Mark, marks, pdf_words, words
from tests.viz.test_comparison import CONTENDERS, ROLLOUTS, STEP
from tests.viz.test_comparison import rows as rows_of
from xformer import viz
from xformer.analysis.generation import decode_steps, divergence_by_step, first_divergence, predictions_by_step
from xformer.errors import InputError
from xformer.viz import generation, theme
from xformer.viz.charts import mix
from xformer.viz.export import pdf_of, svg
from xformer.viz.packing import visible

PAIR = ROLLOUTS[:2]


def column_of(found: list[Mark], step: int) -> float:
    """The middle of a step's column: where its number stands."""
    top = min(mark.points[0][1] for mark in found if mark.text == "step")
    return next(mark.points[0][0] for mark in found if mark.text == str(step) and mark.points[0][1] == top)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_lanes_have_every_token_its_verdict_and_its_probability(dark: bool) -> None:
    chart = viz.step_lanes(PAIR, step=1, dark=dark)
    drawn, rows = svg([chart], caption="A beside B", dark=dark), rows_of(chart)
    assert "<image" not in drawn
    said = [(visible(r.labels[token]), token == r.answer[at]) for r in PAIR for at, token in enumerate(r.predicted)]
    found, wrong = Counter(words(drawn)), sum(not right for _, right in said)
    assert found["✗"] == wrong > 0
    assert found["✓"] == len(said) - wrong
    steps = max(map(len, PAIR))
    assert (
        not Counter([*(token for token, _ in said), *map(str, range(steps)), "A beside B", "first difference"]) - found
    )
    ground = theme.pick(theme.BACKGROUND, dark)
    assert drawn.count(f'fill="{mix(ground, "#d55e00", 0.18)}"') == wrong
    table = predictions_by_step(PAIR)
    for hue, run in zip(theme.model_hues(2, dark), PAIR, strict=True):  # a bar is as long as the probability
        wanted = table.loc[table["model"] == run.name, "probability"].to_numpy()
        bars = [row["x2"] - row["x"] for row in rows if row.get("fill") == hue and row.get("y2", 0) - row["y"] == 4]
        assert bars == pytest.approx(max(bars) / max(wanted) * wanted, abs=0.01)


def test_the_step_is_framed_and_the_first_parting_stands_where_it_is() -> None:
    rows = rows_of(viz.step_lanes(PAIR, step=2))
    places = {row["text"]: row["x"] for row in rows if "text" in row and row["y"] == 30}
    [frame] = [row for row in rows if row.get("thick") == 1.5 and "x2" in row]
    assert (frame["x"] + frame["x2"]) / 2 == pytest.approx(places["2"])
    assert first_divergence(PAIR) == STEP
    rule = next(row["x"] for row in rows if row.get("y") == 4)
    assert rule == pytest.approx(places[str(STEP)] - (frame["x2"] - frame["x"]) / 2)


def test_a_step_that_nobody_takes_is_refused() -> None:
    with pytest.raises(InputError, match=r"The steps are 0 to \d+, got 99; for example step=0"):
        viz.step_lanes(PAIR, step=99)


def test_three_players_have_a_curve_of_each_pair() -> None:
    found = words(svg([viz.step_lanes(ROLLOUTS)]))
    assert "input" in found
    assert sum("‖" in word for word in found) == 3


def test_every_lane_has_its_name_and_every_token_stands_in_the_column_of_its_step() -> None:
    found = marks(svg([viz.step_lanes(PAIR, step=1)]))
    steps = max(map(len, PAIR))
    columns = [round(column_of(found, step)) for step in range(steps)]

    def lane(name: str) -> list[str]:
        [named] = [mark for mark in found if mark.text == name]
        beside = [
            mark for mark in found
            if mark.text and mark.text not in "✓✗" and abs(mark.points[0][1] - named.points[0][1]) < 6
        ]  # fmt: skip
        return [mark.text for x in columns for mark in beside if round(mark.points[0][0]) == x]

    first = PAIR[0]
    assert lane("input") == [first.labels[token] for token in first.example.source]
    assert lane("right answer") == [first.labels[token] for token in first.answer]
    for run in PAIR:
        assert lane(run.name) == [visible(run.labels[token]) for token in run.predicted]


def test_the_curves_are_the_numbers_of_the_tables_on_the_axes_they_stand_on() -> None:
    found = marks(svg([viz.step_lanes(ROLLOUTS, step=1)]))
    entropy, kl = predictions_by_step(ROLLOUTS), divergence_by_step(ROLLOUTS)
    right = min(mark.points[0][0] for mark in found if mark.text == "0") + 20  # what is left of the columns is no step
    ends = [mark for mark in found if mark.text and mark.points[0][0] < right and mark.look.get("text-anchor") == "end"]
    rules = sorted(
        {mark.box[1] for mark in found if mark.look.get("stroke-width") == "1" and mark.box[1] == mark.box[3]}
    )
    assert [mark.text for mark in ends][1::2] == ["0", "0"]
    curves = [(entropy, "model", "entropy"), (kl, "pair", "kl")]
    hues = [theme.model_hues(3, False), [theme.pick(hue, False) for hue in theme.HEAD_HUES[4:7]]]
    for number, ((table, by, column), inks) in enumerate(zip(curves, hues, strict=True)):
        top, bottom = rules[2 * number : 2 * number + 2]
        most = table[column].max()
        assert float(ends[2 * number].text) == pytest.approx(most, rel=0.05)
        for (_, group), ink in zip(table.groupby(by, sort=False), inks, strict=True):
            values = group[column].to_numpy()
            dots = [mark.middle for mark in found if mark.look.get("fill") == ink and is_dot(mark)]
            assert [x for x, _ in dots] == pytest.approx([column_of(found, step) for step in range(len(values))])
            assert [(bottom - y) / (bottom - top) for _, y in dots] == pytest.approx(values / most, abs=1e-3)
            [line] = [mark for mark in found if mark.look.get("stroke") == ink]
            assert np.array(line.points) == pytest.approx(np.array(dots), abs=1e-3)


def is_dot(mark: Mark) -> bool:
    return len(mark.points) == 2


def test_pairs_are_told_apart_by_their_dashes_and_named_in_their_colour() -> None:
    models = zip(("A · one", "B · other", "C · third"), CONTENDERS, strict=True)
    runs = [decode_steps(contender_of(name, one.model, one.task), SOURCE) for name, one in models]
    found = marks(svg([viz.step_lanes(runs)]))
    names = {mark.text: mark.look["fill"] for mark in found if "‖" in mark.text}
    assert list(names) == ["A‖B", "A‖C", "B‖C"]
    dashes = [
        mark.look.get("stroke-dasharray") for ink in names.values() for mark in found if mark.look.get("stroke") == ink
    ]
    assert len(names) == len(set(names.values())) == len(set(dashes)) == 3


def test_what_is_infinitely_far_apart_is_said_and_no_curve_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    data = generation.pack_steps(PAIR, k=1)
    kl = data["pairs"][0]["kl"]
    kl[2] = None  # as it is packed where a token is impossible to one of them
    monkeypatch.setattr(generation, "pack_steps", lambda runs, k: data)
    found = marks(svg([viz.step_lanes(PAIR)]))
    [sign] = [mark for mark in found if mark.text == "∞"]
    assert sign.points[0][0] == pytest.approx(column_of(found, 2))
    curve = [line for line in found if line.look.get("stroke-width") == "2.5"]
    assert [len(line.points) for line in curve] == [2, len(kl) - 3]


def test_the_ruler_shows_the_step_and_the_parting_and_behind_it_is_grey() -> None:
    found = marks(svg([viz.step_lanes(PAIR, step=2)]))
    ink, primary = theme.pick(theme.TEXT, False), theme.pick(theme.PRIMARY, False)
    [thumb] = [mark for mark in found if mark.look.get("fill") == primary]
    assert thumb.middle[0] == pytest.approx(column_of(found, 2))
    [long] = [mark for mark in found if mark.look.get("stroke") == ink and mark.look["stroke-width"] == "4"]
    assert STEP is not None
    assert long.middle[0] == pytest.approx(column_of(found, STEP))
    behind = divergence_by_step(PAIR)["same_context"].tolist().index(False)
    [grey] = [mark for mark in found if mark.look.get("fill") == theme.pick(theme.MASKED, False)]
    width = column_of(found, 1) - column_of(found, 0)
    assert grey.box[0] == pytest.approx(column_of(found, behind) - width / 2)
    assert grey.box[2] == pytest.approx(column_of(found, max(map(len, PAIR)) - 1) + width / 2)
    assert found.index(grey) < min(at for at, mark in enumerate(found) if mark.text), "words stand on it"


def test_a_pdf_has_every_word_of_the_svg_as_text_and_no_raster() -> None:
    drawn = svg([viz.step_lanes(ROLLOUTS)], caption="A (beside) B\nhttp://localhost/compare?a=1")
    assert pdf_words(pdf_of(drawn)) == "".join(words(drawn)).replace(" ", "")
