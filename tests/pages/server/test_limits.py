"""The shared cache is emptied after the last visitor has left, and the log reports the memory in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from pages.compute import byte_cache
from pages.compute.byte_cache import ByteCache
from pages.server import limits
from pages.server.limits import Attendance, resident_bytes


def run_alone(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a separate thread, because a browser test may have left its event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ByteCache:
    cache = ByteCache(lambda: 100 * 1024**2)
    monkeypatch.setattr(byte_cache, "shared", cache)
    monkeypatch.setattr(limits, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(limits, "EVERY_SECONDS", 0.02)
    return cache


async def visit(counted: Attendance, leave: asyncio.Event, kind: str = "websocket") -> None:
    async def nothing(*_: Any) -> Any:
        await leave.wait()

    counted.app = nothing
    await counted({"type": kind}, nothing, nothing)


def test_cache_is_emptied_after_the_last_visitor_has_left(cache: ByteCache, caplog: pytest.LogCaptureFixture) -> None:
    async def day() -> None:
        counted = Attendance(lambda *_: None)  # type: ignore[arg-type, return-value]
        first, second = asyncio.Event(), asyncio.Event()
        visits = [asyncio.create_task(visit(counted, leave)) for leave in (first, second)]
        await asyncio.sleep(0)
        assert counted.visitors == 2
        cache.put("a", torch.zeros(2**20))
        first.set()
        await asyncio.sleep(0.2)
        assert cache.total == 4 * 2**20  # the second visitor is still connected
        second.set()
        await asyncio.gather(*visits)
        again = asyncio.Event()
        reloaded = asyncio.create_task(visit(counted, again))
        await asyncio.sleep(0.2)
        assert cache.total == 4 * 2**20
        again.set()
        await reloaded
        await asyncio.sleep(0.3)
        assert (counted.visitors, cache.total) == (0, 0)

    with caplog.at_level(logging.INFO, "xformer.memory"):
        run_alone(day())
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("memory: 1 visitors, 4 MB kept, ")
    assert messages[-1].startswith("memory: 0 visitors, 0 MB kept, ")


def test_resident_memory_grows_with_an_allocation() -> None:
    before = resident_bytes()
    more = torch.ones(20 * 2**20)
    assert 60 * 2**20 < resident_bytes() - before < 120 * 2**20
    del more
