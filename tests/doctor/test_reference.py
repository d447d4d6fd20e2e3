"""A model against a reference: what differs is named at its line, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.zoo.bugs import BUGS, LLAMA, NANO, Bug, planted
from xformer.errors import InputError


def llama() -> nn.Module:
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=61, hidden_size=40, **sizes)).eval()


def compared(model: nn.Module, spec: Any) -> xformer.doctor.diagnose.Diagnosis:
    return xformer.diagnose(model, TOKENS, checks=["formula"], spec=spec)


def test_the_same_architecture_in_other_code_has_no_difference(tmp_path: Path) -> None:
    for style in (LLAMA, NANO):
        model, _ = planted(style, tmp_path)
        assert compared(model, planted(style, tmp_path)[0]).ok
    assert compared(planted(LLAMA, tmp_path)[0], llama()).ok
    assert compared(llama(), planted(LLAMA, tmp_path)[0]).ok


@pytest.mark.parametrize("bug", [one for one in BUGS if one.style == LLAMA], ids=lambda bug: bug.name)
def test_a_difference_is_named_at_its_line(bug: Bug, tmp_path: Path) -> None:
    model, number = planted(bug, tmp_path)
    [finding] = compared(model, llama()).broken
    assert finding.cause in bug.causes
    assert finding.line == f"{bug.style}.py:{number}"


def test_a_configuration_is_a_reference(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "architecture": "decoder",
        "vocab_size": 61,
        "d_model": 36,
        "n_heads": 3,
        "n_layers": 3,
        "d_ff": 144,
        "max_len": 64,
        "causal": True,
    }
    model, _ = planted(NANO, tmp_path)
    assert compared(model, xformer.ModelConfig(**sizes, positions="learned", norm="pre", activation="gelu")).ok
    [finding] = compared(model, xformer.ModelConfig(**sizes, positions="learned", norm="pre", activation="relu")).broken
    assert finding.cause == "other_than_reference"
    assert "W₂·gelu(W₁·x) instead of W₂·relu(W₁·x) (nano.py:43)" in finding.sentence
    [finding] = compared(
        model, xformer.ModelConfig(**sizes, positions="learned", norm="post", activation="gelu")
    ).broken
    assert finding.cause == "norm_place"


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    model, _ = planted(NANO, tmp_path)
    with pytest.raises(InputError, match="The attention of the reference cannot be read"):
        compared(model, nn.Sequential(nn.Embedding(61, 36), nn.Linear(36, 61)))
    with pytest.raises(InputError, match="a name, a ModelConfig or a module; got int"):
        compared(model, 3)
