"""The first principles against the layer that a model runs, and against hand-made numbers."""

from __future__ import annotations

import math

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
    head_of,
    learned_matrices,
    matrix,
    order_error,
    word_vectors,
)
from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.layers.attention import Attention

WORDS = ["to", "be", "or", "not", "to", "be", "now"]
TEXT = " ".join(WORDS)
EPS = torch.finfo(torch.float32).eps


def two_words() -> Sentence:
    return Sentence("a b", d=2, own=("b", (0.0, 2.0)))


def test_the_average_of_two_words_by_hand() -> None:
    a, b = two_words().x
    mixed = two_words().average()
    assert b.tolist() == [0.0, 2.0]
    torch.testing.assert_close(mixed.scores, torch.stack([torch.stack([a @ a, a @ b]), torch.stack([a @ b, b @ b])]))
    e = math.exp((a @ b).item() - 4)  # the row of b
    assert mixed.weights[1].tolist() == pytest.approx([e / (1 + e), 1 / (1 + e)], rel=1e-5)
    assert mixed.out[1].tolist() == pytest.approx(((e * a + b) / (1 + e)).tolist(), rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_q_k_v_and_the_mask_are_those_of_torch(d: int, causal: bool) -> None:
    sentence = Sentence(TEXT, d, seed=5)
    mixed = sentence.attention(mask=BEFORE if causal else NO_MASK)
    q, k, v = (sentence.x @ weights for weights in learned_matrices(d, seed=5))
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
    assert torch.allclose(mixed.out, expected, rtol=0, atol=16 * EPS * expected.abs().max().item())
    assert torch.allclose(mixed.weights.sum(dim=-1), torch.ones(7), rtol=0, atol=4 * EPS)
    assert bool((mixed.weights.triu(1) == 0).all()) == causal


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_heads_are_those_of_the_layer_that_models_run(n_heads: int) -> None:
    d = 8
    config = ModelConfig(
        architecture="encoder",
        vocab_size=5,
        d_model=d,
        n_layers=1,
        n_heads=n_heads,
        d_ff=0,
        attention_bias=False,
        max_len=7,
    )
    layer, sentence = Attention(config), Sentence(TEXT, d, seed=3)
    with torch.no_grad():
        layer.weight_in.copy_(torch.cat([weights.T for weights in learned_matrices(d, seed=3)]))
        layer.weight_out.copy_(torch.eye(d))
        expected = layer(sentence.x[None])[0]
    heads = [sentence.attention(n_heads=n_heads, head=head).out for head in range(n_heads)]
    assert torch.allclose(torch.cat(heads, dim=1), expected, rtol=0, atol=16 * EPS * expected.abs().max().item())


def test_a_head_of_a_model_is_computed_again_from_its_own_numbers() -> None:
    reading = xformer.read(random_model("decoder"), [3, 7, 1, 7])
    mixed = head_of(reading, layer=1, head=2)
    own = {name: reading[f"decoder.1.attn.{name}"][0, 2] for name in ("pattern", "scores", "z")}
    torch.testing.assert_close(mixed.weights, own["pattern"])
    torch.testing.assert_close(mixed.scores, own["scores"])
    torch.testing.assert_close(mixed.out, own["z"])
    assert mixed.names == ["0 3", "1 7", "2 1", "3 7"]
    assert matrix(mixed, which="out", n_columns=2)["column"].unique().tolist() == ["z1", "z2"]


def test_the_ways_to_mask_by_hand() -> None:
    q, k = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [math.log(3.0)]])  # scores 0, ln 3 and 0, 0
    ways = {mask: attend(["a", "b"], q, q, k, k, mask, "").weights for mask in (NO_MASK, BEFORE, AFTER, ZERO)}
    rows = [weights[0].tolist() for weights in ways.values()]
    assert rows == [pytest.approx(row, abs=2 * EPS) for row in ([0.25, 0.75], [1, 0], [0.25, 0], [0.5, 0.5])]
    assert all(weights[1].tolist() == [0.5, 0.5] for weights in ways.values())


@pytest.mark.parametrize("seed", range(10))
def test_order_matters_with_positions_alone(seed: int) -> None:
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
    sentence = Sentence(TEXT, 8, seed=1)
    assert sentence.in_order(order).x.equal(sentence.x[order])
    # Sums of seven products of size about 1, in another order.
    assert order_error(sentence, order) < 64 * EPS
    if [WORDS[at] for at in order] != WORDS:
        assert order_error(sentence, order, add_positions=True) > 1e-3


def test_words_have_the_same_vector_wherever_they_stand_and_another_for_another_seed() -> None:
    x = word_vectors(WORDS, 5, seed=1)
    assert torch.equal(x[0], x[4])
    assert not torch.equal(x[0], x[1])
    assert torch.equal(word_vectors(["be"], 5, seed=1)[0], x[1])
    assert not torch.equal(word_vectors(["be"], 5, seed=2)[0], x[1])


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "has 0"), ("one", "has 1"), ("a b c d e f g h i", "has 9"), ("a " + "x" * 15, "at most 14 letters")],
)
def test_a_sentence_that_cannot_be_shown_says_why(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Sentence(text)
    assert Sentence("  a\tb ").words == ["a", "b"]


def test_a_row_is_written_as_the_sum_that_it_is() -> None:
    mixed = two_words().average()
    first, second = mixed.weights[1].tolist()
    assert mixed.weighted_sum(1) == f"new 1 b = {first:.3f} · 0 a + {second:.3f} · 1 b"


@pytest.mark.parametrize(
    "sentence", [Sentence("a <b> 'c'"), Sentence("a b", 2, 9, ("b", (0.1, -2.0))), Sentence("x y z", d=8, seed=1)]
)
def test_what_prints_itself_is_made_again_by_what_it_prints(sentence: Sentence) -> None:
    for mixed in (
        sentence.average(),
        sentence.attention(),
        sentence.attention(mask=ZERO, n_heads=2, head=1, add_positions=True),
    ):
        again = eval(mixed.recipe, {"xformer": xformer})
        assert again.out.equal(mixed.out)
        assert (again.names, again.mask) == (mixed.names, mixed.mask)


def test_a_matrix_has_a_row_for_each_cell() -> None:
    mixed = Sentence(TEXT, d=4).attention()
    for which, columns in (("x", ["x1", "x2", "x3", "x4"]), ("out", ["y1", "y2", "y3", "y4"]), ("scores", mixed.names)):
        table = matrix(mixed, which=which)
        assert table["value"].tolist() == getattr(mixed, which).flatten().tolist()
        assert table["column"].tolist() == list(columns) * 7
        assert table["row"].tolist() == [name for name in mixed.names for _ in columns]
