"""Permissions: everything on a local server, only one's own runs behind a proxy, nothing in a cross-site frame."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import streamlit as st

from pages.classroom import routes
from pages.compute import run_commands, visible_runs
from pages.server import access
from tests.training.tiny import tiny_preset
from xformer.errors import RunStoreError


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The request context of a visitor on a local server; tests modify it."""
    cookies = {"xformer_visitor": "a" * 32}
    given = SimpleNamespace(is_embedded=False, headers={"Host": "localhost:8501"}, cookies=cookies)
    monkeypatch.setattr(st, "context", given)
    monkeypatch.setattr(access, "visitor_id", lambda: access.visitor_id_in(st.context.cookies))
    monkeypatch.setattr(visible_runs, "is_script_thread", lambda: True)
    monkeypatch.setattr(st, "get_option", {"server.address": "127.0.0.1"}.get)
    monkeypatch.delenv("XFORMER_OPEN", raising=False)
    return given


def test_on_a_local_server_every_command_is_allowed(context: SimpleNamespace) -> None:
    assert visible_runs.is_open()
    assert visible_runs.visitor() == visible_runs.LOCAL_SCOPE


def test_a_server_behind_a_proxy_is_not_local(context: SimpleNamespace) -> None:
    context.headers["X-Forwarded-For"] = "203.0.113.9"
    assert not visible_runs.is_open()
    assert visible_runs.visitor() == "a" * 32


@pytest.mark.parametrize("is_open", ["0", "1"])
def test_a_visitor_in_a_frame_or_without_the_cookie_can_only_watch(
    context: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_open: str
) -> None:
    monkeypatch.setenv("XFORMER_OPEN", is_open)
    assert visible_runs.is_open() == (is_open == "1")
    for embedded, number in [(True, "a" * 32), *((False, bad) for bad in ("", "A" * 32, "a" * 31, "a" * 32 + "\n"))]:
        context.is_embedded, context.cookies["xformer_visitor"] = embedded, number
        assert not visible_runs.is_open()
        assert visible_runs.visitor() == ""


def test_a_disconnected_visitor_has_no_permissions(context: SimpleNamespace) -> None:
    """A closed connection has neither headers nor cookies, so it is unknown whether it came through a proxy."""
    context.headers, context.cookies = {}, {}
    assert not visible_runs.is_open()


def test_a_folder_that_is_only_shown_is_not_changed(
    context: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    store, reconciled = visible_runs.store(), []
    run = store.add(tiny_preset("encoder"), owner=visible_runs.LOCAL_SCOPE, private=True)
    monkeypatch.setattr(visible_runs.jobs, "reconcile", reconciled.append)
    visible_runs.reconcile(empties_bin=False)
    assert len(reconciled) == 1
    monkeypatch.setenv("XFORMER_RUNS_READ_ONLY", "1")
    visible_runs.reconcile(empties_bin=True)
    assert len(reconciled) == 1
    assert [entry.id for entry in visible_runs.entries()] == [run], "its owner sees private runs"
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    commands = [
        lambda: run_commands.start(tiny_preset("encoder")), lambda: run_commands.again(run, "x"),
        lambda: run_commands.delete(run), lambda: run_commands.rename(run, "x"), lambda: run_commands.stop(run),
        lambda: run_commands.resume(run), lambda: run_commands.take_file(b"x", "x"), lambda: run_commands.tag(run, ["x"]),
    ]  # fmt: skip
    for command in commands:
        with pytest.raises(RunStoreError, match="only shows the runs"):
            command()
    assert not routes.rooms().file.is_relative_to(runs)
    assert {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()} == before
    context.headers["X-Forwarded-For"] = "203.0.113.9"
    assert visible_runs.entries() == [], "a visitor through a proxy does not"
