"""Submissions in a process of their own: limits, hostile code, and what comes back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.assignments import FOLDER, PLAIN
from xformer import assignments
from xformer.assignments.process import RunLimits, Submission
from xformer.assignments.report import Report, to_json
from xformer.cli.main import main
from xformer.errors import InputError

HOSTILE = """

import os, sys

torch.softmax = lambda *args, **kwargs: 0
torch.allclose = lambda *args, **kwargs: True
torch.isclose = lambda one, *args, **kwargs: torch.ones_like(one).bool()


def attention(q, k, v, mask=None):
    return torch.empty(10 * 1024**3 // 4), q


def causal_mask(n):
    while True:
        pass


def padding_mask(lengths, n):
    sys.exit(0)


def split_heads(x, n_heads):
    os._exit(3)


def sinusoidal_positions(n, d_model):
    print("x" * 10_000_000)
    for name in os.listdir(os.path.dirname(__file__)):
        os.remove(os.path.join(os.path.dirname(__file__), name))
    return torch.zeros(3)


def next_token_loss(logits, tokens, ignore_index=None):
    return input("loss? ")
"""


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, float]:
    folder = tmp_path_factory.mktemp("ada")
    (folder / "solution.py").write_text(PLAIN)
    began = time.monotonic()
    return assignments.check(folder), time.monotonic() - began


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("mallory")
    (folder / "solution.py").write_text(PLAIN + HOSTILE)
    (folder / "notes.txt").write_text("do not lose this")
    return folder, assignments.check(folder, seconds=2.0)


def test_ten_solved_tasks_take_less_than_30_seconds(solved: tuple[Report, float]) -> None:
    report, seconds = solved
    assert report.ok, report
    assert seconds < 30


def test_hostile_code_fails_with_a_sentence_and_the_other_tasks_are_graded(hostile: tuple[Path, Report]) -> None:
    found = {one.task: one for one in hostile[1].results}
    causes = {name: one.cause for name, one in found.items() if one.status != "passed"}
    assert causes == {
        "attention": "memory_limit", "causal_mask": "time_limit", "padding_mask": "stopped_python",
        "split_and_merge_heads": "stopped_python", "positions": "wrong_shape", "loss": "raises_error",
        "multi_head_attention": "stopped_python", "layer_norm_and_block": "stopped_python",
        "cache_and_decoding": "stopped_python",
    }  # fmt: skip
    assert found["softmax"].status == "passed"
    assert found["multi_head_attention"].follows_from == ("attention", "split_and_merge_heads")
    assert "This may follow from multi_head_attention." in repr(hostile[1])
    assert "2 seconds" in found["causal_mask"].sentence
    assert "more memory" in found["attention"].sentence
    assert "code 3" in found["split_and_merge_heads"].sentence
    assert "calls exit" in found["padding_mask"].sentence


def test_replaced_functions_of_pytorch_change_nothing_and_are_noted(hostile: tuple[Path, Report]) -> None:
    notes = "".join(hostile[1].notes)
    assert all(f"replaces torch.{name};" in notes for name in ("softmax", "allclose", "isclose"))


def test_deleted_files_are_those_of_a_copy(hostile: tuple[Path, Report]) -> None:
    assert sorted(os.listdir(hostile[0])) == ["notes.txt", "solution.py"]
    assert not [name for name in os.listdir(hostile[0].parent) if name.startswith("xformer-")]


def test_code_that_cannot_be_imported_fails_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("import torch\n\ndef softmax(:\n")
    report = assignments.check(tmp_path)
    assert {one.cause for one in report.results} == {"raises_error"}
    assert report.results[0].place.line == "solution.py:3"
    assert "cannot be imported" in report.results[0].sentence


def test_a_check_gives_the_same_json_each_time(tmp_path: Path, solved: tuple[Report, float]) -> None:
    (tmp_path / "solution.py").write_text(PLAIN.replace("tril()", "tril(1)"))
    one, other = (json.dumps(to_json([assignments.check(tmp_path, task="causal_mask")])) for _ in range(2))
    assert one == other
    assert json.loads(one)["submissions"][0]["tasks"][0]["place"]["line"] == "solution.py:24"


def test_the_process_and_its_copy_are_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text(PLAIN)
    with Submission(tmp_path / "solution.py", RunLimits()) as code:
        found = code.train(1.0, tmp_path)
        pid, folder = code._pid, code._folder
        assert pid
    assert found["accuracy"] < 1
    assert (
        "<canvas" in (tmp_path / "attention.html").read_text()
        or "createElement" in (tmp_path / "attention.html").read_text()
    )
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_command_has_exit_codes_and_files_for_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("ada", PLAIN), ("bob", PLAIN.replace("tril()", "tril(1)")), ("eve", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "solution.py").write_text(text)
    one = ["assignment", "check", str(tmp_path / "ada"), "--task", "causal_mask"]
    assert main(one) == 0
    assert "1 of 1 tasks passed" in capsys.readouterr().out
    every = ["assignment", "check", *(str(tmp_path / name) for name in ("ada", "bob", "eve")), "--task", "causal_mask"]
    files = ["--json", "--csv", str(tmp_path / "class.csv"), "--junit", str(tmp_path / "class.xml")]
    assert main([*every, *files]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema_version"] == 1
    assert [one["passed"] for one in told["submissions"]] == [1, 0, 0]
    assert "mask_off_by_one" in (tmp_path / "class.csv").read_text()
    assert 'failures="1"' in (tmp_path / "class.xml").read_text()
    assert main(["assignment", "check", str(tmp_path / "eve")]) == 2
    assert "There is no solution.py" in capsys.readouterr().err


def test_what_is_no_submission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path, why in ((tmp_path / "notes.txt", "a Python file"), (tmp_path, "no solution.py")):
        with pytest.raises(InputError, match=why):
            assignments.check(path)
    with pytest.raises(InputError, match="must be one of softmax"):
        assignments.check(FOLDER, task="softmx")
    with pytest.raises(InputError, match="is one of softmax"):
        assignments.check(test_what_is_no_submission_is_refused)
