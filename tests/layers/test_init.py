"""Initial weights: each matrix within its own bound, drawn from the caller's generator."""

from __future__ import annotations

import math

import pytest
import torch

from tests.layers.reference import model_config
from xformer.layers.feed_forward import NormLayer
from xformer.model import Transformer

pytestmark = pytest.mark.usefixtures("float64")

LARGE = {"d_model": 61, "n_heads": 3, "d_head": 31, "d_value": 7, "d_ff": 97, "n_layers": 1, "vocab_size": 101}


def fresh(seed: int = 0, **changes: object) -> Transformer:
    return Transformer(model_config(**LARGE | changes), torch.Generator().manual_seed(seed)).requires_grad_(False)


@pytest.mark.parametrize("gain", [1.0, 0.3])
def test_xavier_bounds_apply_to_q_k_and_v_separately(gain: float) -> None:
    model = fresh(init_scale=gain)
    block = model.encoder.blocks[0]
    q, k, v = block.attn.weight_in.split(block.attn.rows)
    matrices = [q, k, v, block.attn.weight_out, block.ffn.weight_in, block.ffn.weight_out, model.unembedding.weight]
    assert [tuple(m.shape) for m in matrices[:4]] == [(93, 61), (93, 61), (21, 61), (61, 21)]
    for matrix in matrices:
        n = matrix.numel()  # at least 1281
        bound = gain * math.sqrt(6 / sum(matrix.shape))
        assert matrix.abs().max() <= bound
        # The largest of n uniform numbers is more than 1% below its bound with probability 0.99ⁿ < 3e-6.
        assert matrix.abs().max() > 0.99 * bound
        assert matrix.mean().abs() < 5 * bound / math.sqrt(3 * n)
        assert matrix.var() == pytest.approx(bound**2 / 3, rel=5 * math.sqrt(0.8 / n))  # uniform: kurtosis 9/5


@pytest.mark.parametrize("std", [0.02, 0.5])
def test_normal_initialisation_has_the_requested_std(std: float) -> None:
    model = fresh(init="normal", init_scale=std)
    block = model.encoder.blocks[0]
    for matrix in (block.attn.weight_in, block.attn.weight_out, block.ffn.weight_in, model.unembedding.weight):
        n = matrix.numel()
        assert matrix.mean().abs() < 5 * std / math.sqrt(n)
        assert matrix.std() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
        assert matrix.abs().max() > 2 * std  # not a uniform distribution


@pytest.mark.parametrize("init", ["xavier", "normal"])
@pytest.mark.parametrize("positions", ["learned", "mirror"])
def test_embeddings_biases_and_norms(init: str, positions: str) -> None:
    architecture, of_each = ("encoder-decoder", 2) if positions == "learned" else ("encoder", 1)
    model = fresh(init=init, positions=positions, embed_std=0.7, norm="pre", architecture=architecture)
    tables = {"token", "table", "from_start", "from_end"}
    seen = set()
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last in tables:
            seen.add(name)
            assert parameter.std() == pytest.approx(0.7, rel=5 / math.sqrt(2 * parameter.numel()))
        elif parameter.dim() == 1 and last != "weight":
            assert (parameter == 0).all()
    assert len(seen) == (2 + 2 if positions == "learned" else 1 + 2)
    norms = [module for module in model.modules() if isinstance(module, NormLayer)]
    assert len(norms) == ((2 + 1) + (3 + 1) if of_each == 2 else 2 + 1)
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


def test_randomness_comes_only_from_the_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (fresh(seed, architecture="encoder-decoder").state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.token"], other["embedding.token"])
    Transformer(model_config())
    assert not torch.equal(torch.get_rng_state(), before)
