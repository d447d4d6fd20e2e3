"""Work that was stopped goes on when asked: the part of the page that follows it has to be told to run again by itself."""

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
    told: list[str] = []
    job: Job[Any] = Job(_work(), "")
    job.cancel()
    _follow(job, False, lambda: told.append("stopped"), BUDGET)
    assert told == ["stopped"]
    job.resume()
    with pytest.raises(RunAgainError):
        _follow(job, False, lambda: told.append("too early"), BUDGET)
    job.cancel()
    with pytest.raises(RunAgainError):
        _follow(job, True, lambda: told.append("too early"), BUDGET)
    assert told == ["stopped"]
