"""A recorded computation gives, with other numbers, the very bits that it would give if it were done anew."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.tiny import ARCHITECTURES, tiny_preset
from xformer.tasks import Task
from xformer.training import stacked_replay
from xformer.training.loop import Run
from xformer.training.recording import Recording, UnrepeatableError
from xformer.training.replay import Replay
from xformer.training.stacked_replay import StackedReplay
from xformer.training.stacked_step import StackedStep
from xformer.training.train_many import sweep


def attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = F.linear(x, w).split([5, 5, 5], dim=-1)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    return (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(dim=-1) @ v


def norms(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (3,), w[0], w[1], 1e-5).transpose(1, 2).flatten(1)


def in_place(x: Tensor, w: Tensor) -> Tensor:
    total = torch.zeros(3, 3)
    for row in x.unbind():
        total += (row.T @ row).mul_(0.5).relu_()
    table = torch.zeros(11, 3).index_add_(0, torch.arange(2), x[:, 0])
    return total @ w.T + table.sum() + torch.full((15,), 2.0).add_(1)


def chosen(x: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy((x @ w.T).flatten(0, 1), (x[..., 0] > 0).long().flatten(), reduction="none", ignore_index=1)


@pytest.mark.parametrize("function", [attention, norms, in_place, chosen])
def test_it_repeats_values_and_gradients_with_other_numbers(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 7, 3, generator=draw), torch.randn(15, 3, generator=draw).requires_grad_()

    def compute() -> list[Tensor]:
        y = function(x, w)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [w])]

    repeat = Replay(Recording(compute))
    for _ in range(3):
        with torch.no_grad():
            x.normal_(generator=draw)
            w.normal_(generator=draw)
        repeat()
        for mine, theirs in zip(repeat.results, compute(), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.stride() == theirs.stride()


def test_what_counts_at_the_same_time_lies_apart_and_other_places_are_taken_again() -> None:
    x = torch.randn(1, 1024)  # 4 KB

    def compute() -> list[Tensor]:
        y = x + 1
        for _ in range(10):
            y = (y * 2).cos() + x
        return [y.sum()]

    _, size = Recording(compute).layout()
    assert size == 2 * 4096  # what is read and what is made


def test_what_is_the_same_each_time_is_not_done_again() -> None:
    x, mask = torch.randn(3, 3), torch.zeros(3, 3)
    repeat = Replay(Recording(lambda: [x * torch.ones(3, 3).tril().mul_(2)]))
    assert len(repeat.operations) == 1
    counted = Replay(Recording(lambda: [torch.zeros_like(x).add_(1) + mask.add_(1)]))
    for _ in range(2):
        counted()
    assert counted.results[0][0, 0] == 4  # the mask was changed three times; what was zero begins there again


@pytest.mark.parametrize(
    "compute", [lambda x: torch.rand_like(x), lambda x: x[x > 0], lambda x: x * 2 if x.sum() > 0 else x]
)
def test_what_would_be_something_else_next_time_is_refused(compute: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnrepeatableError):
        Recording(lambda: [compute(torch.randn(3))])


def test_no_compiler_is_imported_for_it() -> None:
    code = (
        "import sys, torch; from xformer.training.recording import Recording; from xformer.training.replay import Replay; "
        "x = torch.ones(3); Replay(Recording(lambda: [x.exp() + 1]))(); print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("at_once", [1 << 25, 1], ids=["all at once", "one after the other"])
def test_a_repeated_step_of_a_stack_is_the_step(
    architecture: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked_replay, "AT_ONCE", at_once)
    presets = sweep(tiny_preset(architecture, clip_norm=0.5), seed=[0, 1, 2])
    stack = StackedStep([Run(one, Task(one.task), torch.device("cpu"), None) for one in presets])
    first, second = stack.batch(), stack.batch()
    replay = StackedReplay(stack.whole, first)
    assert len(replay.replays) == (3 if at_once == 1 else 1)
    with torch.no_grad():
        stack.flat.mul_(1.25)
    n = 1 if at_once == 1 else 3
    for batch in (second, first):
        losses, norms = replay.find(batch)
        gradient = stack.gradient.clone()
        for start in range(0, 3, n):
            some = slice(start, start + n)
            expected = stack.whole[some].find(batch.map(lambda rows, some=some: rows[some]))
            assert torch.equal(losses[some], expected[0])
            assert torch.equal(norms[some], expected[1])
        assert torch.equal(gradient, stack.gradient)
        assert gradient.norm(dim=1).amax() <= 0.5 + 1e-5
