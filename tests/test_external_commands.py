"""The commands trace and doctor on external models, saved by the Transformers library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import folder_of, tokenizer
from xformer.__main__ import main

TEXT = {"Llama": "the cat sat on the", "BERT": "the cat [MASK] on"}


@pytest.mark.parametrize("family", TEXT)
def test_trace_matches_the_transformers_model(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = folder_of(family, tmp_path / "tiny"), tmp_path / "trace.npz"
    assert main(["trace", str(folder), "--input", TEXT[family], "--out", str(out)]) == 0
    arrays = np.load(out, allow_pickle=False)
    with torch.no_grad():
        stock = FAMILIES[family].make()(input_ids=torch.from_numpy(arrays["tokens"]), output_attentions=True)
    np.testing.assert_allclose(arrays["logits"], stock.logits, rtol=0, atol=1e-5)
    for layer, pattern in enumerate(stock.attentions):
        [name] = [name for name in arrays if name.endswith(f".{layer}.attn.pattern")]
        np.testing.assert_allclose(arrays[name], pattern, rtol=0, atol=1e-5)
    read, predicted, written = capsys.readouterr().out.splitlines()
    assert read.split()[:3] == ["input", "the", "cat"]
    ids, words = arrays["tokens"][0].tolist(), tokenizer()
    at = ids.index(words.mask_token_id) if family == "BERT" else -1
    token = int(stock.logits[0, at].argmax())
    assert predicted.split() == ["predicted", words.convert_ids_to_tokens(token) or f"#{token}"]
    assert written.endswith(f"written to {out}")


def test_trace_of_an_external_model_cannot_be_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = folder_of("Llama", tmp_path / "tiny"), tmp_path / "trace.safetensors"
    capsys.readouterr()  # the library's progress bar
    assert main(["trace", str(folder), "--input", "the cat", "--out", str(out)]) == 1
    assert capsys.readouterr().err == (
        "xformer: A trace of an external model must be written as .npz; for example --out trace.npz.\n"
    )
    assert not out.exists()


def test_doctor_finds_weights_that_cause_non_finite_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of("GPT-2", tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("h.1.mlp.c_fc.bias"))
    tensors[name][:] = 3e38
    tensors[name.replace("c_fc.bias", "c_proj.bias")][:] = 3e38
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert main(["doctor", str(folder), "--json"]) == 1
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert found["finite"]["verdict"] == "broken"
    assert found["finite"]["layer"] == 1


@pytest.mark.parametrize("command", ["trace", "doctor"])
def test_error_of_a_damaged_folder_hides_path(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of("Llama", tmp_path / "ti\x1b[2Jny")
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    capsys.readouterr()  # the library's progress bar
    more = ["--input", "the cat", "--out", str(tmp_path / "x.npz")] if command == "trace" else []
    assert main([command, str(folder), *more]) == (1 if command == "trace" else 2)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "\x1b" not in output.err
    assert str(tmp_path) not in output.err
