"""The first principles against the layer that a model runs, against hand-made numbers, and against probability."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from xformer.analysis import principles
from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.layers.attention import Attention
from xformer.positions.sinusoidal import sinusoidal

WORDS = ["to", "be", "or", "not", "to", "be", "now"]
EPS = torch.finfo(torch.float32).eps


def test_the_average_of_two_words_by_hand() -> None:
    mixed = principles.average(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert mixed.scores.tolist() == [[1.0, 0.0], [0.0, 4.0]]
    e = math.e
    expected = [[e / (e + 1), 1 / (e + 1)], [1 / (1 + e**4), e**4 / (1 + e**4)]]
    assert torch.allclose(mixed.weights, torch.tensor(expected), rtol=4 * EPS, atol=0)
    assert mixed.out[1].tolist() == pytest.approx([expected[1][0], 2 * expected[1][1]], rel=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_q_k_v_and_the_mask_are_those_of_torch(d: int, causal: bool) -> None:
    x = principles.word_vectors(WORDS, d, seed=5)
    matrices = principles.learned_matrices(d, seed=7)
    mixed = principles.projected(x, matrices, causal=causal)
    q, k, v = (x @ matrix for matrix in matrices)
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
    assert torch.allclose(mixed.out, expected, rtol=0, atol=16 * EPS * expected.abs().max().item())
    assert torch.allclose(mixed.weights.sum(dim=-1), torch.ones(7), rtol=0, atol=4 * EPS)
    assert bool((mixed.weights.triu(1) == 0).all()) == causal


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_split_heads_are_those_of_the_layer_that_models_run(n_heads: int) -> None:
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
    layer, x = Attention(config), principles.word_vectors(WORDS, d)
    matrices = principles.learned_matrices(d, seed=3)
    with torch.no_grad():
        layer.weight_in.copy_(torch.cat([matrix.T for matrix in matrices]))
        layer.weight_out.copy_(torch.eye(d))
        expected = layer(x[None])[0]
    joined = torch.cat([head.out for head in principles.split_heads(x, matrices, n_heads)], dim=1)
    assert torch.allclose(joined, expected, rtol=0, atol=16 * EPS * expected.abs().max().item())


def test_the_ways_to_mask_by_hand() -> None:
    ways = principles.ways_to_mask(torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]]))
    assert list(ways) == ["no mask", "−∞ before the softmax", "0 after the softmax", "0 before the softmax"]
    rows = [ways[way][0].tolist() for way in ways]
    assert rows == [pytest.approx(row, abs=2 * EPS) for row in ([0.25, 0.75], [1, 0], [0.25, 0], [0.5, 0.5])]
    assert all(matrix[1].tolist() == [0.5, 0.5] for matrix in ways.values())


@pytest.mark.parametrize("seed", range(5))
def test_the_variance_of_q_k_is_d_and_with_the_scale_1(seed: int) -> None:
    frame = principles.product_variances([2, 7, 64, 512], samples=3000, seed=seed)
    # Five standard errors: for the twenty numbers of this test together, a chance of about 1e-5 to fail.
    assert ((frame["variance"] - frame["d"]).abs() < 5 * frame["error"]).all()
    assert frame["scaled"].tolist() == pytest.approx((frame["variance"] / frame["d"]).tolist())


def test_the_error_of_a_variance_is_how_far_many_of_them_scatter() -> None:
    frames = [principles.product_variances([1, 5], samples=200, seed=seed) for seed in range(400)]
    for row, d in enumerate((1, 5)):
        scatter = torch.tensor([frame["variance"][row] for frame in frames]).std().item()
        # The scatter of a scatter: heavy tails (the products' eighth moment) leave it within a fifth or so at 400 draws.
        assert scatter == pytest.approx(frames[0]["error"][row], rel=0.3), d


def test_the_variance_is_measured_on_products_of_the_same_draws() -> None:
    draw = torch.Generator().manual_seed(11)
    q, k = (torch.randn(50, 13, generator=draw, dtype=torch.float64) for _ in range(2))
    expected = [(q[:, :d] * k[:, :d]).sum(dim=1).var().item() for d in (3, 13)]
    assert principles.product_variances([3, 13], 50, seed=11)["variance"].tolist() == pytest.approx(expected)


def test_the_jacobian_is_that_of_autograd_and_its_largest_entry_p_1_minus_p() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.0, 0.7], dtype=torch.float64)
    weights = scores.softmax(dim=0)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=0), scores)
    assert torch.allclose(principles.softmax_jacobian(weights), expected, rtol=0, atol=1e-15)
    assert expected.abs().max().item() == pytest.approx((weights * (1 - weights)).max().item())


def test_without_the_scale_the_softmax_saturates_and_with_it_it_does_not() -> None:
    frame = principles.saturation([1, 4, 64, 512], n_keys=5, samples=300, seed=2).set_index(["d", "scale"])
    assert frame.loc[(1, "without")].tolist() == frame.loc[(1, "with 1/√d")].tolist()
    raw = frame.xs("without", level="scale")["gradient"].tolist()
    assert raw == sorted(raw, reverse=True)
    assert raw[-1] < 0.25 * raw[0]
    scaled = frame.xs("with 1/√d", level="scale")["gradient"]
    assert scaled.min() > 0.15
    assert frame["gradient"].max() <= 0.25


def test_one_row_is_a_softmax_of_products() -> None:
    scores, weights = principles.one_row(16, 7, scaled=True, seed=3)
    raw, _ = principles.one_row(16, 7, scaled=False, seed=3)
    assert torch.allclose(scores * 4, raw)
    assert torch.equal(weights, scores.softmax(dim=-1))


@pytest.mark.parametrize(("n", "d", "h"), [(5, 4, 2), (7, 12, 3), (64, 512, 8)])
def test_multiplications_from_shapes_are_those_that_torch_counts(n: int, d: int, h: int) -> None:
    frame = principles.costs(n, d, h)
    sums = frame.groupby("heads", sort=False)["count"].sum()
    assert sums.tolist() == frame.drop_duplicates("heads")["measured"].tolist()
    assert sums["one head of d"] == sums["h heads of d/h"] == 4 * n * d * d + 2 * n * n * d
    assert sums["h heads of d"] == h * sums["one head of d"]


@pytest.mark.parametrize("seed", range(10))
def test_order_matters_with_positions_alone(seed: int) -> None:
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
    x, matrices = principles.word_vectors(WORDS, 8, seed=1), principles.learned_matrices(8, seed=1)
    positions = sinusoidal(7, 8)

    def plain(rows: torch.Tensor) -> torch.Tensor:
        return principles.projected(rows, matrices).out

    def placed(rows: torch.Tensor) -> torch.Tensor:
        return principles.projected(rows + positions, matrices).out

    # Sums of seven products of size about 1, in another order.
    assert principles.order_error(plain, x, order) < 64 * EPS
    if [WORDS[at] for at in order] != WORDS:
        assert principles.order_error(placed, x, order) > 1e-3


def test_words_have_the_same_vector_wherever_they_stand_and_another_for_another_seed() -> None:
    x = principles.word_vectors(WORDS, 5, seed=1)
    assert torch.equal(x[0], x[4])
    assert not torch.equal(x[0], x[1])
    assert torch.equal(principles.word_vectors(["be"], 5, seed=1)[0], x[1])
    assert not torch.equal(principles.word_vectors(["be"], 5, seed=2)[0], x[1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "has 0"), ("one", "has 1"), ("a b c d e f g h i", "has 9"), ("a " + "x" * 15, "at most 14 letters")],
)
def test_a_sentence_that_cannot_be_shown_says_why(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        principles.words_of(text)
    assert principles.words_of("  a\tb ") == ["a", "b"]


def test_a_row_is_written_as_the_sum_that_it_is() -> None:
    mixed = principles.average(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert principles.weighted_sum(mixed, 0, ["a", "b"]) == "new 0 a = 0.731 · 0 a + 0.269 · 1 b"
