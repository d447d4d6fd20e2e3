"""Edits parsed from a link equal their edits, and invalid ones are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import xformer
from xformer import edits
from xformer.edit_links import all_edits, changed_source, join_edits, parse_edits
from xformer.errors import EditError
from xformer.model_shape import ModelShape


def model_of(architecture: str = "encoder", **options: object) -> xformer.Transformer:
    settings = {"vocab_size": 23, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 6, "d_ff": 11, "max_len": 17}
    config = xformer.ModelConfig(architecture=architecture, embed_std=1.0, **(settings | options))  # type: ignore[arg-type]
    return xformer.Transformer(config, torch.Generator().manual_seed(5)).eval()


def shape_of(model: xformer.Transformer) -> ModelShape:
    return ModelShape.of(model.config)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("ablate:encoder.1.attn.2", [edits.ablate_head("encoder.1.attn", 2)]),
        ("solo:encoder.1.attn.1", [edits.ablate_head("encoder.1.attn", 0), edits.ablate_head("encoder.1.attn", 2)]),
        ("cut:encoder.0.attn.1.3-5", [edits.mask_edges("encoder.0.attn", [(3, 5)], [1])]),
        ("cut:encoder.0.attn.*.3-5", [edits.mask_edges("encoder.0.attn", [(3, 5)])]),
        ("ablate:encoder.1.ffn", [edits.scale("encoder.1.ffn.out", 0.0)]),
        ("ablate:encoder.0.ffn.7", [edits.ablate_neuron("encoder.0.ffn", 7)]),
        ("positions:off", [edits.zero_positions()]),
    ],
)
def test_an_edit_of_a_link_equals_its_edits(text: str, same: list[edits.Edit]) -> None:
    model, tokens = model_of(), torch.arange(1, 8)[None]
    found = parse_edits(text, shape_of(model))
    assert join_edits(found) == text
    changed = xformer.record(model, tokens, edits=all_edits(found)).logits
    assert torch.equal(changed, xformer.record(model, tokens, edits=same).logits)
    assert not torch.equal(changed, xformer.record(model, tokens).logits)


def test_labels_count_layers_and_heads_from_1() -> None:
    single, pair = shape_of(model_of()), shape_of(model_of("encoder-decoder"))
    for text, shape, label in (
        ("cut:encoder.0.attn.*.3-5", single, "layer 1 · all heads: 3 may not attend to 5"),
        ("ablate:encoder.1.ffn", single, "layer 2 · feed-forward ablated"),
        ("solo:encoder.1.attn.2", pair, "encoder 2 · head 3 alone"),
        ("ablate:decoder.1.cross_attn.0", pair, "decoder 2 · cross · head 1 ablated"),
    ):
        assert parse_edits(text, shape)[0].label == label


def test_an_opened_edge_lets_a_causal_model_attend_to_a_later_key() -> None:
    model, tokens = model_of("decoder"), torch.arange(1, 8)[None]
    trace = xformer.record(model, tokens, edits=all_edits(parse_edits("open:decoder.0.attn.1.2-5", shape_of(model))))
    pattern = trace["decoder.0.attn.pattern"][0]
    assert pattern[1, 2, 5] > 0
    assert pattern[0, 2, 5] == pattern[2, 2, 5] == pattern[1, 2, 6] == 0


def test_tokens_are_replaced_in_the_input() -> None:
    found = parse_edits("token:2.9,token:16.1", shape_of(model_of()))
    assert changed_source(found, (5, 6, 7, 8)) == (5, 6, 9, 8)
    assert all_edits(found) == []


def test_edits_keep_their_order_and_duplicates_are_dropped() -> None:
    text = "positions:off,ablate:encoder.0.attn.1"
    assert join_edits(parse_edits(f"{text},positions:off,", shape_of(model_of()))) == text
    assert parse_edits("", shape_of(model_of())) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gas", "is not an edit"),
        ("ablate:encoder.0.attn", "is not an edit"),
        ("ablate:encoder.0.attn.٣", "is not an edit"),
        ("ablate:encoder.2.attn.0", "no attention layer encoder.2.attn"),
        ("ablate:encoder.0.attn.3", "heads 0 to 2, got 3"),
        ("cut:encoder.0.attn.0.3-17", "positions are 0 to 16, got 17"),
        ("ablate:encoder.0.ffn.11", "neurons 0 to 10 in encoder.0.ffn, got 11"),
        ("ablate:encoder.5.ffn", "no feed-forward layer encoder.5.ffn"),
        ("token:0.23", "tokens 0 to 22"),
        ("<script>alert(1)</script>", "is not an edit"),
        (",".join(f"cut:encoder.0.attn.0.{q}-{k}" for q in range(15) for k in range(15)), "at most 200"),
    ],
)
def test_an_invalid_edit_is_rejected_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(EditError, match=words) as caught:
        parse_edits(text, shape_of(model_of()))
    assert "\n" not in str(caught.value)


def test_edits_of_missing_positions_or_feed_forward_layers_are_rejected() -> None:
    with pytest.raises(EditError, match="no position information"):
        parse_edits("positions:off", shape_of(model_of(positions="none")))
    with pytest.raises(EditError, match="it has none"):
        parse_edits("ablate:encoder.0.ffn", shape_of(model_of(d_ff=0)))


def test_layers_may_have_different_numbers_of_heads_and_neurons() -> None:
    heads = {"encoder.0.attn": 2, "encoder.1.attn": 5}
    shape = replace(shape_of(model_of()), heads=heads, neurons={"encoder.1.ffn": 40})
    assert len(parse_edits("ablate:encoder.1.attn.4", shape)) == len(parse_edits("ablate:encoder.1.ffn.39", shape)) == 1
    assert len(parse_edits("solo:encoder.1.attn.4", shape)[0].edits) == 4
    assert parse_edits("ablate:encoder.0.ffn", shape)[0].label == "layer 1 · feed-forward ablated"
    with pytest.raises(EditError, match="heads 0 to 1, got 4"):
        parse_edits("ablate:encoder.0.attn.4", shape)
    with pytest.raises(EditError, match=r"no neurons that can be edited individually in encoder\.0\.ffn"):
        parse_edits("ablate:encoder.0.ffn.0", shape)
