"""External models, read and edited in place, compared with the stock model and with edited weights."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from transformers import ViTConfig, ViTModel, WhisperConfig, WhisperModel

from tests.adapters.families import FAMILIES, cut_head, returned_patterns, shown
from xformer import edits
from xformer.adapters.huggingface_opening import example_inputs, open_transformers
from xformer.adapters.opening import OpenedModel
from xformer.errors import EditError, InputError

CLOSE = {"rtol": 0.0, "atol": 1e-5}
"""The float32 rounding error of two layers with 24 features, summed in a different order."""


class Opened(NamedTuple):
    """A family's name, its stock model, an opened copy, inputs, and a recorded run."""

    name: str
    stock: Any
    opened: OpenedModel
    inputs: dict[str, Any]
    run: dict[str, torch.Tensor]


TESTED = [name for name in FAMILIES if name not in ("Llama", "Mistral", "DistilBERT", "GPT-J")]
"""The families, without those whose blocks are built like those of another family."""


@pytest.fixture(scope="module", params=TESTED)
def family(request: pytest.FixtureRequest) -> Opened:
    stock = FAMILIES[request.param].make()
    opened, verification, _ = open_transformers(copy.deepcopy(stock))
    assert verification.backend == FAMILIES[request.param].backend
    inputs = example_inputs(stock, 5)
    return Opened(request.param, stock, opened, inputs, opened.run(inputs))


def test_logits_patterns_and_stream_match_the_stock_model(family: Opened) -> None:
    _, stock, opened, inputs, found = family
    with torch.no_grad():
        wanted = stock(**inputs, output_attentions=True, output_hidden_states=True)
    assert torch.allclose(found["logits"], shown(stock, wanted), **CLOSE)
    patterns = wanted.get("encoder_attentions") or wanted.attentions
    patterns = returned_patterns(wanted, "encoder" if bool(patterns[0].triu(1).any()) else "decoder")
    assert set(patterns) == {site.path for site in opened.layout.attention}
    for path, pattern in patterns.items():
        assert torch.allclose(found[f"{path}.pattern"], pattern, **CLOSE)
    states = wanted.get("hidden_states") or wanted.get("decoder_hidden_states")
    stack = opened.layout.attention[-1].stack
    for layer in range(len(states) - 1):
        assert torch.allclose(found[f"{stack}.{layer}.resid_pre"], states[layer], **CLOSE)


def test_each_block_is_the_sum_of_its_parts(family: Opened) -> None:
    """resid_pre + attention = resid_mid and resid_mid + feed-forward = resid_post, except in post-norm blocks."""
    found, norms = family.run, family.opened.layout.norms
    assert len(norms) == len({(site.stack, site.layer) for site in family.opened.layout.attention})
    for path, norm in norms.items():
        block = path.rpartition(".")[0]
        after = found[f"{block}.resid_pre"] + found[f"{path}.out"]
        if norm == "post":  # the stream after a norm is not a sum
            continue
        if norm == "pre":
            assert torch.allclose(found[f"{block}.resid_mid"], after, **CLOSE)
            if f"{block}.cross_attn.out" in found:
                after = after + found[f"{block}.cross_attn.out"]
        assert torch.allclose(found[f"{block}.resid_post"], after + found[f"{block}.ffn.out"], **CLOSE), family.name


def test_the_input_of_each_attention_is_the_normalized_stream(family: Opened) -> None:
    """Includes cross-attention."""
    layout = family.opened.layout
    for site in layout.attention:
        if f"{site.path}.in" in family.run:
            stream = family.run[f"{site.stack}.{site.layer}.{'resid_mid' if site.is_cross else 'resid_pre'}"]
            norm = layout.norm_before.get(site.path)
            wanted = stream if norm is None else family.opened.module.get_submodule(norm)(stream)
            assert torch.allclose(family.run[f"{site.path}.in"], wanted, **CLOSE), site.path


def test_ablating_a_head_equals_zeroing_its_weights(family: Opened) -> None:
    name, stock, opened, inputs, _ = family
    cut = copy.deepcopy(stock)
    cut_head(cut.get_submodule(FAMILIES[name].projection), 1, 6)
    with torch.no_grad():
        before, wanted = shown(stock, stock(**inputs)), shown(cut, cut(**inputs))
    ablated = [edits.ablate_head(FAMILIES[name].ablated, 1)]
    assert not torch.allclose(before, wanted, **CLOSE)
    assert torch.allclose(opened.run(inputs, edits=ablated, keep=("logits",))["logits"], wanted, **CLOSE)


def test_replacing_the_stream_changes_the_logits_accordingly(family: Opened) -> None:
    """Patching the final stream state of another run yields that run's logits."""
    last, other = family.opened.layout.attention[-1], example_inputs(family.stock, 9)
    for name in ("resid_post", "resid_mid"):
        name = f"{last.stack}.{last.layer}.{name}"
        if name in family.run and (name.endswith("post") or last.kind == "attn"):
            replaced = [edits.replace(name, family.run[name])]
            moved = family.opened.run(other, edits=replaced, keep=("logits",))["logits"]
            assert torch.allclose(moved, family.run["logits"], **CLOSE)


