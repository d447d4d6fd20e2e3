"""Work that was stopped goes on when asked: the part of the page that follows it has to be told to run again by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import streamlit as st

from pages.attention import head_effects
from pages.compare import wait
from pages.shared.background_job import Job


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


@pytest.mark.parametrize("follow", [wait._bar, head_effects._follow])
def test_a_stopped_work_goes_on_by_itself_once_it_is_resumed(
    follow: Callable[[Job[Any], bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> None:
        raise RunAgainError

    monkeypatch.setattr(st, "rerun", again)
    job: Job[Any] = Job(_work(), "")
    job.cancel()
    job.resume()
    with pytest.raises(RunAgainError):
        follow(job, False)
    job.cancel()
    with pytest.raises(RunAgainError):
        follow(job, True)
