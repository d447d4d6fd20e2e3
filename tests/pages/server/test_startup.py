"""Loading at startup: the server responds at once, and early visitors see a message."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.server import startup
from tests.pages.conftest import ROOT

DEADLINE = 60.0


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Simulate a process in which nothing is loaded yet; the list records the steps."""
    done: list[str] = []
    monkeypatch.setattr(startup, "_loaded", threading.Event())
    monkeypatch.setattr(startup, "freeze_objects", lambda: done.append("frozen"))
    yield done
    for thread in threading.enumerate():
        if thread.name == "loading":
            thread.join(DEADLINE)


def page() -> None:
    import streamlit as st

    from pages.server import startup

    startup.wait_until_loaded()
    st.text("drawn")


def test_an_early_visitor_sees_a_message_while_loading(fresh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), []
    monkeypatch.setattr(startup, "_import", lambda: (begun.set(), go_on.wait(DEADLINE), fresh.append("imports")))
    spinner = startup.st.spinner

    def spin(text: str, **how: Any) -> Any:
        seen.append(text)
        go_on.set()
        return spinner(text, **how)

    monkeypatch.setattr(startup.st, "spinner", spin)
    startup.begin_loading()
    assert begun.wait(DEADLINE)
    app = AppTest.from_function(page, default_timeout=DEADLINE).run()
    assert seen == ["This server has just started and is loading PyTorch."]
    assert [text.value for text in app.text] == ["drawn"]
    assert fresh == ["imports", "frozen"]  # once, although two threads called it
    app.run()
    assert len(seen) == 1


def test_server_starts_before_the_large_libraries_are_imported() -> None:
    code = """
import sys
from pages.server import startup
startup.begin_loading = lambda: None
import app
print(app.app is not None, *sorted({"torch", "altair", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr
