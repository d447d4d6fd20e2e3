"""Dropout: rate, scale, sites and randomness, and that it is off in eval mode, on a tape and in decoding."""

from __future__ import annotations

import math

import pytest
import torch

from tests.layers.reference import (
    ARCHITECTURES,
    WHOLE_MODEL,
    assert_same,
    build,
    inputs,
    random_tokens,
    softmax_by_hand,
)
from xformer.config import DROPOUT_SITES
from xformer.layers.attention import Cache
from xformer.layers.dropout import Dropout
from xformer.model import Transformer
from xformer.tape import Tape
from xformer.trace import record

pytestmark = pytest.mark.usefixtures("float64")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_expected_scale(rate: float) -> None:
    n = 100_003
    x = torch.full((n,), 3.0)
    y = Dropout(rate, DROPOUT_SITES, seeded(0))("ffn", x)
    dropped = y == 0
    # Bernoulli: the dropped fraction has the standard deviation √(p(1-p)/n); one seed in a million exceeds five of them.
    assert abs(dropped.double().mean().item() - rate) < 5 * math.sqrt(rate * (1 - rate) / n)
    assert abs(y.mean().item() / 3 - 1) < 5 * math.sqrt(rate / (1 - rate) / n)
    torch.testing.assert_close(y[~dropped], x[~dropped] / (1 - rate), rtol=1e-15, atol=0)


def by_hand(model: Transformer, tokens: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Compute a one-layer post-norm encoder with a separate Bernoulli draw at each site of the paper's §5.4 and later ones."""
    rate, block = model.config.dropout, model.encoder.blocks[0]

    def drop(site: str, x: torch.Tensor) -> torch.Tensor:
        if site not in model.config.dropout_sites:
            return x
        return x * torch.empty_like(x).bernoulli_(1 - rate, generator=generator) / (1 - rate)

    attn, ffn = block.attn, block.ffn
    x = drop("embed", model.embedding.token[tokens] + model.encoder.positions.table.table[: tokens.shape[1]])
    weights = ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
    q, k, v = (torch.einsum("bqm,hmd->bhqd", x, weight) + bias[:, None] for weight, bias in weights)
    pattern = drop("attention", softmax_by_hand(q @ k.mT / math.sqrt(model.config.d_head)))
    out = torch.einsum("bhqd,hdm->bqm", pattern @ v, attn.W_O) + attn.b_O
    x = block.attn_residual.norm(x + drop("residual", out))
    hidden = drop("ffn", (x @ ffn.weight_in.T + ffn.bias_in).clamp(min=0))
    x = block.ffn_residual.norm(x + drop("residual", hidden @ ffn.weight_out.T + ffn.bias_out))
    return x @ model.unembedding.weight.T + model.unembedding.bias


@pytest.mark.parametrize("sites", [*((site,) for site in DROPOUT_SITES), DROPOUT_SITES, ()])
def test_dropout_at_each_site_equals_a_run_by_hand(sites: tuple[str, ...]) -> None:
    model = build(n_layers=1, positions="learned", dropout=0.3, dropout_sites=sites).train()
    tokens = random_tokens(2, 11)
    actual = model(tokens, generator=seeded(3))
    assert_same(actual, by_hand(model, tokens, seeded(3)), list(model.parameters()), WHOLE_MODEL)
    assert torch.equal(actual, model.eval()(tokens)) == (sites == ())


def test_randomness_comes_only_from_the_generator() -> None:
    model = build(architecture="encoder-decoder", dropout=0.3).train()
    arguments = inputs(model)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (model(*arguments, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.allclose(model(*arguments), model(*arguments))  # without a generator, the global one is used
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_dropout_in_eval_mode_or_on_a_tape(architecture: str) -> None:
    model = build(architecture=architecture, dropout=0.9)
    twin = build(architecture=architecture)
    arguments = inputs(model)
    plain, taped = twin(*arguments), twin(*arguments, tape=Tape())
    assert not torch.allclose(model.train()(*arguments), plain)
    assert torch.equal(model(*arguments, tape=Tape()), taped)
    assert torch.equal(record(model, *arguments).logits, taped)
    assert model.training
    assert torch.equal(model.eval()(*arguments), plain)


@torch.no_grad()
def test_no_dropout_while_decoding() -> None:
    model = build(architecture="decoder", dropout=0.9).train()
    tokens = random_tokens(2, 5)
    assert torch.equal(model.extend(tokens, Cache.empty(2)), model.eval()(tokens))
