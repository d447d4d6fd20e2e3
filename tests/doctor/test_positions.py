"""Checks of shifted positions, rotations, windows and half precision: verdicts and locations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.doctor.checking import broken_place, decoder, found
from tests.doctor.plain_gpt import PlainGPT
from tests.integrations.faulty_gpt import GPT


def llama(**sizes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 59, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 3, "initializer_range": 0.4, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**(shape | sizes))).eval()


def own(**choices: Any) -> xformer.Transformer:
    return decoder(**({"positions": "rotary"} | choices))


def test_position_checks_do_not_apply_to_absolute_positions() -> None:
    assert found("position_shift", FAMILIES["GPT-2"].make()).verdict == "not applicable"
    assert found("position_shift", own()).sentence == "The model takes no positions."
    assert found("rotary", FAMILIES["BLOOM"].make()).verdict == "not applicable"


def test_packing_checks_the_call_that_users_make() -> None:
    model = llama()
    usual = found("packing", model)  # with a cache, Transformers builds no mask from positions that restart
    assert usual.verdict == "not applicable"
    assert (
        "only if it is given use_cache=False. With another document before it in the row, outputs change"
        in usual.sentence
    )
    model.config.use_cache = False
    assert found("packing", model).verdict == "holds"


def test_rotary_families_pass_the_position_checks() -> None:
    for family in ("GPT-J", "Falcon"):
        model = FAMILIES[family].make()
        assert found("position_shift", model).verdict == "holds"
        assert found("rotary", model).verdict == "holds"


def test_different_pairings_of_queries_and_keys_are_found() -> None:
    class Neighbours(type(own().config.position_kind)):
        """Queries and keys with different pairings; both preserve norms."""

        def rotate(self, x: Tensor, angles: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls % 2:
                return super().rotate(x, angles)
            order = torch.arange(x.shape[-1]).unflatten(0, (2, -1)).T.flatten()  # halves as neighbours
            return super().rotate(x[..., order], angles)[..., order.argsort()]

    model = own()
    attention: Any = model.get_submodule("decoder.blocks.1.attn")
    attention.positions = Neighbours()
    assert broken_place("rotary", model, "not rotated in the same way").layer == 1


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
    assert broken_place("rotary", model, scaling["rope_type"]).cause == "positions"


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


def test_a_too_narrow_window_of_an_encoder_is_found() -> None:
    model = own(architecture="encoder", mask="sliding_window", window=5)
    assert found("window", model).verdict == "holds"
    model.config = model.config.replace(window=6)
    place = broken_place("window", model)
    assert place.query is not None
    assert place.key is not None
    assert abs(place.query - place.key) == 5


def test_correct_positions_pass_the_precision_check() -> None:
    for model in (own(), own(positions="t5"), llama()):
        assert found("precision", model).verdict == "holds"


def test_an_output_that_is_not_finite_in_half_precision_is_found() -> None:
    model = PlainGPT()
    model.norm.register_forward_hook(_infinite_in_half)
    assert "finite in float32 but not in bfloat16" in found("precision", model).sentence


def _infinite_in_half(_: nn.Module, __: Any, value: Tensor) -> Tensor:
    return value + (torch.inf if value.dtype == torch.bfloat16 else 0.0)


def test_no_check_exceeds_the_position_table_of_a_module_without_a_declared_limit() -> None:
    """On a GPU an index out of range would abort the process."""
    for max_len, verdict in ((11, "not applicable"), (64, "holds")):
        torch.manual_seed(0)
        module = GPT(19, d_model=12, n_layers=2, n_heads=3, max_len=max_len).eval()
        table = xformer.diagnose(module, torch.tensor([[1, 5, 7, 2, 9]])).table
        unknown = {"left_padding", "right_padding", "masked_row"}  # the meaning of its argument `pads` is not known
        assert set(table.query("verdict == 'could not run'")["check"]) == unknown
        assert table.set_index("check").loc["precision", "verdict"] == verdict
