"""The bytes of a film hold every weight of every frame, to half a step of its scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from xformer.adapters import TaskModel
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.viz.packing import LEVELS, MASKED, NAN
from xformer.viz.timeline import SIDE, FilmLayer, Frame, film_frame, film_header, pack_film, plane


def film(frames: list[Frame], layers: list[FilmLayer], **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "reads": {"reads": ["3", " "]}, "offset": 0, "score": "anti-diagonal", "steps": 70, "exact": [(20, 0.5)],
        "marks": [(40, "here")], "best": (0, 1), "live": False, "told": (2, 40),
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
    assert (header["told"], header["order"], header["best"], header["steps"]) == (40, 2, [0, 1], 70)
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
