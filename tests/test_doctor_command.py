"""`python -m xformer doctor`: its output and exit codes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import xformer
from xformer.__main__ import main
from xformer.doctor.check import CHECKS
from xformer.doctor.faults import BUGS
from xformer.doctor.formulas import Formula
from xformer.testing import assert_batch_invariant
from xformer.trace import save_trace

ROOT = Path(__file__).parents[1]
MIRROR, PAIR = ROOT / "checkpoints/reverse-mirror", ROOT / "checkpoints/reverse-seq2seq"


def trace_with(bug: str, path: Path) -> str:
    checkpoint = xformer.load(PAIR)
    assert checkpoint.task is not None
    example = checkpoint.task.example([3, 7, 12, 9, 4])
    save_trace(xformer.record(BUGS[bug].broken(checkpoint.model), example.input_ids, example.target), path)
    return str(path)


def test_a_sound_model_prints_what_was_and_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "checkpoints/reverse-mirror"]) == 0  # a shipped model, from any folder
    lines = capsys.readouterr().out.splitlines()
    assert "holds   left_padding: Padding on the left changes no output (35 lengths)." in lines
    assert "No problems found." in lines
    assert "  cache: The model is not causal, so it has no cache." in lines[lines.index("Not checked:") :]


def test_unusual_formula_is_a_problem_only_against_a_specification(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unusual = [Formula(0, "a", "scale", "q·kᵀ / √32", "scale_by_d_model", "model.py:38", "", "q·kᵀ / √8")]
    monkeypatch.setattr("xformer.doctor.check.formulas", lambda model, run: unusual)
    assert main(["doctor", str(MIRROR)]) == 0
    shown = capsys.readouterr().out
    assert "unusual formula: In layer 0, the scores are divided by √d_model" in shown
    assert (
        "Nothing is broken in the checks that ran. 1 check found something unusual.\n  formula: If this is not meant"
        in shown
    )
    assert "No problems found" not in shown
    assert main(["doctor", str(MIRROR), "--spec", "bert"]) == 1
    assert main(["doctor", str(MIRROR), "--spec", "elephant"]) == 2


def test_a_bug_in_a_saved_model_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = BUGS["dead_neurons"].broken(xformer.load(PAIR).model)
    xformer.save(broken, tmp_path / "dead")
    assert main(["doctor", str(tmp_path / "dead"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema_version"], answer["command"], answer["ok"]) == (1, "doctor", False)
    found = {row["check"]: row for row in answer["findings"]}
    assert found["equations"]["verdict"] == "broken"
    assert found["equations"]["layer"] == 0
    assert "dead_neurons" in found["equations"]["remedy"]


def test_a_trace_file_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor", trace_with("causal_off_by_one", tmp_path / "x.safetensors")]) == 1
    shown = capsys.readouterr().out
    assert "causal_off_by_one" in shown
    assert "decoder.0.self_attn" in shown
    assert main(["doctor", trace_with("no_clipping", tmp_path / "y.safetensors")]) == 0
    shown = capsys.readouterr().out
    assert "too few tokens to determine" in shown
    assert "unrecorded or on other inputs" in shown[shown.index("Impossible to check") :]
    assert main(["doctor", str(tmp_path / "y.safetensors"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["mistakes"]) == (True, [])


@pytest.mark.parametrize("path", ["nowhere", "x.npz", "text", "odd"])
def test_unreadable_files_exit_2_with_a_sentence(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello")
    trace = xformer.record(xformer.load(MIRROR).model, torch.tensor([[3, 7, 12]]))
    odd = {"encoder.0.attn.pattern": torch.full((2, 3, 5, 7), 1 / 7), "encoder.0.attn.mask": torch.ones(7, 1, 2, 3) > 0}
    odd |= {"encoder.0.attn.q": torch.ones(1, 1, 3, 8), "encoder.0.attn.k": torch.ones(1, 2, 3, 9)}
    odd |= {f"encoder.0.attn.{name}": torch.ones(1, 2, 3, 9) for name in ("v", "scores", "z")}
    save_trace(replace(trace, activations=odd), tmp_path / "odd")
    assert main(["doctor", str(tmp_path / path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("xformer: ")
    assert "Traceback" not in output.err


def test_a_check_that_could_not_run_is_told_from_nothing_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise KeyError("a kernel")

    monkeypatch.setitem(CHECKS, "batch", replace(CHECKS["batch"], run=fail))
    assert main(["doctor", str(MIRROR)]) == 2
    shown = capsys.readouterr().out
    assert "not run batch: The check could not run: KeyError: 'a kernel'" in shown
    assert "Nothing is broken in the checks that ran. 1 check could not run." in shown
    assert "No problems found" not in shown
    assert main(["doctor", str(MIRROR), "--json"]) == 2
    assert {"batch": "could not run"}.items() <= {
        row["check"]: row["verdict"] for row in json.loads(capsys.readouterr().out)["findings"]
    }.items()
    with pytest.raises(AssertionError, match="batch was not checked"):
        assert_batch_invariant(xformer.load(MIRROR).model)


GPT = """
from tests.integrations.faulty_gpt import GPT
print("imported")
LEAKING = GPT(20, n_layers=1, fault="leaking mask")
def make():
    return LEAKING, {"ids": [[3, 7, 12, 9]]}
def number():
    return 3
"""


def test_a_model_in_a_python_file_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", sys.path.copy())
    file = tmp_path / "a_gpt.py"
    file.write_text(GPT)
    assert main(["doctor", f"{file}:make", "--json"]) == 1
    output = capsys.readouterr()
    first = json.loads(output.out)["findings"][0]
    assert (first["cause"], first["line"], first["layer"]) == ("mask_off_by_one", "faulty_gpt.py:32", 0)
    assert "imported" in output.err
    for name, reason in (("number", "got int; for example"), ("nothing", "AttributeError")):
        assert main(["doctor", f"{file}:{name}"]) == 2
        assert reason in capsys.readouterr().err
    assert main(["doctor", f"{file}:LEAKING", "--text", "3 7"]) == 2
    assert "--text is for models with a tokenizer" in capsys.readouterr().err
