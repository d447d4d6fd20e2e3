"""Text from users and files is printed without control sequences, markup or characters that the terminal cannot show."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.cli.output import print_json, to_printable
from xformer.training.run_store import RunStore

ROOT = Path(__file__).parents[1]
MIRROR = str(ROOT / "checkpoints/reverse-mirror")
CHARACTERS = str(ROOT / "checkpoints/characters")
NASTY = "\x1b[31m\x1b]0;owned\x07 \x9b2J \r\n\t\x7f \u202e [/b] [list] \ud800 :rocket:"


def assert_tame(text: str) -> None:
    """Assert that the text consists of printable characters and newlines only."""
    assert all(letter.isprintable() for letter in text.replace("\n", "")), ascii(text)


def test_unprintable_characters_are_escaped() -> None:
    assert to_printable("a\x1b[2J\n\u202e[/b]\ud800é") == r"a\x1b[2J\n\u202e[/b]\ud800é"
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert to_printable("“é” – 3 · 4 ≤ 5…", ascii_only) == r'"\xe9" - 3 - 4 <= 5...'


def test_escaped_json_is_still_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": NASTY, "é": [1]}, indent=2)
    shown = capsys.readouterr().out
    assert_tame(shown)
    assert json.loads(shown) == {"name": NASTY, "é": [1]}
    print_json({"name": "é"})
    assert "é" in capsys.readouterr().out


def test_square_brackets_are_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", CHARACTERS, "--input", "x[list][/b]:rocket:", "--out", str(tmp_path / "[b].npz")]) == 0
    printed = capsys.readouterr().out
    assert "input      x[list][/b]:rocket:\n" in printed
    assert f"written to {tmp_path}/[b].npz" in printed
    assert (tmp_path / "[b].npz").is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "show", "{run}", "--folder", "{tmp}"],
        ["runs", "show", NASTY, "--folder", "{tmp}"],
        ["runs", NASTY],
        [NASTY],
        ["train", "--preset", NASTY, "--out", "x"],
        ["train", "--preset", "characters", "--out", "x", "--text", f"/nowhere/{NASTY}"],
        ["eval", f"/nowhere/{NASTY}"],
        ["trace", MIRROR, "--input", NASTY, "--out", "{tmp}/x.npz"],
    ],
)
def test_no_command_echoes_control_sequences(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path)
    run = store.add(tiny_preset(), state="stopped")
    storable = NASTY.replace("\ud800", "")
    # as if edited by hand: `add` restricts names to one plain line
    store.change(run, name=f"name{storable}", title="\x1b[2J", message=f"[/b]{storable}")
    (tmp_path / "\x1b[2J[b]" / "snapshots").mkdir(parents=True)
    try:
        main([word.replace("{tmp}", str(tmp_path)).replace("{run}", run) for word in arguments])
    except SystemExit as left:
        assert left.code == 2  # noqa: PT017  only invalid arguments exit this way
    printed = capsys.readouterr()
    assert_tame(printed.out + printed.err)


def test_output_works_in_an_ascii_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    store.add(tiny_preset(), name="gelöscht – “so”", state="stopped")
    (tmp_path / "text").write_text("etwas, das man lernen kann. " * 200)
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    shown = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)  # raises for other characters
    monkeypatch.setattr(sys, "stdout", shown)
    text = ["--text", str(tmp_path / "text")]  # its progress line is wider than the terminal
    assert main(["runs", "--folder", str(tmp_path)]) == 0
    assert (
        main(["train", "--preset", "characters", *text, "--steps", "3", "--score", "9", "--out", f"{tmp_path}/x"]) == 0
    )
    assert shown.tell() > 500
