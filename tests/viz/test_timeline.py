"""Packed timelines hold every weight of every frame to half a level, and stills draw them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import xformer
from tests.training.tiny import tiny_model, tiny_task
from tests.viz.drawn_file import maps_of, rows_of, spec_of, words
from xformer import edits, viz
from xformer.adapters import TaskModel
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.viz import timeline
from xformer.viz.export import svg
from xformer.viz.packing import LEVELS, MASKED, NAN, header_of
from xformer.viz.timeline import MAGIC, Frame, TimelineLayer, layers_of, of_input, pack_timeline, plane, timeline_frame


def film(frames: Sequence[Frame], layers: Sequence[TimelineLayer], **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "reads": {"reads": ["3", " "]}, "offset": 0, "score": "anti-diagonal", "steps": 70, "exact": [(20, 0.5)],
        "marks": [(40, "here")], "best": (0, 1), "live": False, "target": (2, 40),
    }  # fmt: skip
    return pack_timeline(layers, frames, **(values | changes))


def test_packed_timeline_contains_every_weight() -> None:
    random = np.random.default_rng(0)
    shapes = {"encoder.0.attn": (2, 5, 5), "decoder.0.cross_attn": (3, 7, 5)}
    weights = [{path: random.dirichlet(np.ones(5), shape[:2]) for path, shape in shapes.items()} for _ in range(3)]
    tokens = "abcdefg"
    layers = [TimelineLayer(path, path, n, (*tokens[:rows],), (*tokens[:5],)) for path, (n, rows, _) in shapes.items()]
    frames = [
        Frame(20 * i, {path: plane(w, np.ones((1, 1, 1), bool)) for path, w in step.items()},
              {"decoder.0.cross_attn": [0.1 * i, 0.2, 0.3]}, ("3", "x"), (True, False), (0.25, 0.5))
        for i, step in enumerate(weights)
    ]  # fmt: skip
    packed = film(frames, layers)
    header = header_of(packed, MAGIC)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    body = np.frombuffer(packed, np.uint8)[-3 * size :]
    for i, step in enumerate(weights):
        flat = np.concatenate([w.ravel() for w in step.values()])
        assert np.abs(body[i * size : (i + 1) * size] / LEVELS - flat).max() <= 1.01 / LEVELS
    first, _, last = header["frames"]
    assert (first["step"], last["step"], first["right"]) == (0, 40, [True, False])
    assert last["scores"] == [[], [0.2, 0.2, 0.3]]
    assert [(layer["heads"], layer["rows"], layer["cols"]) for layer in header["layers"]] == list(shapes.values())
    assert (header["target"], header["order"], header["best"], header["steps"]) == (40, 2, [0, 1], 70)
    assert header["reads"] == [["reads", ["3", "·"]]]


def test_masked_and_nan_cells_have_their_own_codes() -> None:
    pattern = np.array([[[0.5, 0.0], [np.nan, 1.0]]])
    codes = plane(pattern, np.array([[[True, False], [True, True]]]))
    assert codes.tolist() == [[[126, MASKED], [NAN, LEVELS]]]


def test_frame_of_another_shape_raises() -> None:
    layer = TimelineLayer("a", "a", 1, ("1", "2"), ("1", "2"))
    frame = Frame(0, {"a": np.zeros((1, 3, 2), np.uint8)}, {}, (), (), ())
    with pytest.raises(ValueError, match=r"are \(1, 2, 2\) in this timeline, got \(1, 3, 2\)"):
        film([frame], [layer])
    with pytest.raises(ValueError, match="begins with"):
        header_of(b"XATT", MAGIC)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_frame_has_the_predictions_patterns_and_scores_of_the_model(architecture: str) -> None:
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task, n_layers=2), torch.Generator().manual_seed(3)).eval()
    example = task.example([3, 1, 4, 1])
    adapter = TaskModel(model, task)
    reading = Reading(adapter, example, adapter.record(example))
    seen = timeline_frame(reading, 40)
    inputs = [example.input_ids] if example.target is None else [example.input_ids, example.target]
    with torch.no_grad():
        logits = model(*inputs)[0]
    wanted = [(i, token) for i, token in enumerate(example.labels[0].tolist()) if token >= 0]
    assert seen.step == 40
    assert list(seen.says) == [adapter.token_labels[int(logits[i].argmax())] for i, _ in wanted]
    assert list(seen.right) == [int(logits[i].argmax()) == token for i, token in wanted]
    assert list(seen.probability) == pytest.approx([logits[i].softmax(-1).max().item() for i, _ in wanted], abs=1e-5)
    for path, codes in seen.planes.items():
        pattern, mask = (reading[f"{path}.{name}"][0].numpy() for name in ("pattern", "mask"))
        assert np.abs(codes / LEVELS - pattern)[mask].max() <= 1.01 / LEVELS  # rounded twice
        assert (codes[~mask] == MASKED).all()
    path = next(reversed(seen.scores))  # for reversal: the share of attention on the mirrored token
    start = 4 if architecture == "decoder" else 0
    by_hand = [sum(float(p[start + i, 3 - i]) for i in range(4)) / 4 for p in reading[f"{path}.pattern"][0]]
    assert seen.scores[path] == pytest.approx(by_hand, abs=1e-6)


@pytest.fixture(scope="module")
def untrained() -> Reading:
    """Another run of the same input, used as an earlier step."""
    return xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edits.zero_positions()])


@pytest.fixture(scope="module")
def trained() -> Reading:
    return xformer.read("checkpoints/reverse", "3 7 12 9")


@pytest.fixture(scope="module")
def still(untrained: Reading, trained: Reading) -> dict[str, Any]:
    return spec_of(viz.timeline_still({0: untrained, 700: trained}, head=(1, 0)))


def test_still_shows_the_last_frame_up_to_its_step(untrained: Reading, trained: Reading, still: dict[str, Any]) -> None:
    earlier = spec_of(viz.timeline_still({0: untrained, 700: trained}, step=699, head=(1, 0)))
    for chart, reading in ((earlier, untrained), (still, trained)):
        patterns = [pattern[0].numpy(force=True) for pattern in reading.trace.patterns().values()]  # [head, query, key]
        large = np.reshape([row["weight"] for row in rows_of(chart, "weight")], patterns[1].shape[1:])
        np.testing.assert_allclose(large, patterns[1][0], atol=0.01)
        np.testing.assert_allclose(np.stack(maps_of(chart)), np.concatenate(patterns), atol=0.02)
        says = [row for row in rows_of(chart, "lane") if row["lane"] == "predicts"]
        assert [row["kind"] for row in says] == ["right" if ok else "wrong" for ok in reading.right]
        assert [row["probability"] for row in says] == pytest.approx(reading.probability, abs=1e-4)
    drawn = svg([still], caption="run 1")
    assert "<image" not in drawn
    assert not Counter(["step 700 of 700", "reads", "predicts", "run 1", *trained.tokens]) - Counter(words(drawn))
    assert "step 0 of 700" in str(earlier)


def test_still_of_an_empty_timeline_or_unknown_head_raises(trained: Reading) -> None:
    with pytest.raises(InputError, match=r"at least one frame, got none; for example \{700: reading\}"):
        viz.timeline_still({})
    with pytest.raises(InputError, match=r"got head 9 of layer 0; for example head=\(0, 0\)"):
        viz.timeline_still({700: trained}, head=(0, 9))


def test_title_has_the_scores_of_the_head_and_of_the_best_one(trained: Reading, still: dict[str, Any]) -> None:
    scores = [[round(score, 4) for score in heads] for heads in timeline_frame(trained, 0).scores.values()]
    score, layer, head = max((score, -at, -head) for at, heads in enumerate(scores) for head, score in enumerate(heads))
    assert score > timeline.STANDS_OUT
    title = f"layer 2 · head 1 · anti-diagonal: {scores[1][0]:.2f} · ★ layer {1 - layer} · head {1 - head}, {score:.2f}"
    assert title in str(still)
    assert "★ best of all heads" in str(spec_of(viz.timeline_still({700: trained})))


def test_still_has_both_curves_the_marks_and_the_shown_step(untrained: Reading, trained: Reading) -> None:
    runs, task = {0: untrained, 500: untrained, 1000: trained}, trained.adapter.task  # type: ignore[attr-defined]
    frames = [timeline_frame(reading, step) for step, reading in runs.items()]
    layers = layers_of(task, trained.example, frames)
    curve, read = [(0, 0.0), (400, 0.25), (1000, 1.0)], of_input(task, trained.example)
    packed = film(frames, layers, steps=1000, exact=curve, marks=[(500, "here")], **read)
    rows = rows_of(spec_of(viz.timeline_still(packed, step=500)), "exact")
    best = [max(max(of) for of in frame.scores.values()) for frame in frames]
    curves = {name: [(row["step"], row[name]) for row in rows if row[name] is not None] for name in ("exact", "best")}
    assert curves["exact"] == curve
    assert [value for _, value in curves["best"]] == pytest.approx(best, abs=1e-4)
    assert {(row["mark"], row["step"]) for row in rows if row["mark"]} == {("shown", 500), ("marked", 500)}
