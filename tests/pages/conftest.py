"""Fixtures and helpers that open a page as a visitor would, without a browser."""

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

from pages.compute import background_job, cached_runs, models
from pages.compute.byte_cache import shared
from pages.controls.text import WORD_JOINER
from pages.server import access, startup
from tests.training.tiny import tiny_preset
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

ROOT = Path(__file__).parents[2]
Open = Callable[..., AppTest]


@pytest.fixture(scope="session", autouse=True)
def _once_for_all() -> Iterator[None]:
    """Start no background processes, and give every visitor a cookie.

    A reconciler would outlive its test and start queued runs of later tests or of this machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "start_reconciler", lambda: None)
        patch.setattr(access, "visitor_id", lambda: "0" * 32)  # no server has set one
        patch.setattr(models, "try_in_subprocess", lambda path: None)  # starts a process; tested in test_load.py
        patch.setattr(background_job, "AT_ONCE", 60.0)  # no progress bars, on a busy machine too
        rarely = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(10 * seconds))
        patch.setattr(local_script_runner, "time", rarely)  # AppTest polls every millisecond for the end of a run
        yield


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runs folder for this test, separate from the runs of this machine."""
    monkeypatch.setenv("XFORMER_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch, runs: Path, tmp_path: Path) -> Open:
    """Return a function that opens the app: `open_page("pages/attention/page.py", model="reverse")`."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the code of a picture writes its page

    def open_page(page: str | None = None, **link: str) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
        app._bidi_component_manager = BidiComponentManager()  # does not scan installed packages, which takes 0.2 s
        if page is not None:
            arrive(app, page)
        for name, value in link.items():
            app.query_params[name] = value
        assert not app.run().exception
        return app

    return open_page


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file, cached for the tests that read all files of the app."""
    return ast.parse(file.read_text(encoding="utf-8"))


def arrive(app: AppTest, page: str) -> None:
    """Open the app at a page. `switch_page` cannot do this before the first run, since all files are named page.py."""
    app._page_hash = calc_hash(Path(page).parent.name)


def forget() -> None:
    """Clear all caches, because the models of a test may have the names of shipped ones."""
    shared.forget(lambda key: True)
    cached_runs._handles.clear()  # an uncollected handle would refer to the model folder of another test
    st.cache_resource.clear()
    st.cache_data.clear()


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Return a function that replaces the shipped models with those of a folder for one test: `ship(folder)`."""

    def ship(folder: Path) -> None:
        monkeypatch.setattr(models, "FOLDER", folder)
        forget()

    yield ship
    forget()


def components(app: AppTest, name: str) -> list[Any]:
    """Return the messages to the components whose name ends like this."""
    protos = [element.proto for element in app.get("bidi_component")]  # type: ignore[attr-defined]
    return [proto for proto in protos if proto.component_name.endswith(name)]


def strip_lanes(app: AppTest) -> list[dict[str, Any]]:
    """Return the lanes of the prediction strip as sent to the browser."""
    [strip] = components(app, "prediction_strip")
    return json.loads(strip.json)["lanes"]


def plain(message: object) -> str:
    """Return a message as a visitor reads it, without the characters that escape Markdown."""
    return str(message).replace("\\", "").replace(WORD_JOINER, "")


def text(app: AppTest) -> str:
    """Return all texts of a screen as passed to Streamlit, with the backslashes that escape Markdown."""
    kinds = ("caption", "markdown", "text", "info", "warning", "error", "success")
    return " ".join(element.value for kind in kinds for element in getattr(app, kind))


def everything(app: AppTest) -> str:
    """Return all texts of a screen as a visitor reads them."""
    return plain(text(app))


def complaints(app: AppTest) -> list[str]:
    """Return the errors and warnings of a screen as a visitor reads them; an exception fails the test."""
    assert not app.exception
    return [plain(element.value) for kind in (app.error, app.warning) for element in kind]


def in_link(app: AppTest, name: str) -> str:
    """Return a parameter of the link; "" if it is missing."""
    return "".join(app.query_params.get(name, ""))


def n_charts(app: AppTest) -> int:
    """Return the number of charts of a screen."""
    return sum(len(app.get(kind)) for kind in ("vega_lite_chart", "arrow_vega_lite_chart", "plotly_chart"))


@cache
def _trained(architecture: str) -> tuple[list[dict[str, Any]], dict[Path, bytes]]:
    """Return the reports and the files of a tiny run, trained once for all tests."""
    preset = tiny_preset(architecture)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [progress.row() for progress in iter_train(preset, out=folder, device="cpu")]
        files = (file for file in folder.rglob("*") if file.is_file())
        return rows, {file.relative_to(folder): file.read_bytes() for file in files}


def with_weights(store: RunStore, name: str, architecture: str = "encoder", **change: Any) -> str:
    """Add a trained run of a tiny model to the run store, with its files, and return its id."""
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
