"""`python -m xformer runs` lists and controls the app's runs as well as the folders of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.training import jobs
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_runs_of_the_app_and_of_the_command_line_are_listed_shown_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder, store = str(tmp_path), RunStore(tmp_path)
    run = store.add(tiny_preset(seed=5), name="[red]mine[/red]", state="finished", figures={"exact_match": 0.375})
    rows = [progress.row() for progress in iter_train(tiny_preset(seed=5), out=store.folder_of(run), device="cpu")]
    store.put_rows(run, rows)
    store.change(run, step=12)
    list(iter_train(tiny_preset(seed=6), out=tmp_path / "plain", device="cpu"))

    listed = output(capsys, "--folder", folder)
    [line] = [line for line in listed.splitlines() if run in line]
    assert [cell.strip() for cell in line.strip("│").split("│")][:7] == [
        run, "[red]mine[/red]", "tiny", "5", "12", "finished", "37.50%",
    ]  # fmt: skip
    assert sum("plain" in line for line in listed.splitlines()) == 1

    shown = json.loads(output(capsys, "show", run, "--folder", folder))
    assert (shown["id"], shown["name"], shown["model"]["d_model"]) == (run, "[red]mine[/red]", 8)
    assert shown["curve"] == rows

    assert f"Deleted {run}" in output(capsys, "delete", run, "--folder", folder)
    assert [entry.id for entry in store.entries(deleted=True)] == [run]
    assert store.folder_of(run).exists()  # it can be restored
    assert run not in output(capsys, "--folder", folder)
    assert main(["runs", "show", run, "--folder", folder]) == 1
    output(capsys, "delete", "plain", "--folder", folder)
    assert not (tmp_path / "plain").exists()


def call(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command and return its exit status and its output."""
    status = main(["runs", *arguments, "--folder", str(folder)])
    out, err = capsys.readouterr()
    return status, out + err


def test_commands_of_the_command_line_have_the_same_effect_as_those_of_the_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "reconcile", lambda store: None)  # it would notice that there is no worker
    store = RunStore(tmp_path)
    waiting, at_work = store.add(tiny_preset(), name="waiting"), store.add(tiny_preset(), name="busy", state="running")
    store.change(at_work, worker="w")
    for order in ("pause", "resume", "stop"):
        assert call(tmp_path, capsys, order, at_work)[0] == 0
    query = "SELECT kind FROM commands WHERE run = ? ORDER BY number"
    with store.database.reading() as db:
        sent = [row["kind"] for row in db.execute(query, (at_work,))]
    assert sent == ["pause", "resume", "stop"]
    assert call(tmp_path, capsys, "stop", waiting) == (0, f"{waiting} (waiting) is stopped.\n")
    assert store.entry(waiting).state == "stopped"
    for order, run, words in (
        ("stop", waiting, "xformer: The run “waiting” is stopped: there is nothing to stop.\n"),
        ("pause", waiting, "so it cannot pause"),
        ("delete", at_work, "stop it before you delete it"),
    ):
        status, output = call(tmp_path, capsys, order, run)
        assert (status, words in output) == (1, True)


def test_run_of_the_command_line_cannot_be_stopped_and_a_link_is_not_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious" / "snapshots").mkdir(parents=True)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "precious")
    for order, words in (
        ("stop", "so it cannot stop from here; press Ctrl-C there"),
        ("delete", "is a link to another folder"),
    ):
        status, output = call(tmp_path / "runs", capsys, order, "link")
        assert (status, words in output) == (1, True)
    assert (tmp_path / "precious" / "snapshots").is_dir()
