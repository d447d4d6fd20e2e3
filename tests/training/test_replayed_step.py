"""A step that is repeated on a processor is, bit for bit, the usual one, whatever its batches and wherever its run has been."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.training.tiny import ARCHITECTURES, run_of, tiny_preset, trained
from xformer.presets import Preset
from xformer.tasks import Batch, Task
from xformer.tasks.task import CHUNK
from xformer.training import replayed_step
from xformer.training.loop import Run, train
from xformer.training.recording import Recording, UnrepeatableError
from xformer.training.replayed_step import MOST_SHAPES, WARM_UP, ReplayedStep
from xformer.training.stacked_step import StackedStep
from xformer.training.steps import Training
from xformer.training.train_many import sweep


def replayed(preset: Preset) -> tuple[Run, ReplayedStep]:
    run = run_of(preset)
    step = ReplayedStep(run)
    run.take_step = step.take
    list(run.reports())
    return run, step


def assert_same_bits(one: Training, other: Training) -> None:
    assert one.step == other.step > WARM_UP
    assert torch.equal(one.optimiser.flat, other.optimiser.flat)
    for mine, theirs in zip(one.rows, other.rows, strict=True):
        assert (mine["loss"], mine["gradient_norm"]) == (theirs["loss"], theirs["gradient_norm"])


def repeated(step: ReplayedStep) -> list[bool]:
    return [of.replay is not None for of in step.gradient.shapes.values()]


LONG = {"steps": WARM_UP + 12, "log_every": 4}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 3, "weight_decay": 0.1, "clip_norm": 0.5},
        {"random_positions": True, "clip_norm": 0.0},
        {"lr_changes": ((WARM_UP + 3, 0.001),)},
    ],
    ids=["packed", "padded", "random positions", "another rate"],
)
def test_the_bits_are_those_of_the_usual_step(architecture: str, options: dict[str, Any]) -> None:
    preset = tiny_preset(architecture, **(LONG | options))
    run, step = replayed(preset)
    assert_same_bits(run, trained(preset))
    assert repeated(step) == [True]


@pytest.mark.parametrize(
    "model", [{"positions": "rotary"}, {"positions": "alibi"}, {"norm": "pre", "activation": "gelu"}]
)
def test_other_layers_are_repeated_too(model: dict[str, Any]) -> None:
    preset = tiny_preset("decoder", model=model, **LONG)
    run, step = replayed(preset)
    assert_same_bits(run, trained(preset))
    assert repeated(step) == [True]


def test_it_goes_on_with_the_next_batches_where_those_drawn_end() -> None:
    preset = tiny_preset(steps=CHUNK + 3, log_every=CHUNK + 3)
    assert_same_bits(replayed(preset)[0], trained(preset))


def test_what_draws_is_trained_the_usual_way() -> None:
    preset = tiny_preset(model={"dropout": 0.1}, **LONG)
    run, step = replayed(preset)
    assert_same_bits(run, trained(preset))
    assert repeated(step) == [False]


def test_what_would_be_too_much_to_keep_is_trained_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_step, "MOST_BYTES", 10_000)
    run, step = replayed(tiny_preset(**LONG))
    assert_same_bits(run, trained(tiny_preset(**LONG)))
    assert repeated(step) == [False]


def test_a_recording_is_given_up_where_it_would_keep_too_much() -> None:
    x = torch.ones(1000)
    Recording(lambda: [x * 2 + 1], most=8000)
    with pytest.raises(UnrepeatableError, match="too much"):
        Recording(lambda: [x * 2 + 1], most=7999)


def test_it_may_be_given_up_in_the_middle_of_a_backward_pass() -> None:
    w = torch.ones(1000, requires_grad=True)

    def compute() -> list[torch.Tensor]:
        loss = (w * 2).exp().sum()  # 4,000 and 4,000 and 4 bytes
        loss.backward()
        return [loss]

    with pytest.raises(UnrepeatableError, match="too much"):
        Recording(compute, most=9000)
    w.grad = None
    compute()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, 2 * (2 * w.detach()).exp())


def test_attention_that_leaves_nothing_out_is_repeated_and_other_is_not() -> None:
    q = torch.randn(1, 2, 5, 3)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for zero in ({}, {"dropout_p": 0.0}):
        Recording(lambda zero=zero: [attend(q, q, q, **zero)[0]])
    with pytest.raises(UnrepeatableError):
        Recording(lambda: [attend(q, q, q, 0.5)[0]])


def batches(task: Task, lengths: Iterator[int]) -> Iterator[Batch]:
    for number, length in enumerate(lengths):
        of = Task(task.config.replace(min_len=length, max_len=length))
        yield of.sample(4, seed=number, purpose="train")


def test_each_shape_is_recorded_for_itself_and_not_more_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = tiny_preset(model={"max_len": 40}, **LONG)
    n_shapes, each = MOST_SHAPES + 2, WARM_UP + 3
    runs = [run_of(preset), run_of(preset)]
    step = ReplayedStep(runs[0])
    for take, run in zip((step.take, lambda: Training.train_step(runs[1])), runs, strict=True):
        lengths = (2 + number % n_shapes for number in range(n_shapes * each))
        found = batches(run.task, lengths)
        monkeypatch.setattr(run, "batch", lambda _step, found=found: next(found))
        for _ in range(n_shapes * each):
            take()
    assert torch.equal(runs[0].optimiser.flat, runs[1].optimiser.flat)
    assert repeated(step) == [True] * MOST_SHAPES


def test_a_run_that_has_left_a_stack_goes_on_in_its_own_storage() -> None:
    presets = sweep(tiny_preset(**LONG), seed=[0, 1])
    run, other = (run_of(one, ReplayedStep) for one in presets)
    for _ in range(WARM_UP + 2):
        run.train_step()
        other.train_step()
    stack = StackedStep([run, other])
    stack.leave(run)
    alone = run_of(presets[0])
    alone.optimiser.restore(run.optimiser.state())
    alone.step = run.step
    for _ in range(WARM_UP + 2):
        run.train_step()
        Training.train_step(alone)
    assert torch.equal(run.optimiser.flat, alone.optimiser.flat)


def test_a_run_repeats_its_steps_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Training, "find_gradient", lambda run, batch: asked.append(1) or find_gradient(run, batch))
    list(train(tiny_preset(**LONG), device="cpu"))
    assert len(asked) == WARM_UP + 1  # the last of them to be recorded


find_gradient = Training.find_gradient
