"""Models that others built, read and changed where they stand: held against the stock model and against their own weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.adapters.families import FAMILIES, cut_head, shown
from xformer import edits
from xformer.adapters.huggingface_opening import example_inputs, open_transformers
from xformer.adapters.opening import OpenedModel
from xformer.errors import EditError

CLOSE = {"rtol": 0.0, "atol": 1e-5}
"""Rounding in float32 of two layers of 24 features, in another order."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Any, OpenedModel]:
    """A family's name, a stock model, and the same weights opened."""
    name = request.param
    stock = FAMILIES[name].make()
    opened, verification = open_transformers(copy.deepcopy(stock))
    assert verification.backend == FAMILIES[name].backend
    return name, stock, opened


def test_logits_patterns_and_stream_are_those_of_the_stock_model(family: tuple[str, Any, OpenedModel]) -> None:
    _, stock, opened = family
    inputs = example_inputs(stock, 5)
    with torch.no_grad():
        wanted = stock(**inputs, output_attentions=True, output_hidden_states=True)
    found = opened.run(inputs)
    assert torch.allclose(found["logits"], shown(stock, wanted), **CLOSE)
    for stack, kind, given in patterns_of(wanted):
        names = [site.path for site in opened.layout.attention if (site.stack, site.kind) == (stack, kind)]
        assert len(names) == len(given) > 0
        for path, pattern in zip(names, given, strict=True):
            assert torch.allclose(found[f"{path}.pattern"], pattern, **CLOSE)
    states = wanted.get("hidden_states") or wanted.get("decoder_hidden_states")
    stack = opened.layout.attention[-1].stack
    for layer in range(len(states) - 1):
        assert torch.allclose(found[f"{stack}.{layer}.resid_pre"], states[layer], **CLOSE)


def patterns_of(output: Any) -> list[tuple[str, str, tuple[torch.Tensor, ...]]]:
    """The attentions that Transformers itself returns, with the stack and kind that they belong to."""
    if output.get("encoder_attentions") is not None:
        return [
            ("encoder", "attn", output.encoder_attentions),
            ("decoder", "self_attn", output.decoder_attentions),
            ("decoder", "cross_attn", output.cross_attentions),
        ]
    is_causal = bool(output.attentions[0][0, 0].triu(1).abs().sum() == 0)
    return [("decoder" if is_causal else "encoder", "attn", output.attentions)]


def test_each_block_adds_up(family: tuple[str, Any, OpenedModel]) -> None:
    """x + what attention adds = mid; mid + what the neurons add = y; with norms behind the sums, before the norm."""
    name, stock, opened = family
    found = opened.run(example_inputs(stock, 6))
    norms = opened.layout.norms
    assert len(norms) == len({(site.stack, site.layer) for site in opened.layout.attention})
    for path, norm in norms.items():
        block, kind = path.rpartition(".")[0], path.rpartition(".")[2]
        after = found[f"{block}.resid_pre"] + found[f"{block}.{kind}.out"]
        if norm == "post":  # what stands behind a norm is no sum
            continue
        if norm == "pre":
            assert torch.allclose(found[f"{block}.resid_mid"], after, **CLOSE)
            if f"{block}.cross_attn.out" in found:
                after = after + found[f"{block}.cross_attn.out"]
        assert torch.allclose(found[f"{block}.resid_post"], after + found[f"{block}.ffn.out"], **CLOSE), name


def test_what_an_attention_reads_is_the_stream_behind_its_norm(family: tuple[str, Any, OpenedModel]) -> None:
    """This holds for every attention with the name, cross-attention too."""
    _, stock, opened = family
    found = opened.run(example_inputs(stock, 6))
    before = {"attn": "resid_pre", "self_attn": "resid_pre", "cross_attn": "resid_mid"}
    for site in opened.layout.attention:
        if f"{site.path}.in" not in found:
            continue
        stream = found[f"{site.stack}.{site.layer}.{before[site.kind]}"]
        norm = opened.layout.norm_before.get(site.path)
        wanted = stream if norm is None else opened.module.get_submodule(norm)(stream)
        assert torch.allclose(found[f"{site.path}.in"], wanted, **CLOSE), site.path


def test_a_silenced_head_is_the_head_cut_out_of_the_weights(family: tuple[str, Any, OpenedModel]) -> None:
    name, stock, opened = family
    cut = copy.deepcopy(stock)
    cut_head(FAMILIES[name].back(cut), 1, 6)
    inputs = example_inputs(stock, 7)
    with torch.no_grad():
        before, wanted = shown(stock, stock(**inputs)), shown(cut, cut(**inputs))
    silenced = FAMILIES[name].silenced
    found = opened.run(inputs, edits=[edits.ablate_head(silenced, 1)], keep=("logits",))["logits"]
    assert not torch.allclose(before, wanted, **CLOSE)
    assert torch.allclose(found, wanted, **CLOSE)


