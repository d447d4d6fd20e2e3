"""Commands that do not need torch do not import it, and invalid arguments are rejected without delay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.tiny import tiny_preset
from xformer.__main__ import main
from xformer.training.run_store import RunStore

ROOT = Path(__file__).parents[1]
CODE = """
import json, sys
from xformer.__main__ import main
HEAVY = {"torch", "pandas", "numpy", "streamlit", "jaxtyping", "transformers", "tokenizers", "gguf", "huggingface_hub"}
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit:
        pass
    imported = sorted(HEAVY & set(sys.modules))
    assert not imported, (arguments, imported)
"""
COMMANDS = [
    ["--help"],
    ["presets"],
    ["presets", "--json"],
    ["models", "--json"],
    ["runs", "list", "--json", "--folder", "{tmp}"],
    ["runs", "show", "{run}", "--json", "--folder", "{tmp}"],
    ["runs", "list", "--folder", "{tmp}"],
    ["runs", "show", "{run}", "--folder", "{tmp}"],
    ["runs", "stop", "{run}", "--folder", "{tmp}"],
    ["runs", "delete", "{run}", "--folder", "{tmp}"],
    ["train", "--preset", "nonsense", "--out", "x"],
    ["eval", "nowhere", "--samples", "0"],
    ["trace", "nowhere", "--input", "3", "--out", "x"],
    ["doctor", "nowhere"],
    ["models"],
    ["models", "fetch", "nonsense"],
    ["app", "--model", "nowhere"],
    ["app", "--playlist", "nowhere"],
]


def test_these_commands_do_not_import_torch(tmp_path: Path) -> None:
    run = RunStore(tmp_path).add(tiny_preset(), state="running")
    RunStore(tmp_path).change(run, worker="w")
    (tmp_path / "plain" / "snapshots").mkdir(parents=True)
    commands = json.dumps(COMMANDS).replace("{tmp}", str(tmp_path)).replace("{run}", run)
    done = subprocess.run([sys.executable, "-c", CODE, commands], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def waits_at_most() -> Iterator[None]:
    """Fail if the test waits for more than a minute, for example for a pipe without a writer."""

    def fail(*_: object) -> None:
        pytest.fail("the command waits")  # not an `Exception`, so the command does not catch it

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--preset", "characters", "--out", "{tmp}/x", "--text", "{pipe}"],
        ["trace", str(ROOT / "checkpoints/reverse-mirror"), "--input", "3", "--out", "{pipe}"],
    ],
    ids=lambda arguments: " ".join(arguments[:2])[:20],
)
def test_command_does_not_wait_for_a_pipe(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], waits_at_most: None
) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    words = [word.replace("{tmp}", str(tmp_path)).replace("{pipe}", str(tmp_path / "pipe.npz")) for word in arguments]
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    output = capsys.readouterr().err
    assert status in (1, 2), output
    assert output.count("\n") <= 1
