"""Opening a page as a visitor would, without a browser."""

from __future__ import annotations

import ast
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import streamlit as st
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest, local_script_runner
from streamlit.util import calc_hash

from pages.shared import models, resources, run_store
from pages.shared.byte_cache import shared
from pages.shared.serving import access
from pages.shared.text import WORD_JOINER
from tests.training.tiny import tiny_preset
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

ROOT = Path(__file__).parents[2]
Open = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def _once_for_all() -> Iterator[None]:
    """No process outlives a test, and no visitor is without a cookie.

    A reconciler would outlive its test, and start what later tests, or the runs of this machine, have in their queue.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_store, "start_reconciler", lambda: None)
        patch.setattr(access, "visitor_id", lambda: "0" * 32)  # no server has set one
        patch.setattr(models, "rehearse", lambda path: None)  # a process each; test_load.py has it
        rarely = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(10 * seconds))
        patch.setattr(local_script_runner, "time", rarely)  # AppTest looks every millisecond whether a run has ended
        yield


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's runs: empty, and not the one where the runs of this machine are."""
    monkeypatch.setenv("XFORMER_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, runs: Path, tmp_path: Path) -> Open:
    """`open_page("pages/attention/page.py", model="reverse")`: the app at that page, with that link."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the code at a picture shows it

    def open_page(page: str | None = None, **link: str) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        app._bidi_component_manager = BidiComponentManager()  # one that reads no metadata of installed packages: 0.2 s
        if page is not None:
            arrive(app, page)
        for name, value in link.items():
            app.query_params[name] = value
        assert not app.run().exception
        return app

    return open_page


@cache
def parsed(file: Path) -> ast.Module:
    """A file of the app as a syntax tree, for the tests that read all of them."""
    return ast.parse(file.read_text(encoding="utf-8"))


def arrive(app: AppTest, page: str) -> None:
    """Make that page the first one: before a run `switch_page` goes by the name of a file, and all are page.py."""
    app._page_hash = calc_hash(Path(page).parent.name)


def forget() -> None:
    """Forget what is kept for visitors: the models of a test have the names of shipped ones."""
    shared.forget(lambda key: True)
    resources._handles.clear()  # one that no garbage collection has met yet would name the folder of another test's model
    st.cache_resource.clear()
    st.cache_data.clear()


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """`ship(folder)`: its models in place of the shipped ones, for one test; what is cached goes by their names."""

    def ship(folder: Path) -> None:
        monkeypatch.setattr(models, "FOLDER", folder)
        forget()

    yield ship
    forget()


def strip_lanes(app: AppTest) -> list[dict[str, Any]]:
    """The lanes of the strip of tokens, as the browser gets them."""
    elements = [one.proto for one in app.get("bidi_component")]  # type: ignore[attr-defined]
    [ours] = [one for one in elements if one.component_name == "xformer_prediction_strip"]
    return json.loads(ours.json)["lanes"]


def plain(message: object) -> str:
    """What a person reads of a message: without what keeps its words from being read as Markdown."""
    return str(message).replace("\\", "").replace(WORD_JOINER, "")


def text(app: AppTest) -> str:
    """All sentences of a screen as Streamlit gets them, with the backslashes that escape Markdown."""
    kinds = ("caption", "markdown", "text", "info", "warning", "error", "success")
    return " ".join(element.value for kind in kinds for element in getattr(app, kind))


def everything(app: AppTest) -> str:
    """All sentences of a screen as a person reads them."""
    return plain(text(app))


def complaints(app: AppTest) -> list[str]:
    """Errors and warnings of a screen as a person reads them; an exception fails the test."""
    assert not app.exception
    return [plain(element.value) for kind in (app.error, app.warning) for element in kind]


def in_link(app: AppTest, name: str) -> str:
    """What the link says under a name; "" where it says nothing."""
    return "".join(app.query_params.get(name, ""))


def n_charts(app: AppTest) -> int:
    """The number of charts of a screen."""
    return sum(len(app.get(kind)) for kind in ("vega_lite_chart", "arrow_vega_lite_chart", "plotly_chart"))


@cache
def _trained(architecture: str) -> tuple[list[dict[str, Any]], dict[Path, bytes]]:
    """The reports and the files of a tiny run, which is trained once for all tests."""
    preset = tiny_preset(architecture)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [progress.row() for progress in iter_train(preset, out=folder, device="cpu")]
        files = (file for file in folder.rglob("*") if file.is_file())
        return rows, {file.relative_to(folder): file.read_bytes() for file in files}


def with_weights(store: RunStore, name: str, architecture: str = "encoder", **change: Any) -> str:
    """A run of a tiny model that has been trained, as the run store and its folder have it."""
    owner, state = change.pop("owner", "here"), change.pop("state", "finished")
    run = store.add(tiny_preset(architecture), name=name, owner=owner, state=state)
    rows, files = _trained(architecture)
    for path, content in files.items():
        file = store.folder_of(run) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    store.put_rows(run, rows)
    store.change(run, step=12, **change)
    return run