def test_a_stream_that_is_replaced_flows_on(family: tuple[str, Any, OpenedModel]) -> None:
    """Another run's last state, put in the place of this one's, leaves that run's logits."""
    _, stock, opened = family
    one, other = example_inputs(stock, 8), example_inputs(stock, 9)
    last = opened.layout.attention[-1]
    name = f"{last.stack}.{last.layer}.resid_post"
    source = opened.run(other)
    moved = opened.run(one, edits=[edits.replace(name, source[name])], keep=("logits",))["logits"]
    assert torch.allclose(moved, source["logits"], **CLOSE)
    middle = f"{last.stack}.{last.layer}.resid_mid"
    if middle in source and last.kind == "attn":
        moved = opened.run(one, edits=[edits.replace(middle, source[middle])], keep=("logits",))["logits"]
        assert torch.allclose(moved, source["logits"], **CLOSE)


def test_an_edge_that_is_cut_gets_no_weight_and_no_other_row_moves(family: tuple[str, Any, OpenedModel]) -> None:
    _, stock, opened = family
    inputs = example_inputs(stock, 4)
    path = opened.layout.attention[0].path
    before = opened.run(inputs)[f"{path}.pattern"]
    after = opened.run(inputs, edits=[edits.mask_edges(path, [(3, 1)], [2])])[f"{path}.pattern"]
    assert before[0, 2, 3, 1] > 0
    assert after[0, 2, 3, 1] == 0
    rest = torch.ones_like(before, dtype=torch.bool)
    rest[0, 2, 3] = False
    assert torch.equal(before[rest], after[rest])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT"])
def test_the_parts_found_in_half_precision_are_those_of_float32(name: str, dtype: torch.dtype) -> None:
    """One feature of the stream is far larger than all others, as in large models (Sun et al. 2024)."""
    model = FAMILIES[name].make()
    model.get_input_embeddings().weight.data[:, 0] = 90.0
    whole, half = open_transformers(model)[0].layout, open_transformers(copy.deepcopy(model).to(dtype))[0].layout
    assert set(half.taps) == set(whole.taps)
    assert half.projections == whole.projections
    assert half.norms == whole.norms


def test_positions_off_is_the_model_without_its_position_table() -> None:
    stock = FAMILIES["GPT-2"].make()
    opened, _ = open_transformers(copy.deepcopy(stock))
    inputs = example_inputs(stock, 3)
    found = opened.run(inputs, edits=[edits.zero_positions()])["logits"]
    stock.transformer.wpe.weight.data.zero_()
    with torch.no_grad():
        assert torch.allclose(found, stock(**inputs).logits, **CLOSE)


def test_rotation_off_leaves_queries_and_keys_where_they_were() -> None:
    stock = FAMILIES["Llama"].make()
    opened, _ = open_transformers(stock)
    inputs = example_inputs(stock, 3)
    found = opened.run(inputs, edits=[edits.zero_positions()])
    attention = stock.model.layers[0].self_attn
    with torch.no_grad():
        q = attention.q_proj(found["decoder.0.attn.in"]).unflatten(-1, (6, -1)).transpose(1, 2)
    assert torch.allclose(found["decoder.0.attn.q"], q, **CLOSE)


def test_causality_lifted_lets_every_query_see_every_key() -> None:
    opened, _ = open_transformers(FAMILIES["Mistral"].make())
    inputs = example_inputs(opened.module, 3)
    pattern = opened.run(inputs, edits=[edits.set_causal(False)])["decoder.0.attn.pattern"]
    assert (pattern.triu(1).sum(-1)[..., :-1] > 0).all()


def test_a_causal_model_whose_mask_was_lost_is_opened_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt2 import modeling_gpt2

    monkeypatch.setattr(modeling_gpt2, "create_causal_mask", lambda *args, **kwargs: None)
    _, verification = open_transformers(FAMILIES["GPT-2"].make())
    assert "its attention lets early tokens see later ones" in str(verification)


def test_where_our_attention_gets_no_mask_the_next_rung_is_taken() -> None:
    from transformers import AttentionMaskInterface

    model = FAMILIES["GPT-2"].make()
    open_transformers(copy.deepcopy(model))  # registered by now
    ours = AttentionMaskInterface()["xformer"]
    AttentionMaskInterface.register("xformer", lambda *args, **kwargs: None)
    try:
        opened, verification = open_transformers(model)
    finally:
        AttentionMaskInterface.register("xformer", ours)
    assert verification.backend == "softmax"
    assert "decoder.0.attn.q" not in opened.run(example_inputs(model, 1))


def test_an_edit_that_fits_nothing_lists_what_there_is() -> None:
    opened, _ = open_transformers(FAMILIES["Llama"].make())
    with pytest.raises(EditError, match=r"decoder\.7\.attn.*decoder\.1\.attn\.z"):
        opened.run(example_inputs(opened.module, 0), edits=[edits.ablate_head("decoder.7.attn", 0)])
