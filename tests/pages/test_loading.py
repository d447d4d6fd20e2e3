"""Loading: a server answers at once, the first visitor is told what is waited for, and what fails is said by their page."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared import loading, resources, run_store

DEADLINE = 60.0


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A process in which nobody has loaded anything yet; what is done is written down."""
    done: list[str] = []
    monkeypatch.setattr(loading, "_imported", threading.Event())
    monkeypatch.setattr(loading, "drawn", threading.Event())
    monkeypatch.setattr(loading, "_thread", threading.Thread(target=lambda: loading._load(), daemon=True))
    monkeypatch.setattr(loading, "REST_SECONDS", 0.0)
    monkeypatch.setattr(loading.spare, "keep", lambda: done.append("spare"))
    monkeypatch.setattr(loading.gc, "freeze", lambda: done.append("frozen"))
    monkeypatch.setattr(resources, "run_each_model_once", lambda: done.append("models"))
    yield done
    loading.drawn.set()
    if loading._thread.ident is not None:
        loading._thread.join(DEADLINE)


def page() -> None:
    import streamlit as st

    from pages.shared import loading

    loading.wait()
    st.text("drawn")


def test_a_visitor_who_comes_too_early_is_told_what_is_waited_for(
    fresh: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), []
    monkeypatch.setattr(loading, "_import", lambda: (begun.set(), go_on.wait(DEADLINE), fresh.append("imports")))
    spinner = loading.st.spinner

    def spin(text: str, **how: Any) -> Any:
        seen.append(text)
        go_on.set()
        return spinner(text, **how)

    monkeypatch.setattr(loading.st, "spinner", spin)
    loading.begin()
    assert begun.wait(DEADLINE)
    app = AppTest.from_function(page, default_timeout=DEADLINE).run()
    assert seen == ["This server has just been started, and is loading PyTorch."]
    assert [text.value for text in app.text] == ["drawn"]
    assert fresh == ["spare", "imports"]  # the models are made ready when the first page is drawn
    loading.drawn.set()
    loading._thread.join(DEADLINE)
    assert fresh == ["spare", "imports", "models", "frozen"]
    app.run()
    assert len(seen) == 1  # nobody waits again


def test_without_a_server_the_first_visit_loads_all(fresh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_import", lambda: fresh.append("imports"))
    app = AppTest.from_function(page, default_timeout=DEADLINE).run()
    assert [text.value for text in app.text] == ["drawn"]
    assert fresh == ["imports", "models", "frozen"]  # and keeps no spare


def test_what_cannot_be_imported_keeps_nobody_waiting(fresh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("no torch")

    monkeypatch.setattr(loading, "_import", fail)
    monkeypatch.setattr(threading, "excepthook", lambda problem: fresh.append(str(problem.exc_value)))
    usual = sys.getswitchinterval()
    loading.begin()
    loading._thread.join(DEADLINE)
    app = AppTest.from_function(page, default_timeout=DEADLINE).run()
    assert [text.value for text in app.text] == ["drawn"]
    assert fresh == ["spare", "no torch"]
    assert sys.getswitchinterval() == usual


def test_a_server_looks_after_its_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndOfTestError(Exception): ...

    def keep() -> None:
        raise EndOfTestError

    monkeypatch.setattr(run_store.spare, "keep", keep)
    with pytest.raises(EndOfTestError):
        run_store._reconcile_for_ever()
