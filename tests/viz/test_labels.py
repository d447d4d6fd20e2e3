"""Labels of a scatter plot: none lies on another, the input's come first, and one without room is left out."""

from __future__ import annotations

import numpy as np
import pytest

from xformer.viz.charts import SIDES, place_labels


def test_a_point_alone_has_its_label_above() -> None:
    assert place_labels(np.array([[1.0, 2.0]]), ["a"], width=300, height=300) == ["above"]


def test_two_close_points_take_different_sides() -> None:
    points = np.array([[0.0, 0.0], [0.02, 0.0], [1.0, 1.0]])
    one, other, far = place_labels(points, ["17", "18", "5"], width=300, height=300)
    assert one != other
    assert {one, other} <= set(SIDES)
    assert far == "above"


def test_what_has_no_room_is_left_out_but_never_the_inputs() -> None:
    points = np.zeros((30, 2)) + np.linspace(0, 1e-3, 30)[:, None]
    points = np.concatenate([points, [[1.0, 1.0]]])
    names = ["long name"] * 31
    sides = place_labels(points, names, width=300, height=300)
    assert sides.count("") >= 26
    first = [index == 29 for index in range(31)]
    assert place_labels(points, names, first=first, width=300, height=300)[29] != ""


@pytest.mark.parametrize("seed", range(3))
def test_no_two_labels_collide(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(80, 2))
    names = [str(index) for index in range(80)]
    sides = place_labels(points, names, width=400, height=300, size=12, gap=7)
    span = np.ptp(points, axis=0)
    at = (points - points.min(axis=0)) / span * [400, -300]
    boxes = []
    for (x, y), name, side in zip(at, names, sides, strict=True):
        wide, high = 12 * 0.62 * len(name), 12 * 1.1
        left, top = {
            "above": (x - wide / 2, y - 7 - high),
            "below": (x - wide / 2, y + 7),
            "right": (x + 7, y - high / 2),
            "left": (x - 7 - wide, y - high / 2),
            "": (np.inf, np.inf),
        }[side]
        boxes.append((left, top, left + wide, top + high))
    drawn = [box for box, side in zip(boxes, sides, strict=True) if side]
    assert 20 < len(drawn) < 80
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3]
