"""The bytes of a film hold every weight of every frame, to half a step of its scale."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import xformer
from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from tests.viz.drawn_file import Mark, marks, pdf_words, words
from xformer import edits, viz
from xformer.adapters import TaskModel
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.viz import theme, timeline
from xformer.viz.export import pdf_of, svg
from xformer.viz.packing import LEVELS, MASKED, NAN
from xformer.viz.timeline import (
    SIDE,
    FilmLayer,
    Frame,
    film_frame,
    film_header,
    head_to_enlarge,
    layers_of,
    of_input,
    pack_film,
    plane,
)


def film(frames: list[Frame], layers: list[FilmLayer], **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "reads": {"reads": ["3", " "]}, "offset": 0, "score": "anti-diagonal", "steps": 70, "exact": [(20, 0.5)],
        "marks": [(40, "here")], "best": (0, 1), "live": False, "target": (2, 40),
    }  # fmt: skip
    return pack_film(layers, frames, **(values | changes))


def test_every_weight_of_every_frame_is_in_the_bytes() -> None:
    random = np.random.default_rng(0)
    shapes = {"encoder.0.attn": (2, 5, 5), "decoder.0.cross_attn": (3, 7, 5)}
    weights = [
        {path: random.dirichlet(np.ones(shape[2]), shape[:2]) for path, shape in shapes.items()} for _ in range(3)
    ]
    layers = [
        FilmLayer(path, path, shape[0], tuple("abcdefg"[: shape[1]]), tuple("abcde")) for path, shape in shapes.items()
    ]
    frames = [
        Frame(20 * i, {path: plane(w, np.ones((1, 1, 1), bool)) for path, w in step.items()},
              {"decoder.0.cross_attn": [0.1 * i, 0.2, 0.3]}, ("3", "x"), (True, False), (0.25, 0.5))
        for i, step in enumerate(weights)
    ]  # fmt: skip
    packed = film(frames, layers)
    header = film_header(packed)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    body = np.frombuffer(packed, np.uint8)[-3 * size :]
    for i, step in enumerate(weights):
        flat = np.concatenate([w.ravel() for w in step.values()])
        assert np.abs(body[i * size : (i + 1) * size] / LEVELS - flat).max() <= 1.01 / LEVELS
    assert [frame["step"] for frame in header["frames"]] == [0, 20, 40]
    assert header["frames"][2]["scores"] == [[], [0.2, 0.2, 0.3]]
    assert header["frames"][0]["right"] == [True, False]
    assert [(layer["heads"], layer["rows"], layer["cols"]) for layer in header["layers"]] == list(shapes.values())
    assert (header["target"], header["order"], header["best"], header["steps"]) == (40, 2, [0, 1], 70)
    assert header["reads"] == [["reads", ["3", "·"]]]


def test_masked_and_broken_cells_are_no_weights() -> None:
    pattern = np.array([[[0.5, 0.0], [np.nan, 1.0]]])
    codes = plane(pattern, np.array([[[True, False], [True, True]]]))
    assert codes.tolist() == [[[126, MASKED], [NAN, LEVELS]]]


def test_two_heads_with_the_same_weight_have_the_same_code_whatever_their_peaks() -> None:
    codes = plane(np.array([[[0.2, 0.2]], [[0.2, 0.8]]]), np.ones((1, 1, 1), bool))
    assert abs(int(codes[0, 0, 0]) - int(codes[1, 0, 0])) <= 1
    assert codes[1, 0, 1] == round(0.8 * LEVELS)


def test_a_long_input_is_pooled_by_its_maximum() -> None:
    pattern = np.zeros((1, 100, 100))
    pattern[0, 77, 33] = 1.0
    codes = plane(pattern, np.ones((1, 1, 1), bool))
    assert codes.shape == (1, 34, 34)
    assert max(codes.shape) <= SIDE
    assert codes[0, 77 // 3, 33 // 3] == LEVELS
    assert (codes > 0).sum() == 1


def test_a_frame_of_another_shape_is_refused() -> None:
    layer = FilmLayer("a", "a", 1, ("1", "2"), ("1", "2"))
    frame = Frame(0, {"a": np.zeros((1, 3, 2), np.uint8)}, {}, (), (), ())
    with pytest.raises(ValueError, match=r"are \(1, 2, 2\) in this film, got \(1, 3, 2\)"):
        film([frame], [layer])
    with pytest.raises(ValueError, match="begins with"):
        film_header(b"XATT")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_frame_is_what_the_model_does(architecture: str) -> None:
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task, n_layers=2), torch.Generator().manual_seed(3)).eval()
    example = task.example([3, 1, 4, 1])
    subject = TaskModel(model, task)
    reading = Reading(subject, example, subject.record(example))
    seen = film_frame(reading, 40)
    inputs = [example.stream] if example.target is None else [example.stream, example.target]
    with torch.no_grad():
        logits = model(*inputs)[0]
    wanted = [(i, token) for i, token in enumerate(example.labels[0].tolist()) if token >= 0]
    assert seen.step == 40
    assert list(seen.says) == [subject.labels[int(logits[i].argmax())] for i, _ in wanted]
    assert list(seen.right) == [int(logits[i].argmax()) == token for i, token in wanted]
    assert list(seen.probability) == pytest.approx([logits[i].softmax(-1).max().item() for i, _ in wanted], abs=1e-5)
    for path, codes in seen.planes.items():
        pattern, mask = (reading[f"{path}.{name}"][0].numpy() for name in ("pattern", "mask"))
        assert np.abs(codes / LEVELS - pattern)[mask].max() <= 1.01 / LEVELS  # rounded twice
        assert (codes[~mask] == MASKED).all()
    path = next(reversed(seen.scores))  # for reversal, the share of attention on the mirrored token, by hand
    start = 4 if architecture == "decoder" else 0
    by_hand = [sum(float(p[start + i, 3 - i]) for i in range(4)) / 4 for p in reading[f"{path}.pattern"][0]]
    assert seen.scores[path] == pytest.approx(by_hand, abs=1e-6)


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


def stills_film(frames: dict[int, Reading], **more: Any) -> bytes:
    """What the player of a run is sent, with the curve and the marks of a run."""
    made = [film_frame(reading, step) for step, reading in frames.items()]
    reading = next(iter(frames.values()))
    task: Any = reading.subject.task  # type: ignore[attr-defined]
    layers = layers_of(task, reading.example, made)
    values = {
        "steps": 1000, "exact": [(0, 0.0), (400, 0.25), (1000, 1.0)], "marks": [(500, "a head passes 0.5")],
        "best": head_to_enlarge(layers, made[-1]), "live": False, "target": (1, None),
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
    packed = stills_film({0: untrained, 500: untrained, 1000: trained})
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
    packed = stills_film({0: trained})
    broken = packed[:-1] + bytes([NAN])
    drawn = [mark.look.get("fill") for mark in marks(svg([viz.film_still(broken)]))]
    assert drawn.count("#d6006e") >= 1
    assert "#d6006e" not in [mark.look.get("fill") for mark in marks(svg([viz.film_still(packed)]))]


def test_a_pdf_of_a_still_has_every_word_as_text_and_no_raster(trained: Reading) -> None:
    drawn = svg([viz.film_still({700: trained})], caption="run 1: reverse-small")
    assert pdf_words(pdf_of(drawn)) == "".join(words(drawn)).replace(" ", "")
