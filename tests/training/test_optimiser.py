"""The flat optimiser against `torch.optim.AdamW` and `clip_grad_norm_` on the tensors one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny import random_model
from xformer.config import TrainConfig
from xformer.counting import n_parameters
from xformer.model import Transformer
from xformer.training.optimiser import FlatAdamW

# float64 rounds at 1.1e-16. Between two orders of the same sums gradients of order 1 differ by about 1e-15; Adam divides by
# √v + ε, which is at least ε = 1e-3 (a key's bias has no gradient but such noise), times rates that add up to 0.55: 1e-12.
EXACT = 1e-12


def pair(**options: Any) -> tuple[Transformer, Transformer]:
    """The same model twice."""
    return random_model("decoder", attention_bias=True, **options), random_model(
        "decoder", attention_bias=True, **options
    )


def reference(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """One AdamW, every tensor for itself: matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        foreach=False,
        fused=False,
    )


def loss_of(model: Transformer, step: int) -> Tensor:
    tokens = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("clip_norm", [0.0, 0.05, 1e9], ids=["unclipped", "always clipped", "never clipped"])
def test_every_weight_is_what_adamw_makes_it(float64: None, weight_decay: float, clip_norm: float) -> None:
    ours, theirs = pair()
    config = TrainConfig(steps=10, weight_decay=weight_decay, clip_norm=clip_norm, beta1=0.8, beta2=0.95, adam_eps=1e-3)
    flat, adamw = FlatAdamW(ours, config), reference(theirs, config)
    before = [p.detach().clone() for p in theirs.parameters()]
    for step in range(10):
        lr = 0.01 * (step + 1)
        flat.clear()
        loss_of(ours, step).backward()
        norm = flat.clip()
        flat.follow(lr)
        adamw.zero_grad()
        loss_of(theirs, step).backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or float("inf"))
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
        torch.testing.assert_close(norm, expected_norm, rtol=EXACT, atol=0)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=EXACT, msg=lambda m, name=name: f"{name}: {m}")
    moved = [(p.detach() - b).abs().max().item() for p, b in zip(theirs.parameters(), before, strict=True)]
    assert min(moved) > 1e-3  # every tensor took part


def test_weight_decay_spares_vectors() -> None:
    model = random_model("encoder")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    FlatAdamW(model, TrainConfig(steps=1, weight_decay=0.5)).follow(lr=0.1)  # no gradient: nothing but decay
    for name, p in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if p.dim() >= 2 else 1.0
        torch.testing.assert_close(p.detach(), before[name] * factor, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"tied_output": True}, {"norm": "none", "ffn_bias": False, "output_bias": False}]
)
def test_parameters_are_views_of_the_buffer_with_unchanged_values(options: dict[str, Any]) -> None:
    model, untouched = random_model("encoder", **options), random_model("encoder", **options)
    flat = FlatAdamW(model, TrainConfig(steps=1, weight_decay=0.1))
    assert len(flat.flat) == n_parameters(model.config)
    low, high = flat.flat.data_ptr(), flat.flat.data_ptr() + 4 * len(flat.flat)
    for mine, other in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert low <= mine.data_ptr() < high
    flat.flat.fill_(2.0)
    assert all((p == 2.0).all() for p in model.parameters())
    flat.clip()
    flat.follow(lr=0.0)


def test_gradients_add_up_in_the_flat_buffer(float64: None) -> None:
    ours, theirs = pair()
    flat = FlatAdamW(ours, TrainConfig(steps=1))
    for step in (0, 1):
        loss_of(ours, step).backward()
    (loss_of(theirs, 0) + loss_of(theirs, 1)).backward()
    start = 0
    for mine, other in sorted(zip(ours.parameters(), theirs.parameters(), strict=True), key=lambda pq: pq[0].dim() < 2):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=EXACT)
        piece = flat.gradient[start : start + mine.numel()]
        assert piece.data_ptr() == mine.grad.data_ptr()
        start += mine.numel()
    assert start == len(flat.gradient)
    flat.clear()
    assert all(p.grad is not None and not p.grad.any() for p in ours.parameters())


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_restored_optimiser_goes_on_to_the_bit(weight_decay: float, at: int) -> None:
    config = TrainConfig(steps=9, weight_decay=weight_decay)

    def steps(model: Transformer, flat: FlatAdamW, first: int, last: int) -> None:
        for step in range(first, last):
            flat.clear()
            loss_of(model, step).backward()
            flat.clip()
            flat.follow(0.01)

    whole, first_part = pair()
    undisturbed, stopped = FlatAdamW(whole, config), FlatAdamW(first_part, config)
    steps(whole, undisturbed, 0, 9)
    steps(first_part, stopped, 0, at)
    state = stopped.state()
    steps(first_part, stopped, at, at + 1)  # a state is a copy: what happens afterwards does not reach it
    other = random_model("decoder", attention_bias=True, seed=5)
    resumed = FlatAdamW(other, config)
    resumed.restore(state)
    steps(other, resumed, at, 9)
    mine, theirs = resumed.state(), undisturbed.state()
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(mine[name], theirs[name]), name
