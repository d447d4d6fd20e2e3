"""The optimiser against an AdamW written out, and its state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny import random_model
from xformer.config import TrainConfig
from xformer.model import Transformer
from xformer.training.optimiser import adamw, clip, restore_training_state, training_state, update

# float64 rounds at 1.1e-16. Between two orders of the same sums gradients of order 1 differ by about 1e-15; Adam divides by
# √v + ε, which is at least ε = 1e-3 (a key's bias has no gradient but such noise), times rates that add up to 0.55: 1e-12.
EXACT = 1e-12


def loss_of(model: Transformer, step: int) -> Tensor:
    tokens = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("clip_norm", [0.0, 0.05, 1e9], ids=["unclipped", "always clipped", "never clipped"])
def test_every_weight_follows_the_equations_of_adamw(float64: None, weight_decay: float, clip_norm: float) -> None:
    ours, theirs = (random_model("decoder", attention_bias=True) for _ in range(2))
    config = TrainConfig(steps=10, weight_decay=weight_decay, clip_norm=clip_norm, beta1=0.8, beta2=0.95, adam_eps=1e-3)
    optimiser, parameters = adamw(ours, config), list(theirs.parameters())
    before = [p.detach().clone() for p in parameters]
    m, v = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for t in range(1, 11):
        lr = 0.01 * t
        optimiser.zero_grad()
        loss_of(ours, t).backward()
        norm = clip(ours, clip_norm)
        update(optimiser, lr)
        gradients = torch.autograd.grad(loss_of(theirs, t), parameters)
        expected_norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        torch.testing.assert_close(norm, expected_norm, rtol=EXACT, atol=0)
        share = min(1.0, clip_norm / (float(expected_norm) + 1e-6)) if clip_norm else 1.0
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
                m[i] = 0.8 * m[i] + 0.2 * share * g
                v[i] = 0.95 * v[i] + 0.05 * (share * g) ** 2
                m_hat, v_hat = m[i] / (1 - 0.8**t), v[i] / (1 - 0.95**t)
                decay = weight_decay if p.dim() >= 2 else 0.0
                p.sub_(lr * decay * p).sub_(lr * m_hat / (v_hat.sqrt() + 1e-3))
        for (name, mine), other in zip(ours.named_parameters(), parameters, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=EXACT, msg=lambda text, name=name: f"{name}: {text}")
    moved = [(p.detach() - b).abs().max().item() for p, b in zip(parameters, before, strict=True)]
    assert min(moved) > 1e-3  # every tensor took part


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_restored_optimiser_continues_to_the_bit(weight_decay: float, at: int) -> None:
    config = TrainConfig(steps=9, weight_decay=weight_decay)

    def steps(model: Transformer, optimiser: torch.optim.AdamW, first: int, last: int) -> None:
        for step in range(first, last):
            optimiser.zero_grad()
            loss_of(model, step).backward()
            clip(model, 1.0)
            update(optimiser, 0.01)

    whole, first_part = (random_model("decoder", attention_bias=True) for _ in range(2))
    undisturbed, stopped = adamw(whole, config), adamw(first_part, config)
    steps(whole, undisturbed, 0, 9)
    steps(first_part, stopped, 0, at)
    state = training_state(first_part, stopped)
    steps(first_part, stopped, at, at + 1)  # a state is a copy: later steps do not change it
    other = random_model("decoder", attention_bias=True, seed=5)
    resumed = adamw(other, config)
    steps(other, resumed, 0, 2)  # what the optimiser held before is replaced
    restore_training_state(other, resumed, state)
    steps(other, resumed, at, 9)
    mine, theirs = training_state(other, resumed), training_state(whole, undisturbed)
    assert mine.keys() == theirs.keys()
    assert len(theirs) == 4 * len(list(whole.parameters()))
    for name in theirs:
        assert torch.equal(mine[name], theirs[name]), name


def test_the_state_of_another_shape_is_refused() -> None:
    model = random_model("encoder")
    state = training_state(model, adamw(model, TrainConfig(steps=1)))
    other = random_model("encoder", d_ff=19)
    with pytest.raises(RuntimeError, match="another shape"):
        restore_training_state(other, adamw(other, TrainConfig(steps=1)), state)
