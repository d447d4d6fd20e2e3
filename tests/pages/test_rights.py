"""Who may do what on a server: everyone on one's own machine, owners behind a proxy, nobody from inside a foreign frame."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import streamlit as st

from pages.shared import run_store


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A visitor whose request can be changed, at a server for this machine alone."""
    visitor = SimpleNamespace(is_embedded=False, headers={"Host": "localhost:8501"}, cookies={})
    monkeypatch.setattr(st, "context", visitor)
    monkeypatch.setattr(st, "get_option", {"server.address": "127.0.0.1"}.get)
    monkeypatch.delenv("XFORMER_OPEN", raising=False)
    return visitor


def test_on_ones_own_machine_everything_is_allowed(context: SimpleNamespace) -> None:
    assert run_store.is_open()
    assert run_store.visitor() == run_store.HERE


def test_behind_a_proxy_it_is_no_longer_ones_own_machine(context: SimpleNamespace) -> None:
    context.headers["X-Forwarded-For"] = "203.0.113.9"
    assert not run_store.is_open()


def test_a_frame_in_a_foreign_page_only_looks_on(context: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    context.is_embedded = True
    monkeypatch.setenv("XFORMER_OPEN", "1")
    assert not run_store.is_open()
    context.cookies["xformer_visitor"] = "0" * 32
    assert run_store.visitor() == ""
