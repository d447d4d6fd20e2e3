"""A visitor's button fetches what is known and safe, once for all who press it, and only where nobody has chosen the models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_files.small_files import a_model
from xformer.errors import ModelFileError
from xformer.model_files import LoadProgress, models_here, offered, start_fetch, visitor_fetches

SMOL = "SmolLM2-135M-Instruct"


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun, by a fetch that takes no network and waits at half for `GATE`; an empty cache, no package."""
    begun: list[str] = []

    def fetch(name: str, folder: Path) -> Iterator[LoadProgress]:
        begun.append(name)
        try:
            yield LoadProgress(1, 2, "half")
            assert GATE.wait(20)
            yield LoadProgress(2, 2, "done")
            a_model(folder / name)
        finally:
            begun.append("closed")

    GATE.clear()
    monkeypatch.setattr(visitor_fetches, "fetch", fetch)
    monkeypatch.setattr(models_here, "KEPT", tmp_path)
    monkeypatch.setattr(models_here, "installed_model", lambda: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("XFORMER_MODELS", raising=False)
    monkeypatch.delenv("XFORMER_MODEL", raising=False)
    return begun


GATE = threading.Event()


def test_one_job_for_all_who_press(fetched: list[str], tmp_path: Path) -> None:
    assert [package.model for package in offered()] == [SMOL]
    job = start_fetch(SMOL)
    assert start_fetch(SMOL) is job
    GATE.set()
    assert job.wait() == tmp_path / "models" / SMOL
    assert fetched == [SMOL, "closed"]
    assert offered() == []


def test_cancelled_it_is_closed_and_may_be_begun_again(fetched: list[str]) -> None:
    job = start_fetch(SMOL)
    job.cancel()
    GATE.set()
    with pytest.raises(ModelFileError, match="was cancelled"):
        job.wait()
    assert fetched == [SMOL, "closed"]
    assert start_fetch(SMOL).wait().is_dir()


@pytest.mark.parametrize("name", ["rxnmapper", "../x", "", "x" * 1_000])
def test_what_no_visitor_may_fetch(name: str, fetched: list[str]) -> None:
    with pytest.raises(ModelFileError, match=f"cannot be fetched from here; these can: {SMOL}") as error:
        start_fetch(name)
    assert len(str(error.value)) < 200
    assert fetched == []


@pytest.mark.parametrize("folder", ["", "/models"])
def test_whoever_serves_decides(folder: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MODELS", folder)
    assert offered() == []
    with pytest.raises(ModelFileError, match="has decided which models there are"):
        start_fetch(SMOL)
    assert fetched == []
