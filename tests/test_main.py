"""The command line: each command reads the output of the previous one, and every error is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import xformer
from xformer.__main__ import main

ROOT = Path(__file__).parents[1]
MIRROR = str(ROOT / "checkpoints/reverse-mirror")


def test_train_eval_trace_and_runs_work_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xformer.training.loop.prepare_process", lambda: None)  # its settings would outlast the test

    def run(*arguments: str) -> str:
        """Run a command in this process, because a new process would spend seconds on importing torch."""
        assert main(arguments) == 0
        return capsys.readouterr().out

    out = tmp_path / "runs" / "mine"
    output = run(*f"train --preset reverse-mirror --out {out} --steps 20 --seed 3 --score 50".split())
    assert "exact match on 50 unseen inputs" in output
    card = xformer.load(out).card
    assert (card["seed"], card["step"]) == (3, 20)
    assert (card["figures"]["samples"], card["figures"]["seed"]) == (50, 4)
    assert json.loads((out / "card.json").read_text()) == card
    score = json.loads(run("eval", str(out), "--samples", "50", "--seed", "4", "--json"))
    assert score == {"schema_version": 1, "command": "eval", **card["figures"]}
    run("eval", str(out), "--samples", "60", "--card")
    assert xformer.load(out).card["figures"]["samples"] == 60
    assert xformer.load(out).card["figures"]["seed"] == 4
    run("trace", str(out), "--input", "3 7 12 9", "--out", str(tmp_path / "trace.npz"))
    arrays = np.load(tmp_path / "trace.npz", allow_pickle=False)
    trace = xformer.record(xformer.load(out).model, torch.tensor([[3, 7, 12, 9]]))
    assert set(arrays) == {*trace, "tokens", "config"}
    np.testing.assert_array_equal(arrays["encoder.0.attn.pattern"], trace["encoder.0.attn.pattern"].numpy())
    assert "mine" in run("runs", "--folder", str(out.parent))
    assert "reverse-mirror" in run("runs", "show", "mine", "--folder", str(out.parent))
    run("runs", "delete", "mine", "--folder", str(out.parent))
    assert not out.exists()


def test_train_with_seeds_and_sweep_trains_many_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xformer.training.loop.prepare_process", lambda: None)
    many = "--sweep peak_lr=0.001,0.01 --seeds 2"
    assert main(f"train --preset reverse-mirror --out {tmp_path} --steps 20 --score 20 {many}".split()) == 0
    output = capsys.readouterr().out
    assert "003  learning rate 0.01, seed 1: " in output
    assert "4 of 4 models have ended" in output
    cards = [xformer.load(tmp_path / f"{number:03d}").card for number in range(4)]
    drawn = [(card["train"]["peak_lr"], card["seed"]) for card in cards]
    assert drawn == [(0.001, 0), (0.001, 1), (0.01, 0), (0.01, 1)]
    assert {card["figures"]["samples"] for card in cards} == {20}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --preset gpt-5 --out x", "There is no preset 'gpt-5'; the presets are reverse,"),
        ("train --preset reverse --out {tmp} --resume", "There is no run to resume"),
        ("train --preset reverse --out x --seeds 65", "--seeds must be from 1 to 64, got 65"),
        ("train --preset reverse --out x.safetensors", "--out must name a folder"),
        ("train --preset reverse --out x --text {model}/card.json", "Only presets of the task characters"),
        ("train --preset characters --out x --text {tmp}", "Is a directory"),
        ("eval {tmp}/nowhere", "There is no checkpoint at"),
        ("trace {model} --input 3 --out {model}/card.json/x.npz", "card.json: "),
        ("trace {model} --input 3 --out {model}/model.safetensors", "would overwrite the model itself"),
        ("export {model} --input 99 --out {tmp}/x.html", "“99” is not one"),
        ("export {model} --input 3 --out {tmp}/x.html --head 0.1", "must be one of the model's heads"),
        ("export {model} {model} --input 3 --out {tmp}/x.html", "export takes one model"),
        ("runs stop --folder {tmp}", "runs stop needs a run of"),
    ],
)
def test_error_is_one_sentence_and_leaves_no_files(
    arguments: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xformer.training.loop.prepare_process", lambda: None)  # its settings would outlast the test
    assert main([word.format(tmp=tmp_path, model=MIRROR) for word in arguments.split()]) == 1
    output = capsys.readouterr().err
    assert words in output
    assert output.count("\n") == 1
    assert list(tmp_path.rglob("*")) == []
