"""A step of a training as a figure: true vectors with every token, weight and verdict that the player shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import xformer
from tests.viz.drawn_file import Mark, marks, pdf_words, words
from xformer import edits, viz
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.viz import theme, timeline
from xformer.viz.export import pdf_of, svg
from xformer.viz.packing import LEVELS, MASKED, NAN
from xformer.viz.timeline import film_frame, head_to_enlarge, layers_of, of_input, pack_film


def test_a_still_has_a_cell_a_weight_in_the_colour_of_the_scale() -> None:
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 9")
    drawn = svg([viz.film_still({0: reading, 700: reading}, step=5, head=(1, 0))], caption="reverse-small\nrun 1")
    assert "<image" not in drawn
    found = Counter(words(drawn))
    wanted = ["reads", "says", "layer 2 · head 1", "step 0 of 700", "query: who looks →", "reverse-small", "run 1"]
    assert not Counter([*wanted, *reading.tokens * 3]) - found  # read, and on both axes
    assert found["✓"] == sum(reading.right) > 0
    colours = theme.resample(theme.sequential(False), LEVELS + 1)
    patterns = [pattern[0].numpy(force=True) for pattern in reading.trace.patterns().values()]
    codes = [*patterns[1][0].ravel(), *(weight for pattern in patterns for weight in pattern.ravel())]
    cells = re.findall(r'fill="(#\w{6})" stroke="none" stroke-width="0"', drawn)
    at = {colour: code for code, colour in reversed(list(enumerate(colours)))}
    assert sorted(at[cell] / LEVELS for cell in cells) == pytest.approx(sorted(map(float, codes)), abs=0.02)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_still_frames_the_head_it_enlarges_and_greys_what_is_masked(dark: bool) -> None:
    reading = xformer.read("checkpoints/reverse-decoder", "3 7 12")
    drawn = svg([viz.film_still({700: reading}, head=(0, 1), dark=dark)], dark=dark)
    assert len(re.findall(rf'stroke="{theme.head_hue(1, dark)}" stroke-width="3"', drawn)) == 1
    n, heads = len(reading.tokens), reading["decoder.0.attn.pattern"].shape[1]
    masked = (1 + len(reading.trace.patterns()) * heads) * n * (n - 1) // 2
    assert drawn.count(f'fill="{theme.pick(theme.MASKED, dark)}"') == masked


def test_a_still_of_no_film_or_no_such_head_says_what_works() -> None:
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 9")
    with pytest.raises(InputError, match=r"at least one frame, got none; for example \{700: reading\}"):
        viz.film_still({})
    with pytest.raises(InputError, match=r"got head 9 of layer 0; for example head=\(0, 0\)"):
        viz.film_still({700: reading}, head=(0, 9))


def test_many_heads_are_pooled_and_the_largest_weight_stands_for_its_block() -> None:
    codes = np.zeros((6, 6), np.uint8)
    codes[3, 4], codes[:2, :2], codes[5, 0] = 200, MASKED, NAN
    small = timeline._pooled(codes, 3)
    assert small.tolist() == [[MASKED, 0, 0], [0, 0, 200], [NAN, 0, 0]]


@pytest.fixture(scope="module")
def untrained() -> Reading:
    """Another run of the same input, for an earlier step."""
    return xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edits.zero_positions()])


@pytest.fixture(scope="module")
def trained() -> Reading:
    return xformer.read("checkpoints/reverse", "3 7 12 9")


def film(frames: dict[int, Reading], **more: Any) -> bytes:
    """What the player of a run is sent, with the curve and the marks of a run."""
    made = [film_frame(reading, step) for step, reading in frames.items()]
    reading = next(iter(frames.values()))
    task: Any = reading.subject.task  # type: ignore[attr-defined]
    layers = layers_of(task, reading.example, made)
    values = {
        "steps": 1000, "exact": [(0, 0.0), (400, 0.25), (1000, 1.0)], "marks": [(500, "a head passes 0.5")],
        "best": head_to_enlarge(layers, made[-1]), "live": False, "told": (1, None),
    }  # fmt: skip
    return pack_film(layers, made, **of_input(task, reading.example), **(values | more))


def cells(found: Sequence[Mark], rows: int, cols: int) -> list[np.ndarray]:
    """The codes of every head, the large one first, as they lie: [row, col] from the upper left corner."""
    codes = {colour: code for code, colour in reversed(list(enumerate(timeline.scale(False))))}
    drawn = [mark for mark in found if mark.look.get("stroke-width") == "0"]
    heads = [drawn[at : at + rows * cols] for at in range(0, len(drawn), rows * cols)]
    lying = [sorted(head, key=lambda mark: (round(mark.box[1]), mark.box[0])) for head in heads]
    return [np.array([codes[mark.look["fill"]] for mark in head]).reshape(rows, cols) for head in lying]


@pytest.mark.parametrize("step", [0, 699, 700, None])
def test_a_still_is_of_the_last_frame_at_its_step_each_weight_in_its_place(
    untrained: Reading, trained: Reading, step: int | None
) -> None:
    found = marks(svg([viz.film_still({0: untrained, 700: trained}, step=step, head=(1, 0))]))
    reading = untrained if step in (0, 699) else trained
    patterns = [pattern[0].numpy(force=True) for pattern in reading.trace.patterns().values()]  # [head, query, key]
    large, *small = cells(found, *patterns[0].shape[1:])
    np.testing.assert_allclose(large / LEVELS, patterns[1][0], atol=0.01)
    np.testing.assert_allclose(np.stack(small) / LEVELS, np.concatenate(patterns), atol=0.01)
    assert f"step {0 if step in (0, 699) else 700} of 700" in [mark.text for mark in found]
    bars = [mark.box[2] - mark.box[0] for mark in found if mark.points and round(mark.box[3] - mark.box[1], 3) == 4]
    chips = [bar for bar in bars if bar > 1.5]  # the others are the ticks of the frames
    assert np.array(chips) / max(chips) == pytest.approx(
        np.array(reading.probability) / max(reading.probability), abs=1e-3
    )
    assert [mark.text for mark in found if mark.text and mark.text in "✓✗"] == [
        "✓" if ok else "✗" for ok in reading.right
    ]


def test_queries_go_down_and_keys_across() -> None:
    reading = xformer.read("checkpoints/reverse-decoder", "3 7 12")
    found = marks(svg([viz.film_still({700: reading}, head=(0, 1))]))
    n = len(reading.tokens)
    large = cells(found, n, n)[0]
    assert np.array_equal(
        large == timeline.scale(False).index(theme.pick(theme.MASKED, False)), np.triu(np.ones((n, n)), 1)
    )
    assert np.abs(large / LEVELS - reading["decoder.0.attn.pattern"][0, 1].numpy())[np.tril_indices(n)].max() < 0.01
    pair = xformer.read("checkpoints/reverse-seq2seq", "3 7 12 9")
    layer = next(at for at, site in enumerate(pair.attention) if "cross" in site.path)
    found = marks(svg([viz.film_still({700: pair}, head=(layer, 0))]))
    [across] = [mark.points[0] for mark in found if mark.text.startswith("key:")]
    [down] = [mark.points[0] for mark in found if mark.text.startswith("query:")]
    inside = [
        mark for mark in found if mark.text and across[1] < mark.points[0][1] < down[1] and mark.points[0][0] < 380
    ]
    keys = [mark.text for mark in inside if mark.look["text-anchor"] == "middle"]
    queries = [mark.text for mark in inside if mark.look["text-anchor"] == "end"]
    assert set(pair.tokens) <= set(keys)
    assert {"start"} <= set(queries)
    assert "start" not in keys


def test_the_title_says_the_score_of_the_head_and_the_star_stands_on_the_best(
    untrained: Reading, trained: Reading
) -> None:
    scores = [[round(score, 4) for score in heads] for heads in film_frame(trained, 0).scores.values()]
    every = [(score, at, head) for at, heads in enumerate(scores) for head, score in enumerate(heads)]
    best = max(every, key=lambda one: one[0])  # the first of those
    assert best[0] > timeline.STANDS_OUT
    other = (1, 3)
    assert best[1:] != other
    found = marks(svg([viz.film_still({0: untrained, 700: trained}, head=other)]))
    [title] = [mark.text for mark in found if mark.text.startswith("anti-diagonal: ")]
    assert (
        title
        == f"anti-diagonal: {scores[other[0]][other[1]]:.2f} · ★ layer {best[1] + 1} · head {best[2] + 1}, {best[0]:.2f}"
    )
    [star] = [mark for mark in found if mark.text == "★"]
    frames = [mark for mark in found if mark.look.get("stroke-width") in ("1", "3") and is_square(mark)]
    starred = [at for at, mark in enumerate(frames) if holds(mark, star)]
    heads = [(at, head) for at, heads in enumerate(scores) for head in range(len(heads))]
    assert [heads[at] for at in starred] == [best[1:]]
    assert [heads[at] for at, mark in enumerate(frames) if mark.look["stroke-width"] == "3"] == [other]


def is_square(mark: Mark) -> bool:
    left, top, right, bottom = mark.box
    return mark.look.get("fill") == "none" and right - left == pytest.approx(bottom - top) and left > 380


def holds(mark: Mark, star: Mark) -> bool:
    left, top, right, bottom = mark.box
    (x, y) = star.points[0]
    return left < x < right and top < y < bottom


def test_the_time_line_has_both_curves_the_marks_and_where_one_looks(untrained: Reading, trained: Reading) -> None:
    packed = film({0: untrained, 500: untrained, 1000: trained})
    found = marks(svg([viz.film_still(packed, step=500)], caption="x"))
    [half] = [mark for mark in found if mark.look.get("stroke-dasharray") == "2,3"]
    rules = [
        mark
        for mark in found
        if mark.look.get("stroke") == half.look["stroke"] and mark.box[0] == half.box[0] and mark.box[2] == half.box[2]
    ]
    top, _, bottom = sorted(mark.box[1] for mark in rules)
    left, right = half.box[0], half.box[2]

    def at(step: float, value: float) -> tuple[float, float]:
        return left + (right - left) * step / 1000, bottom - (bottom - top) * value

    scores = [
        max(score for heads in film_frame(one, 0).scores.values() for score in heads) for one in (untrained, trained)
    ]
    curves = {1: [(0, 0.0), (400, 0.25), (1000, 1.0)], 0: [(0, scores[0]), (500, scores[0]), (1000, scores[1])]}
    for hue, values in curves.items():
        [line] = [
            mark for mark in found if mark.look.get("stroke") == theme.head_hue(hue, False) and len(mark.points) == 3
        ]
        assert np.array(line.points) == pytest.approx(np.array([at(*value) for value in values]), abs=0.1)
    said = [mark.text for mark in found]
    assert {"exact match", "best anti-diagonal score", "a head passes 0.5", "1,000"} <= set(said)
    primary = theme.pick(theme.PRIMARY, False)
    [hand] = [mark for mark in found if mark.look.get("stroke") == primary]
    assert hand.middle[0] == pytest.approx(at(500, 0)[0])
    [mark] = [mark for mark in found if mark.look.get("stroke-dasharray") == "4,3" and len(mark.points) == 2]
    assert mark.middle[0] == pytest.approx(at(500, 0)[0])


def test_what_is_no_number_is_loud(trained: Reading) -> None:
    packed = film({0: trained})
    broken = packed[:-1] + bytes([NAN])
    drawn = [mark.look.get("fill") for mark in marks(svg([viz.film_still(broken)]))]
    assert drawn.count("#d6006e") >= 1
    assert "#d6006e" not in [mark.look.get("fill") for mark in marks(svg([viz.film_still(packed)]))]


def test_a_pdf_of_a_still_has_every_word_as_text_and_no_raster(trained: Reading) -> None:
    drawn = svg([viz.film_still({700: trained})], caption="run 1: reverse-small")
    assert pdf_words(pdf_of(drawn)) == "".join(words(drawn)).replace(" ", "")
