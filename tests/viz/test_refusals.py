"""A chart without anything to draw raises one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import xformer
from xformer import viz
from xformer.errors import XformerError
from xformer.reading import Reading


@pytest.mark.parametrize(
    ("model", "draw", "reason"),
    [
        ("reverse-mirror", viz.firing, "reverse-mirror has no feed-forward layers"),
        (
            "reverse",
            lambda reading: viz.lens(reading, positions=[99]),
            r"reads positions \[0, 1, 2, 3, 4\], got \[99\]",
        ),
        ("reverse", viz.patch_cosines, "reads no image that is cut into patches"),
        ("reverse", lambda reading: viz.head_effects(reading, score="induction"), "No head has the score 'induction'"),
    ],
)
def test_a_chart_without_data_is_refused(model: str, draw: Callable[[Reading], object], reason: str) -> None:
    with pytest.raises(XformerError, match=reason):
        draw(xformer.read(f"checkpoints/{model}", "3 7 12 9 1"))
