"""First principles of attention, compared with the layers of models and with numbers computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xformer
from tests.training.tiny import random_model
from xformer.analysis.principles import (
    AFTER,
    BEFORE,
    NO_MASK,
    ZERO,
    Sentence,
    attend,
    attention_cell,
    attention_costs,
    dimensions,
    head_of,
    head_output,
    learned_matrices,
    matrix,
    order_error,
    product_variances,
    softmax_jacobian,
    softmax_of_cell,
    softmax_saturation,
    stream_update,
)
from xformer.config import ModelConfig
from xformer.errors import EditError, InputError, UnavailableError
from xformer.layers.attention import Attention
from xformer.reading import from_trace

WORDS = ["to", "be", "or", "not", "to", "be", "now"]
TEXT = " ".join(WORDS)
EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("d", "causal"), [(3, False), (8, True)])
def test_attention_and_its_mask_match_torch(d: int, causal: bool) -> None:
    sentence = Sentence(TEXT, d, seed=5)
    mixed = sentence.attention(mask=BEFORE if causal else NO_MASK)
    q, k, v = (sentence.x @ weights for weights in learned_matrices(d, seed=5))
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
    assert torch.allclose(mixed.out, expected, rtol=0, atol=16 * EPS * expected.abs().max().item())
    assert torch.allclose(mixed.weights.sum(dim=-1), torch.ones(7), rtol=0, atol=4 * EPS)
    assert bool((mixed.weights.triu(1) == 0).all()) == causal


def test_heads_match_the_attention_layer_of_models() -> None:
    d, n_heads = 8, 2
    sizes = {"vocab_size": 5, "d_model": d, "n_layers": 1, "n_heads": n_heads, "d_ff": 0, "max_len": 7}
    config = ModelConfig(architecture="encoder", attention_bias=False, **sizes)
    layer, sentence = Attention(config), Sentence(TEXT, d, seed=3)
    with torch.no_grad():
        layer.weight_in.copy_(torch.cat([weights.T for weights in learned_matrices(d, seed=3)]))
        layer.weight_out.copy_(torch.eye(d))
        expected = layer(sentence.x[None])[0]
    heads = [sentence.attention(n_heads=n_heads, head=head).out for head in range(n_heads)]
    assert torch.allclose(torch.cat(heads, dim=1), expected, rtol=0, atol=16 * EPS * expected.abs().max().item())


def test_head_of_recomputes_a_head_of_a_model() -> None:
    reading = xformer.read(random_model("decoder"), [3, 7, 1, 7])
    mixed = head_of(reading, layer=1, head=2)
    own = {name: reading[f"decoder.1.attn.{name}"][0, 2] for name in ("pattern", "scores", "z")}
    torch.testing.assert_close(mixed.weights, own["pattern"])
    torch.testing.assert_close(mixed.scores, own["scores"])
    torch.testing.assert_close(mixed.out, own["z"])
    assert mixed.names == ["0 · 3", "1 · 7", "2 · 1", "3 · 7"]
    assert matrix(mixed, what="out", n_columns=2)["column"].unique().tolist() == ["z1", "z2"]


def test_each_way_to_mask_matches_weights_computed_by_hand() -> None:
    q, k = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [math.log(3.0)]])  # scores 0, ln 3 and 0, 0
    ways = {mask: attend(["a", "b"], q, q, k, k, mask, "").weights for mask in (NO_MASK, BEFORE, AFTER, ZERO)}
    rows = [weights[0].tolist() for weights in ways.values()]
    assert rows == [pytest.approx(row, abs=2 * EPS) for row in ([0.25, 0.75], [1, 0], [0.25, 0], [0.5, 0.5])]
    assert all(weights[1].tolist() == [0.5, 0.5] for weights in ways.values())


def test_order_matters_only_with_positions() -> None:
    order = [3, 0, 6, 1, 5, 2, 4]
    sentence = Sentence(TEXT, 8, seed=1)
    assert sentence.in_order(order).x.equal(sentence.x[order])
    # Sums of seven products of size about 1, in another order.
    assert order_error(sentence, order) < 64 * EPS
    assert order_error(sentence, order, add_positions=True) > 1e-3


def test_sentences_that_cannot_be_shown_are_refused_with_the_reason() -> None:
    for text, problem in (("one", "has 1"), ("a b c d e f g h i", "has 9"), ("a " + "x" * 15, "at most 14 letters")):
        with pytest.raises(InputError, match=problem):
            Sentence(text)
    assert Sentence("  a\tb ").words == ["a", "b"]


def test_a_matrix_table_has_a_row_per_cell() -> None:
    mixed = Sentence(TEXT, d=4).attention()
    for which, columns in (("x", ["x1", "x2", "x3", "x4"]), ("out", ["y1", "y2", "y3", "y4"]), ("scores", mixed.names)):
        table = matrix(mixed, what=which)
        assert table["value"].tolist() == getattr(mixed, which).flatten().tolist()
        assert table["column"].tolist() == list(columns) * 7
        assert table["row"].tolist() == [name for name in mixed.names for _ in columns]


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_each_stage_of_a_cell_follows_from_the_previous_one(positions: Any) -> None:
    config = xformer.ModelConfig(
        architecture="decoder", vocab_size=23, d_model=13, n_layers=2, n_heads=3, d_head=6, d_value=7, d_ff=11,
        max_len=17, positions=positions, embed_std=1.0,
    )  # fmt: skip
    model = xformer.Transformer(config, torch.Generator().manual_seed(5)).double().eval()
    trace = xformer.record(model, torch.randint(23, (1, 11), generator=torch.Generator().manual_seed(7)))
    reading = from_trace(model, trace)
    cell = attention_cell(reading, layer=1, head=2, query=7, key=3)
    assert dimensions(cell)["product"].sum() == pytest.approx(cell.dot, rel=1e-12)
    assert cell.score == pytest.approx(cell.dot / math.sqrt(6) + cell.bias, rel=1e-12)
    # float64: a sum of six products in another order
    assert trace["decoder.1.attn.scores"][0, 2, 7, 3].item() == pytest.approx(cell.score, rel=1e-10)
    row = softmax_of_cell(cell)
    assert row["token"].tolist() == list(reading.tokens)
    assert (row["exp"] / row["exp"].sum()).tolist() == pytest.approx(row["weight"].tolist(), rel=1e-12)
    assert row["allowed"].tolist() == [key <= 7 for key in range(11)]
    assert row["score"].isna().tolist() == [key > 7 for key in range(11)]
    torch.testing.assert_close(cell.pattern @ cell.values, cell.z, rtol=1e-12, atol=1e-14)
    heads = [head_output(reading, layer=1, head=head, query=7) for head in range(3)]
    torch.testing.assert_close(sum(heads), trace["decoder.1.attn.out"][0, 7], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_stream_before_a_head_and_the_others_sum_to_the_stream_after_the_attention(norm: str) -> None:
    model = random_model("encoder-decoder", norm=norm).double()
    reading = xformer.read(model, "3 7 1 7 > 2 5 4")
    for layer, site in enumerate(reading.attention):
        then = {"attn": "resid_mid", "self_attn": "resid_mid", "cross_attn": "resid_cross"}[site.kind]
        block = model.get_submodule(f"{site.stack}.blocks.{site.layer}")
        parts = [stream_update(reading, layer=layer, head=head, query=1) for head in range(3)]
        total = parts[0].total
        for part in parts:
            torch.testing.assert_close(part.total, total, rtol=1e-12, atol=1e-14)
        assert {part.is_normed for part in parts} == {norm == "post"}
        expected = total if norm != "post" else getattr(block, f"{site.kind}_residual").norm(total)
        torch.testing.assert_close(expected, reading[f"{site.stack}.{site.layer}.{then}"][0, 1], rtol=1e-12, atol=1e-14)


def test_stream_that_was_edited_after_the_attention_is_not_called_a_sum() -> None:
    edit = xformer.edits.steer("decoder.1.resid_mid", torch.ones(13))
    reading = xformer.read(random_model("decoder", norm="pre"), [3, 7, 1, 7], edits=[edit])
    with pytest.raises(UnavailableError, match="not the sum"):
        stream_update(reading, layer=1, head=0, query=2)
    stream_update(reading, layer=0, head=0, query=2)


def test_a_cell_outside_the_trace_is_an_error() -> None:
    reading = xformer.read(random_model("decoder"), [3, 7, 1, 7])
    for head, query, key in ((3, 0, 0), (0, 4, 0), (0, 0, -1)):
        with pytest.raises(EditError, match="got"):
            attention_cell(reading, layer=0, head=head, query=query, key=key)


def test_multiplications_from_shapes_match_torchs_count() -> None:
    n, d, h = 7, 12, 3
    frame = attention_costs(n_tokens=n, d_model=d, n_heads=h)
    sums = frame.groupby("heads", sort=False)["count"].sum()
    assert sums.tolist() == frame.drop_duplicates("heads")["measured"].tolist()
    assert sums["one head of d"] == sums["h heads of d/h"] == 4 * n * d * d + 2 * n * n * d
    assert sums["h heads of d"] == h * sums["one head of d"]


def test_all_widths_use_the_same_random_draws() -> None:
    draw = torch.Generator().manual_seed(11)
    q, k = (torch.randn(50, 13, generator=draw, dtype=torch.float64) for _ in range(2))
    expected = [(q[:, :d] * k[:, :d]).sum(dim=1).var().item() for d in (3, 13)]
    found = product_variances(widths=[3, 13], samples=50, seed=11)
    assert found["variance"].tolist() == pytest.approx(expected)
    assert found["scaled"].tolist() == pytest.approx([expected[0] / 3, expected[1] / 13])


def test_the_softmax_jacobian_matches_autograd_and_its_largest_entry_is_p_1_minus_p() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.7], dtype=torch.float64)
    weights = scores.softmax(dim=0)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=0), scores)
    assert torch.allclose(softmax_jacobian(weights), expected, rtol=0, atol=1e-15)
    assert expected.abs().max().item() == pytest.approx((weights * (1 - weights)).max().item())


def test_the_softmax_saturates_only_without_the_scale() -> None:
    frame = softmax_saturation(widths=[1, 4, 64, 512], n_keys=5, samples=300, seed=2).set_index(["d", "scale"])
    assert frame.loc[(1, "without")].tolist() == frame.loc[(1, "with 1/√d")].tolist()
    raw = frame.xs("without", level="scale")["gradient"].tolist()
    assert raw == sorted(raw, reverse=True)
    assert raw[-1] < 0.25 * raw[0]
    assert 0.15 < frame.xs("with 1/√d", level="scale")["gradient"].min() < frame["gradient"].max() <= 0.25
