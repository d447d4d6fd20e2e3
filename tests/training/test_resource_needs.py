"""What a run will take is told before it is made, near enough to what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.training.tiny import tiny_preset
from xformer.presets import PRESETS, Preset
from xformer.training.resource_needs import PROCESS, memory_needed, metrics_needed

LONG = {"min_len": 150, "max_len": 200}
WINDOWS = {"min_len": 1000, "max_len": 1000}

# MB above those of a process with torch imported, at the peak of two reports with snapshots, on one core of a Xeon.
MEASURED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    ("reverse", {"d_ff": 8192, "n_layers": 6}, {}, {}, 233),
    ("reverse", {}, {}, {"held_out": 16384}, 872),
    ("reverse", {}, {}, {"batch_size": 2048}, 532),
    ("reverse", {}, {}, {"batch_size": 16384}, 3915),
    ("reverse-seq2seq", {}, {}, {"batch_size": 4096}, 546),
    ("reverse-decoder", {}, {}, {"batch_size": 4096}, 987),
    ("reverse", {"dropout": 0.1}, {}, {"batch_size": 2048}, 936),
    ("reverse", {"n_heads": 64, "d_head": 8, "d_value": 8}, {}, {"batch_size": 512}, 459),
    ("reverse", {"max_len": 400}, LONG, {"batch_size": 64}, 450),
    ("reverse", {"max_len": 400, "dropout": 0.1}, LONG, {"batch_size": 64}, 1863),
    ("reverse", {"max_len": 400, "positions": "alibi"}, LONG, {"batch_size": 64}, 1201),
    ("reverse-seq2seq", {"max_len": 400}, LONG, {"batch_size": 64}, 445),
    ("reverse-decoder", {"max_len": 900}, LONG, {"batch_size": 64}, 939),
    ("characters", {"n_heads": 32, "d_head": 8, "d_value": 8, "n_layers": 8}, {}, {}, 213),
    ("characters", {}, {}, {"batch_size": 256}, 877),
    (
        "characters",
        {"max_len": 1001, "n_heads": 64, "d_head": 8, "d_value": 8},
        WINDOWS,
        {"batch_size": 4, "held_out": 8},
        423,
    ),
    ("digits", {}, {}, {"batch_size": 2048}, 671),
    ("sort", {}, {}, {"batch_size": 2048}, 404),
]


def changed(name: str, model: dict[str, Any], task: dict[str, Any], train: dict[str, Any]) -> Preset:
    preset = PRESETS[name]
    changes = preset.model.replace(**model), preset.task.replace(**task), preset.train.replace(**train)
    return replace(preset, model=changes[0], task=changes[1], train=changes[2])


@pytest.mark.parametrize(("name", "model", "task", "train", "measured"), MEASURED)
def test_the_memory_that_is_told_is_near_what_was_measured(
    name: str, model: dict[str, Any], task: dict[str, Any], train: dict[str, Any], measured: int
) -> None:
    told = (memory_needed(changed(name, model, task, train)) - PROCESS) / 1e6
    assert 0.6 * measured < told < 1.5 * measured + 60


def test_more_of_everything_needs_more_memory() -> None:
    usual = memory_needed(tiny_preset())
    for bigger in (
        tiny_preset(batch_size=8),
        tiny_preset(held_out=4000),
        tiny_preset(model={"d_model": 16}),
        tiny_preset(model={"n_layers": 3}),
    ):
        assert memory_needed(bigger) > usual


def test_a_report_has_a_number_for_each_head() -> None:
    usual = tiny_preset(steps=1000, log_every=10)
    assert (
        100 * 400 < metrics_needed(usual) < metrics_needed(tiny_preset(steps=1000, log_every=10, model={"n_layers": 3}))
    )
    assert metrics_needed(tiny_preset(steps=1000, log_every=100)) == metrics_needed(usual) / 10