@pytest.mark.parametrize(("name", "dtype"), [("Llama", torch.bfloat16), ("BERT", torch.float16)])
def test_the_layout_in_half_precision_is_that_of_float32(name: str, dtype: torch.dtype) -> None:
    """One feature of the stream is far larger than all others, as in large models (Sun et al. 2024)."""
    model = FAMILIES[name].make()
    model.get_input_embeddings().weight.data[:, 0] = 90.0
    whole, half = open_transformers(model)[0].layout, open_transformers(copy.deepcopy(model).to(dtype))[0].layout
    assert set(half.taps) == set(whole.taps)
    assert half.projections == whole.projections
    assert half.norms == whole.norms


def test_positions_off_equals_a_zero_position_embedding() -> None:
    stock = FAMILIES["GPT-2"].make()
    opened, *_ = open_transformers(copy.deepcopy(stock))
    inputs = example_inputs(stock, 3)
    found = opened.run(inputs, edits=[edits.zero_positions()])["logits"]
    stock.transformer.wpe.weight.data.zero_()
    with torch.no_grad():
        assert torch.allclose(found, stock(**inputs).logits, **CLOSE)


def test_positions_off_skips_the_rotation_of_queries() -> None:
    stock = FAMILIES["Llama"].make()
    opened, *_ = open_transformers(stock)
    inputs = example_inputs(stock, 3)
    found = opened.run(inputs, edits=[edits.zero_positions()])
    attention = stock.model.layers[0].self_attn
    with torch.no_grad():
        q = attention.q_proj(found["decoder.0.attn.in"]).unflatten(-1, (6, -1)).transpose(1, 2)
    assert torch.allclose(found["decoder.0.attn.q"], q, **CLOSE)


def test_an_edge_can_be_cut_and_causality_lifted() -> None:
    opened, *_ = open_transformers(FAMILIES["Mistral"].make())
    inputs, path = example_inputs(opened.module, 3), "decoder.0.attn"
    before = opened.run(inputs)[f"{path}.pattern"]
    after = opened.run(inputs, edits=[edits.mask_edges(path, [(3, 1)], [2])])[f"{path}.pattern"]
    moved = (before != after)[0].nonzero()  # [cell, (head, query, key)]
    assert before[0, 2, 3, 1] > 0
    assert after[0, 2, 3, 1] == 0
    assert {tuple(one) for one in moved[:, :2].tolist()} == {(2, 3)}  # no other row moves
    pattern = opened.run(inputs, edits=[edits.set_causal(False)])[f"{path}.pattern"]
    assert (pattern.triu(1).sum(-1)[..., :-1] > 0).all()


def test_a_causal_model_whose_mask_was_lost_is_opened_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt2 import modeling_gpt2

    monkeypatch.setattr(modeling_gpt2, "create_causal_mask", lambda *args, **kwargs: None)
    _, verification, _ = open_transformers(FAMILIES["GPT-2"].make())
    assert "its attention lets tokens attend to later ones" in str(verification)


def test_without_a_mask_the_next_capture_backend_is_used() -> None:
    from transformers import AttentionMaskInterface

    model = FAMILIES["GPT-2"].make()
    open_transformers(copy.deepcopy(model))  # registers our mask function
    ours = AttentionMaskInterface()["xformer"]
    AttentionMaskInterface.register("xformer", lambda *args, **kwargs: None)
    try:
        opened, verification, _ = open_transformers(model)
    finally:
        AttentionMaskInterface.register("xformer", ours)
    assert verification.backend == "softmax"
    assert "decoder.0.attn.q" in opened.run(example_inputs(model, 1))


def test_the_error_for_an_edit_that_matches_nothing_lists_the_names() -> None:
    opened, *_ = open_transformers(FAMILIES["Llama"].make())
    with pytest.raises(EditError, match=r"decoder\.7\.attn.*decoder\.1\.attn\.z"):
        opened.run(example_inputs(opened.module, 0), edits=[edits.ablate_head("decoder.7.attn", 0)])


def test_an_example_with_too_many_positions_is_refused_before_it_is_made() -> None:
    vision = ViTConfig(image_size=2048, patch_size=8, hidden_size=14, num_attention_heads=7, num_hidden_layers=1)
    with torch.device("meta"):
        model = ViTModel(vision)
    with pytest.raises(InputError, match=r"asks for 65,536 patches of an image, and an example may have 16,384"):
        example_inputs(model)
    sounds = WhisperConfig(d_model=24, encoder_layers=1, decoder_layers=1, max_source_positions=50_000)
    with torch.device("meta"):
        model = WhisperModel(sounds)
    with pytest.raises(InputError, match=r"asks for 50,000 positions of a sound"):
        example_inputs(model)
