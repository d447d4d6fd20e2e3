"""`python -m xformer runs` knows the runs that the app has trained, beside the folders of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.training.book import Book
from xformer.training.loop import train


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_both_kinds_are_listed_shown_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder, book = str(tmp_path), Book(tmp_path)
    run = book.add(tiny_preset(seed=5), name="[red]mine[/red]", state="finished", figures={"exact_match": 0.375})
    rows = [progress.row() for progress in train(tiny_preset(seed=5), out=book.folder_of(run), device="cpu")]
    book.put_rows(run, rows)
    book.change(run, step=12)
    list(train(tiny_preset(seed=6), out=tmp_path / "plain", device="cpu"))

    listed = said(capsys, "--folder", folder)
    [line] = [line for line in listed.splitlines() if run in line]
    assert [cell.strip() for cell in line.strip("│").split("│")][:7] == [
        run, "[red]mine[/red]", "tiny", "5", "12", "finished", "37.50%",
    ]  # fmt: skip
    assert sum("plain" in line for line in listed.splitlines()) == 1

    shown = json.loads(said(capsys, "show", run, "--folder", folder))
    assert (shown["id"], shown["name"], shown["model"]["d_model"]) == (run, "[red]mine[/red]", 8)
    assert shown["curve"] == rows

    assert f"Deleted {run}" in said(capsys, "delete", run, "--folder", folder)
    assert [entry.id for entry in book.entries(deleted=True)] == [run]
    assert book.folder_of(run).exists()  # it can be taken back
    assert run not in said(capsys, "--folder", folder)
    assert main(["runs", "show", run, "--folder", folder]) == 1
    said(capsys, "delete", "plain", "--folder", folder)
    assert not (tmp_path / "plain").exists()
