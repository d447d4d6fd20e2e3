"""A stopped job continues when it is resumed: the page has to run again so that its part ticks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import streamlit as st

from pages.shared.background_job import BUDGET, Job, _follow


class RunAgainError(Exception):
    """Stands for `st.rerun`."""


@dataclass
class Report:
    done: int = 1
    total: int = 2
    is_final: bool = False


def _work() -> Iterator[Report]:
    while True:
        yield Report()


def test_a_stopped_work_goes_on_by_itself_once_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A click on “Go on” runs the part alone, which does not tick: the page has to be drawn anew for it to."""

    def again() -> None:
        raise RunAgainError

    monkeypatch.setattr(st, "rerun", again)
    drawn: list[str] = []
    job: Job[Any] = Job(_work(), "")
    job.cancel()
    _follow(job, False, lambda: drawn.append("stopped"), BUDGET)
    assert drawn == ["stopped"]
    job.resume()
    with pytest.raises(RunAgainError):
        _follow(job, False, lambda: drawn.append("too early"), BUDGET)
    job.cancel()
    with pytest.raises(RunAgainError):
        _follow(job, True, lambda: drawn.append("too early"), BUDGET)
    assert drawn == ["stopped"]
