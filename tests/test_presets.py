"""The named configurations: each fits its task, and one of every kind learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from xformer.errors import ConfigError
from xformer.presets import PRESETS, RENAMED, preset
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task
from xformer.training.loop import iter_train


def test_each_preset_fits_its_task() -> None:
    for name in PRESETS:
        chosen = preset(name)
        assert chosen.name == name
        Task(chosen.task).check_fits(chosen.model)
        assert chosen.title
        assert chosen.about.endswith(".")
        assert len(chosen.about) <= 400, name  # a card keeps no more
        assert 20 <= chosen.train.steps / chosen.train.snapshot_every <= 120, name  # so that it can be scrubbed through


def test_a_preset_is_found_by_its_earlier_name_and_every_task_but_copying_has_one() -> None:
    for old, new in RENAMED.items():
        assert old not in PRESETS
        assert preset(old) is preset(new)
    assert {chosen.task.name for chosen in PRESETS.values()} == set(TASK_LIMITS) - {"copy"}


def test_a_preset_of_every_kind_learns_something_in_a_few_steps() -> None:
    """Not how well: that takes minutes, and is measured. But that its batches reach its model, and that the loss falls."""
    torch.set_num_threads(1)
    for name in ("induction", "addition", "parity", "brackets", "modular", "characters", "digits"):
        chosen = preset(name)
        recipe = chosen.train.replace(steps=10, batch_size=8, warmup=0.2, log_every=5, held_out=8, snapshot_every=0)
        losses = [progress.loss for progress in iter_train(replace(chosen, train=recipe), device="cpu")]
        assert losses[-1] < losses[0], name


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        preset("revers")
    assert str(caught.value) == f"There is no preset 'revers'; the presets are {', '.join(PRESETS)}."
