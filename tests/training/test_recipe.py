"""The optimiser against an AdamW written out, and its state."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny import ARCHITECTURES, random_model, run_of, tiny_preset, tiny_task
from xformer.config import TrainConfig
from xformer.layers.masks import Layout
from xformer.model import Transformer
from xformer.presets import preset
from xformer.training.evaluate import scores_by_length
from xformer.training.recipe import (
    adamw,
    clip,
    learning_rate,
    restore_training_state,
    spread,
    training_state,
    update,
    with_random_positions,
)

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


@pytest.mark.parametrize(("weight_decay", "at"), [(0.0, 1), (0.3, 0), (0.3, 4)])
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


R = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # W = 2: 1/2 and 2/2 of the peak, then t = (step - 3) / 8
        ({"steps": 10, "warmup": 0.2, "peak_lr": 8.0}, [4, 8, 8, 7, 6, 5, 4, 3, 2, 1]),
        ({"steps": 6, "warmup": 1 / 3, "peak_lr": 5.0, "final_lr": 1.0}, [2.5, 5, 5, 4, 3, 2]),
        # W = 1, t = 0, 1/4, 1/2, 3/4: 1 + 4 (1 + cos πt) / 2
        (
            {"steps": 5, "warmup": 0.2, "peak_lr": 5.0, "final_lr": 1.0, "decay": "cosine"},
            [5, 5, 3 + 2 * R, 3, 3 - 2 * R],
        ),
        ({"steps": 6, "warmup": 0.5, "peak_lr": 3.0, "decay": "none"}, [1, 2, 3, 3, 3, 3]),
        ({"steps": 4, "warmup": 0.0, "peak_lr": 4.0}, [4, 3, 2, 1]),
        ({"steps": 4, "warmup": 1.0, "peak_lr": 4.0, "decay": "cosine"}, [1, 2, 3, 4]),
        ({"steps": 7, "warmup": 0.4, "peak_lr": 3.0, "decay": "none"}, [1, 2, 3, 3, 3, 3, 3]),  # 2.8 steps are 3
    ],
)
def test_the_schedule_warms_up_and_decays(settings: dict[str, Any], expected: list[float]) -> None:
    config = TrainConfig(**settings)
    assert [learning_rate(config, step) for step in range(1, config.steps + 1)] == pytest.approx(expected)


MAX_LEN = 17


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("packed", [True, False])
def test_each_sequence_has_growing_numbers_of_its_own_alike_from_both_ends(packed: bool) -> None:
    batch = tiny_task().sample(40, seed=1, packed=packed)
    after = with_random_positions(batch, MAX_LEN, draw()).layout
    assert batch.layout.segments is not None
    seen = set()
    for row, segments in enumerate(batch.layout.segments):
        for segment in segments.unique():
            inside = segments == segment
            numbers, from_end = after.positions[row][inside].tolist(), after.mirrored[row][inside].tolist()
            if segment == 0:  # padding stays as it was
                assert numbers == batch.layout.positions[row][inside].tolist()
                continue
            assert numbers == sorted(set(numbers))
            assert from_end == numbers[::-1]
            assert max(numbers) < MAX_LEN
            seen |= set(numbers)
    assert seen == set(range(MAX_LEN))


def test_every_number_comes_up_and_a_sequence_as_long_as_there_are_numbers_keeps_them() -> None:
    layout = spread(Layout.from_segments(torch.ones(4000, 3, dtype=torch.long)), 7, draw(3))
    rows = layout.positions.tolist()
    assert [0, 1, 2] in rows
    first, last = ({row[at] for row in rows} for at in (0, 2))
    assert first == set(range(5))
    assert last == set(range(2, 7))

    layout = Layout.from_segments(torch.tensor([[1] * 5, [1, 1, 2, 2, 2]]))
    after = spread(layout, 5, draw())
    assert after.positions[0].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(spread(layout, 5, draw(1)).positions, spread(layout, 5, draw(1)).positions)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_trains_on_them_and_is_scored_on_plain_ones(architecture: str) -> None:
    settings = tiny_preset(architecture, random_positions=True)
    run = run_of(settings)
    batch = run.batch(3)
    layouts = [batch.layout] + ([] if batch.target_layout is None else [batch.target_layout])
    longest = max(run.task.longest)
    for layout in layouts:
        assert int(layout.positions.max()) >= longest  # which no plain input has
        assert int(layout.positions.max()) < settings.model.max_len
    assert int(run.held_out.layout.positions.max()) < longest
    assert torch.equal(run.batch(3).layout.positions, batch.layout.positions)
    assert not torch.equal(run.batch(4).layout.positions, batch.layout.positions)


def test_they_carry_a_reverser_beyond_its_training() -> None:
    """A short training, so only that it helps: without them the first longer inputs fail already."""
    settings = preset("reverse-long")
    right = {}
    for on in (True, False):
        recipe = settings.train.replace(steps=250, snapshot_every=0, random_positions=on)
        run = run_of(replace(settings, train=recipe))
        for _ in range(250):
            run.train_step()
        [(_, score)] = scores_by_length(run.model.eval(), run.task, [22], samples=100, seed=1)
        right[on] = score.exact_match
    assert right[True] > 0.5 > right[False]
