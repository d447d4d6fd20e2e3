"""The route of the lessons behind the guards: their pages, unknown names, and models that are missing."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Iterator

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from pages.compute import byte_cache
from pages.learn import routes
from pages.server.access import HostGuard, SecurityHeaders
from xformer.errors import CheckpointError
from xformer.live import lesson


@pytest.fixture(autouse=True)
def _nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(byte_cache, "shared", byte_cache.ByteCache())
    routes._page.cache_clear()
    yield
    routes._page.cache_clear()


@pytest.fixture
def client() -> TestClient:
    guards = [Middleware(SecurityHeaders), Middleware(HostGuard)]
    return TestClient(Starlette(routes=routes.routes(), middleware=guards), base_url="http://localhost")


def test_a_lesson_is_served_with_the_way_on(client: TestClient) -> None:
    answer = client.get("/lesson/masks")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    assert "<title>Masks</title>" in answer.text
    found = re.search(r'id="lesson">([^<]+)<', answer.text)
    assert found is not None
    given = json.loads(base64.b64decode(found[1]))
    assert given["next"] == {"name": "positions", "title": "Positions"}
    assert given["app"]["title"] == "Attention"
    assert given["app"]["link"].startswith("/attention?model=reverse-small&input=3+7+12+9&mask=as+trained&head=2.1")


def test_an_unknown_lesson_and_a_foreign_host_are_refused(client: TestClient) -> None:
    for name in ("nothing", "..%2Fmasks", "masks.md", "%3Cscript%3E"):
        answer = client.get(f"/lesson/{name}")
        assert answer.status_code == 404
        assert "<" not in answer.text
    assert client.get("/lesson/nothing").text == f"There is no such lesson; the lessons are {', '.join(lesson.ORDER)}."
    assert client.get("/lesson/masks", headers={"host": "evil.example"}).status_code == 421


def test_lessons_are_under_the_base_path_of_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    option = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: "/lab/" if name == "server.baseUrlPath" else option(name))
    client = TestClient(Starlette(routes=routes.routes()), base_url="http://localhost")
    assert client.get("/lab/lesson/nothing").text.startswith("There is no such lesson")
    assert client.get("/lesson/nothing").text == "Not Found"


def test_a_page_is_built_once_and_in_a_thread(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def page(path: object, app: object) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        built.append(threading.current_thread().name)
        return "the page"

    monkeypatch.setattr(lesson, "page", page)
    assert [client.get("/lesson/heads").text for _ in range(2)] == ["the page"] * 2
    assert len(built) == 1


def test_a_missing_model_is_reported(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(path: object, app: object) -> str:
        raise CheckpointError("There is no checkpoint here.")

    monkeypatch.setattr(lesson, "page", page)
    answer = client.get("/lesson/heads")
    assert (answer.status_code, answer.text) == (409, "The lesson cannot be shown: There is no checkpoint here.")
