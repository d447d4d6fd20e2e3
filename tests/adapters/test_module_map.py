"""Layouts of mixtures of experts and of models with blocks without attention, compared with the stock models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.adapters.families import FAMILIES, GROUPED, tiny_model
from tests.adapters.test_huggingface import tokenizer
from xformer import edits
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis.score_decomposition import stream_parts
from xformer.analysis.text_similarity import stream_names
from xformer.errors import UnavailableError
from xformer.viz.packing import pattern_layers

NAME = "decoder.1.ffn.experts"
TEXT = "the cat sat on the mat and the dog"


@pytest.fixture(scope="module")
def mixtral() -> HuggingFaceModel:
    return HuggingFaceModel.open(FAMILIES["Mixtral"].make(), tokenizer(), "mixtral")


def stock_router(ids: Tensor, change: Any = None) -> tuple[tuple[Tensor, ...], Tensor]:
    """The output of the router in a stock model's second layer, and the logits."""
    model, outputs = FAMILIES["Mixtral"].make(), []

    def hook(module: Any, args: Any, output: tuple[Tensor, ...]) -> Any:
        outputs.append(output)
        return None if change is None else change(*output)

    model.model.layers[1].mlp.gate.register_forward_hook(hook)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    return outputs[0], logits


def test_expert_weights_match_the_stock_router(mixtral: HuggingFaceModel) -> None:
    reading = xformer.read(mixtral, TEXT)
    (_, weights, numbers), logits = stock_router(reading.example.input_ids)
    found = reading[NAME]
    assert found.shape == (1, len(reading.tokens), 4)
    assert mixtral.shape.experts == {"decoder.0.ffn": 4, "decoder.1.ffn": 4}
    for position, (each, experts) in enumerate(zip(weights, numbers, strict=True)):
        wanted = torch.zeros(4)
        wanted[experts] = each
        torch.testing.assert_close(found[0, position], wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(reading.logits, logits, rtol=0, atol=1e-5)
    table = xformer.analysis.expert_weights(reading, layer=1)
    assert table["weight"].tolist() == pytest.approx(found.flatten().tolist())
    assert table["token"].tolist()[::4] == list(reading.tokens)


def test_setting_an_expert_weight_to_zero_has_the_same_effect_as_in_the_stock_model(mixtral: HuggingFaceModel) -> None:
    reading = xformer.read(mixtral, TEXT)
    one = int(reading[NAME][0, 2].argmax())
    without = reading[NAME].clone()
    without[..., one] = 0
    changed = xformer.read(mixtral, TEXT, edits=[edits.replace(NAME, without)])

    def drop(scores: Tensor, weights: Tensor, numbers: Tensor) -> tuple[Tensor, ...]:
        return scores, weights.masked_fill(numbers == one, 0.0), numbers

    _, wanted = stock_router(reading.example.input_ids, drop)
    assert not torch.allclose(changed.logits, reading.logits, atol=1e-3)
    torch.testing.assert_close(changed.logits, wanted, rtol=0, atol=1e-5)


def test_a_dense_model_has_no_experts() -> None:
    model = HuggingFaceModel.open(FAMILIES["Llama"].make(), tokenizer())
    assert model.shape.experts == {}
    with pytest.raises(UnavailableError, match=r"no activation 'decoder\.0\.ffn\.experts'"):
        xformer.analysis.expert_weights(xformer.read(model, TEXT), layer=0)


HYBRIDS = {
    "Lfm2": {
        "num_hidden_layers": 5, "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
        "block_multiple_of": 4,
    },
    "NemotronH": {
        "num_hidden_layers": 6, "hybrid_override_pattern": "M-*M*M", "mamba_num_heads": 6, "mamba_head_dim": 8,
        "ssm_state_size": 4, "n_groups": 1, "head_dim": 4,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest) -> Any:
    """A model whose third and fifth block have attention, and the others have none."""
    return tiny_model(f"{request.param}ForCausalLM", {**GROUPED, **HYBRIDS[request.param]})


def test_layers_of_a_hybrid_are_numbered_like_its_blocks(hybrid: Any) -> None:
    reading = xformer.read(hybrid, TEXT, tokenizer=tokenizer())
    n_blocks = len(hybrid.model.layers)
    assert [site.path for site in reading.attention] == ["decoder.2.attn", "decoder.4.attn"]
    assert {site.layer for site in reading.feed_forward} <= {2, 4}
    assert reading.adapter.shape.n_layers == n_blocks
    assert [layer.title for layer in pattern_layers(reading)] == ["layer 3", "layer 5"]
    states = []
    handles = [one.register_forward_hook(lambda *call: states.append(call[2])) for one in hybrid.model.layers]
    with torch.no_grad():
        hybrid(reading.example.input_ids)
    for handle in handles:
        handle.remove()
    for index, state in enumerate(states):
        torch.testing.assert_close(reading[f"decoder.{index}.resid_post"], state, rtol=0, atol=1e-5)
    assert f"decoder.{n_blocks}.resid_post" not in reading
    assert "final_norm" in reading


def test_parts_of_the_stream_of_a_hybrid_sum_to_it(hybrid: Any) -> None:
    reading = xformer.read(hybrid, TEXT, tokenizer=tokenizer())
    token, n_blocks = 7, len(hybrid.model.layers)
    table = xformer.analysis.attribution(reading, position=3, token=token)
    assert "unattributed" not in set(table["part"])
    assert sum(table["contribution"].tolist()) == pytest.approx(reading.logits[0, 3, token].item(), abs=1e-4)
    assert {"layer 1", "layer 2", "layer 4"} <= set(table["part"])
    lens = xformer.analysis.lens(reading)
    last = lens.loc[lens["depth"] == lens["depth"].max()]
    best = reading.logits[0].softmax(dim=-1).max(dim=-1)
    assert last["probability"].tolist() == pytest.approx(best.values[last["position"].tolist()].tolist(), abs=1e-5)
    second = stream_parts(reading, "decoder", reading.attention[1])
    torch.testing.assert_close(second.total(), reading["decoder.4.resid_pre"][0], rtol=0, atol=1e-4)
    assert not any(one.kind == "unattributed" for one in second.writers)
    assert stream_names(reading.adapter)[-1] == f"decoder.{n_blocks - 1}.resid_post"


def test_what_a_block_adds_together_with_a_recurrent_layer_is_not_called_attention() -> None:
    sizes = {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 2, "use_mamba_kernels": False,
             "mamba_d_state": 4, "mamba_dt_rank": 4}  # fmt: skip
    model = tiny_model("ZambaForCausalLM", {**GROUPED, **sizes})
    reading = xformer.read(model, TEXT, tokenizer=tokenizer())
    added = reading["decoder.2.resid_post"] - reading["decoder.2.resid_pre"]
    assert [site.path for site in reading.attention] == ["decoder.2.attn", "decoder.5.attn"]
    assert not torch.allclose(reading["decoder.2.attn.out"], added, atol=1e-3)
    assert "unattributed" in set(xformer.analysis.attribution(reading, position=3, token=7)["part"])


def test_a_gated_attention_and_the_feed_forward_layer_of_a_hybrid_are_told_apart() -> None:
    sizes = {
        "num_hidden_layers": 8, "head_dim": 4, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
        "linear_key_head_dim": 4, "linear_value_head_dim": 4,
    }  # fmt: skip
    reading = xformer.read(tiny_model("Qwen3NextForCausalLM", {**GROUPED, **sizes}), TEXT, tokenizer=tokenizer())
    assert [site.path for site in reading.adapter.shape.layer_paths] == [
        "decoder.3.attn",
        "decoder.3.ffn",
        "decoder.7.attn",
        "decoder.7.ffn",
    ]
    found = reading["decoder.3.resid_pre"] + reading["decoder.3.attn.out"]
    torch.testing.assert_close(found, reading["decoder.3.resid_mid"], rtol=0, atol=1e-5)
