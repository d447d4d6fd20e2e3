"""The presets: each fits its task, and one of every kind learns."""

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
        assert len(chosen.about) <= 400, name  # the limit of a card
        assert 20 <= chosen.train.steps / chosen.train.snapshot_every <= 120, name  # enough for a timeline


def test_presets_are_found_by_earlier_names_and_cover_every_task_except_copy() -> None:
    for old, new in RENAMED.items():
        assert old not in PRESETS
        assert preset(old) is preset(new)
    assert {chosen.task.name for chosen in PRESETS.values()} == set(TASK_LIMITS) - {"copy"}


def test_loss_of_a_preset_of_every_kind_falls_within_a_few_steps() -> None:
    """How well they learn takes minutes to test and is measured elsewhere."""
    torch.set_num_threads(1)
    for name in ("induction", "addition", "parity", "brackets", "modular", "characters", "digits"):
        chosen = preset(name)
        recipe = chosen.train.replace(steps=10, batch_size=8, warmup=0.2, log_every=5, held_out=8, snapshot_every=0)
        losses = [progress.loss for progress in iter_train(replace(chosen, train=recipe), device="cpu")]
        assert losses[-1] < losses[0], name


def test_error_for_an_unknown_preset_lists_the_presets() -> None:
    with pytest.raises(ConfigError) as caught:
        preset("revers")
    assert str(caught.value) == f"There is no preset 'revers'; the presets are {', '.join(PRESETS)}."
