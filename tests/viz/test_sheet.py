"""A sheet draws what lies on it: where it was put, in the order of its levels, in the looks that tell marks apart."""

from __future__ import annotations

import pytest

from tests.viz.drawn_file import Mark, marks
from xformer.viz.charts import Sheet
from xformer.viz.export import svg


def drawn(sheet: Sheet) -> list[Mark]:
    """The marks of a sheet of 200 × 100, as far from its corner as they were put."""
    found = marks(svg([sheet.chart(200, 100)]))
    [ground] = [mark for mark in found if mark.look.get("fill") == "#010101"]
    left, top, _, _ = ground.box
    return [
        Mark(mark.look, [(x - left, y - top) for x, y in mark.points], mark.text)
        for mark in found
        if mark is not ground
    ]


@pytest.fixture
def sheet() -> Sheet:
    sheet = Sheet()
    sheet.box(0, 0, 200, 100, "#010101", level=-9)
    return sheet


def test_marks_lie_where_they_were_put(sheet: Sheet) -> None:
    sheet.box(20, 10, 40, 30, "#aa0000")
    sheet.line([(90, 80), (50, 20), (70, 60)], "#00aa00", 3)
    sheet.dot(150, 70, 5, "#0000aa")
    box, line, dot = drawn(sheet)
    assert box.box == (20, 10, 60, 40)
    assert line.points == [(90, 80), (50, 20), (70, 60)], "in the order in which they were given"
    assert dot.box == pytest.approx((145, 65, 155, 75), abs=0.01)


def test_a_higher_level_covers_a_lower_one_and_in_one_words_cover_lines_and_lines_boxes(sheet: Sheet) -> None:
    for level in (2, -1):
        sheet.words(0, 9, f"words {level}", "#000000", level=level)
        sheet.line([(0, 0), (level + 5, 0)], "#00aa00", level=level)
        sheet.box(0, 0, 9 + level, 9, "#aa0000", level=level)
    order = [mark.text or round(mark.box[2]) for mark in drawn(sheet)]
    assert order == [8, 4, "words -1", 11, 7, "words 2"]


def test_two_lines_are_two_and_looks_tell_them_apart(sheet: Sheet) -> None:
    sheet.line([(0, 0), (9, 9)], "#00aa00")
    sheet.line([(20, 0), (29, 9)], "#00aa00")
    sheet.line([(40, 0), (49, 9)], "#00aa00", dash="4 3")
    sheet.box(0, 0, 9, 9, "#aa0000", opacity=0.5)
    sheet.words(0, 50, "bold", "#000000", bold=True)
    sheet.words(0, 70, "up", "#000000", upwards=True)
    box, *lines, bold, up = drawn(sheet)
    assert [line.box[0] for line in lines] == [0, 20, 40]
    assert [line.look.get("stroke-dasharray") for line in lines] == [None, None, "4,3"]
    assert box.look["opacity"] == "0.5"
    assert (bold.look["font-weight"], up.look["font-weight"]) == ("bold", "normal")
    assert "rotate(-90)" in up.look["transform"] or "rotate(270)" in up.look["transform"]


def test_a_chip_says_its_token_its_verdict_and_how_likely_it_was(sheet: Sheet) -> None:
    sheet.chip(10, 20, 54, "seven", "wrong", share=0.25)
    sheet.chip(100, 20, 54, "7", "right", share=1.0)
    found = drawn(sheet)
    wrong, right = [next(mark for mark in found if mark.text == text) for text in ("seven", "7")]
    assert (wrong.middle[0], right.middle[0]) == (37, 127)
    assert (wrong.look["font-weight"], right.look["font-weight"]) == ("bold", "normal")
    dashes = {mark.look["stroke"]: mark.look.get("stroke-dasharray") for mark in found if len(mark.points) > 8}
    assert dashes["#d55e00"] == "4,3", "whoever sees no colours sees it broken"
    assert [value for hue, value in dashes.items() if hue != "#d55e00"] == [None]
    assert [mark.text for mark in found if mark.text in "✓✗" and mark.text] == ["✗", "✓"]
    bars = [mark.box[2] - mark.box[0] for mark in found if mark.points and round(mark.box[3] - mark.box[1], 3) == 4]
    assert bars == pytest.approx([12, 48])
