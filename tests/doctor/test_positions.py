"""Shifted positions, rotations, windows and half precision: what holds, what is broken and where, and what does not apply."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from benchmarks.health import GPT
from tests.adapters.families import FAMILIES
from tests.doctor.plain_gpt import PlainGPT
from xformer.doctor.check import CHECKS, Exam
from xformer.doctor.diagnosis import Finding, examine, subject_of

TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])


def found(check: str, model: nn.Module) -> Finding:
    return examine(Exam(subject_of(model, TOKENS)), CHECKS[check])


def llama(**sizes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 59, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 3, "initializer_range": 0.4, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**(shape | sizes))).eval()


def own(**choices: Any) -> xformer.Transformer:
    shape: dict[str, Any] = {"architecture": "decoder", "vocab_size": 53, "d_model": 24, "n_layers": 2, "n_heads": 3}
    shape |= {"d_ff": 28, "max_len": 128, "positions": "rotary", "norm": "pre"}
    return xformer.Transformer(xformer.ModelConfig(**(shape | choices)), torch.Generator().manual_seed(0)).eval()


def test_what_is_said_where_positions_are_not_relative_or_cannot_be_given() -> None:
    assert found("position_shift", FAMILIES["GPT-2"].make()).verdict == "not applicable"
    assert found("position_shift", own()).sentence == "The model cannot be given positions."
    assert found("rotary", FAMILIES["BLOOM"].make()).verdict == "not applicable"


@pytest.mark.parametrize("family", ["Llama", "GPT-J", "Falcon"])
def test_rotary_families_are_rotations_that_know_distances_only(family: str) -> None:
    model = FAMILIES[family].make()
    assert found("position_shift", model).verdict == "holds"
    assert found("rotary", model).verdict == "holds"


def test_queries_and_keys_that_are_paired_differently_are_no_rotation() -> None:
    class Neighbours(type(own().config.position_kind)):
        """Queries and keys of unlike pairing: both keep their length."""

        def turn(self, x: Tensor, angles: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls % 2:
                return super().turn(x, angles)
            order = torch.arange(x.shape[-1]).unflatten(0, (2, -1)).T.flatten()  # halves as neighbours
            return super().turn(x[..., order], angles)[..., order.argsort()]

    model = own()
    assert model.decoder is not None
    attention: Any = model.decoder.blocks[1].get_submodule("attn")
    attention.positions = Neighbours()
    finding = found("rotary", model)
    assert finding.verdict == "broken"
    assert "not turned alike" in finding.sentence
    assert finding.place is not None
    assert finding.place.layer == 1


SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda one: one["rope_type"])
def test_a_configured_scaling_must_have_an_effect(scaling: dict[str, Any]) -> None:
    model = llama(rope_parameters={"rope_theta": 10000.0} | scaling)
    assert found("rotary", model).verdict == "holds"
    model.model.rotary_emb.inv_freq = llama().model.rotary_emb.inv_freq
    model.model.rotary_emb.attention_scaling = 1.0
    finding = found("rotary", model)
    assert finding.verdict == "broken"
    assert scaling["rope_type"] in finding.sentence


def test_a_window_is_checked_in_the_layers_that_have_one() -> None:
    finding = found("window", FAMILIES["Gemma2"].make())
    assert finding.sentence == "Each window of 4 reaches exactly 3 back, in 1 layers."
    assert found("window", llama()).verdict == "not applicable"
    assert found("window", PlainGPT(window=5)).verdict == "holds"


def test_a_wide_window_is_checked_in_a_copy_with_a_short_one() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 59, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2}
    model: Any = MistralForCausalLM(MistralConfig(**sizes, num_attention_heads=3, num_key_value_heads=1)).eval()
    assert model.config.sliding_window == 4096
    assert found("window", model).sentence == "Each window of 5 reaches exactly 4 back, in 2 layers."
    assert model.config.sliding_window == 4096


@pytest.mark.parametrize(("architecture", "wrong"), [("decoder", 0), ("decoder", 1), ("encoder", -1)])
def test_a_window_reaches_neither_more_nor_less(architecture: str, wrong: int) -> None:
    model = own(architecture=architecture, mask="sliding_window", window=5)
    model.config = model.config.replace(window=5 + wrong)
    finding = found("window", model)
    assert finding.verdict == ("broken" if wrong else "holds")
    if wrong:
        assert finding.place is not None
        query, key = finding.place.query, finding.place.key
        assert query is not None
        assert key is not None
        assert abs(query - key) == (4 if wrong == -1 else 5)


def test_half_precision_angles_of_a_plain_model_are_named() -> None:
    model = llama()

    def rounded(module: Any, args: Any, more: Any, output: Any) -> Any:
        if args[0].dtype != torch.bfloat16:
            return output
        angles = (more["position_ids"][..., None].bfloat16() * module.inv_freq.bfloat16()).repeat(1, 1, 2)
        return angles.cos(), angles.sin()

    assert found("precision", model).verdict == "holds"
    model.model.rotary_emb.register_forward_hook(rounded, with_kwargs=True)
    finding = found("precision", model)
    assert finding.verdict == "broken"
    assert finding.place is not None
    assert finding.place.layer == 0


@pytest.mark.parametrize("positions", ["rotary", "t5"])
def test_our_positions_are_exact_in_half_precision(positions: str) -> None:
    assert found("precision", own(positions=positions)).verdict == "holds"


def test_an_output_that_is_no_number_in_half_precision_is_named() -> None:
    model = PlainGPT()
    model.norm.register_forward_hook(_infinite_in_half)
    assert "not a finite number" in found("precision", model).sentence


def _infinite_in_half(_: nn.Module, __: Any, value: Tensor) -> Tensor:
    return value + (torch.inf if value.dtype == torch.bfloat16 else 0.0)


def test_no_check_runs_beyond_the_table_of_a_module_that_names_no_limit() -> None:
    """On a GPU an index out of range ends the process."""
    for max_len, verdict in ((11, "not applicable"), (64, "holds")):
        torch.manual_seed(0)
        module = GPT(19, d_model=12, n_layers=2, n_heads=3, max_len=max_len).eval()
        table = xformer.diagnose(module, torch.tensor([[1, 5, 7, 2, 9]])).table
        assert not len(table.query("verdict == 'could not run'")), table
        assert table.set_index("check").loc["precision", "verdict"] == verdict
