"""The picture of all heads: of a long input, a click on a head brings that head before the rest of the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pages.attention import heads
from pages.components.attention_view import Selection
from xformer.viz.packing import PatternLayer

FIRST, SECOND = Selection(0, 0), Selection(0, 1)


class Stopped(Exception):  # noqa: N818  what `st.rerun` does
    """The page runs again."""


class Page:
    """A stand-in for Streamlit: what was drawn, and the part of the page that runs alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[tuple[int, int]] = []
        self.part: Any = None
        self.chosen = FIRST
        monkeypatch.setattr(heads, "attention_choice", lambda key, layers: self.chosen)
        monkeypatch.setattr(heads, "attention_view", self._draw)
        monkeypatch.setattr(heads, "SENT_AFTER", 0)
        monkeypatch.setattr(heads, "pattern_layers", lambda reading: reading)  # layers stand for their reading
        streamlit = SimpleNamespace(session_state={}, fragment=self._fragment, rerun=self._again)
        monkeypatch.setattr(heads, "st", streamlit)

    def _draw(self, packed: bytes, *, key: str) -> Selection:
        at = tuple(heads.header_of(packed)["selected"])
        self.drawn.append((at[0], at[1]))
        return self.chosen

    def _fragment(self, part: Any) -> Any:
        def run(*given: Any) -> Any:
            self.part = lambda: part(*given)
            return self.part()

        return run

    def _again(self) -> None:
        raise Stopped


def layers_of(n: int) -> list[PatternLayer]:
    """Two heads over n tokens."""
    pattern = np.full((2, n, n), 1 / n, dtype=np.float32)
    words = tuple(str(i) for i in range(n))
    return [PatternLayer("decoder.0.attn", "Layer 1", pattern, np.ones((1, n, n), dtype=bool), words, words)]


def test_of_a_long_input_a_click_brings_the_head_before_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(monkeypatch)
    layers: Any = layers_of(701)
    assert heads.draw_heads(layers, None) == (FIRST, 2)
    page.chosen = SECOND
    with pytest.raises(Stopped):  # the part alone: the head first, then the page
        page.part()
    assert page.drawn == [(0, 0), (0, 1)]
    assert heads.draw_heads(layers, None) == (SECOND, 2)
    assert page.drawn == [(0, 0), (0, 1), (0, 1)]
    with pytest.raises(Stopped):  # a click on a cell of the same head: its weights are there
        page.part()
    assert len(page.drawn) == 3


def test_of_a_short_input_every_head_is_there_and_no_part_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(monkeypatch)
    layers: Any = layers_of(7)
    heads.draw_heads(layers, None)
    assert page.part is None
    assert page.drawn == [(0, 0)]
