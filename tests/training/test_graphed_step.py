"""The step that a GPU repeats: its twin on a CPU is the usual step, and what cannot be recorded is trained the usual way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.tiny import ARCHITECTURES, run_of, tiny_preset, trained
from xformer.presets import Preset
from xformer.tasks.task import CHUNK
from xformer.training import graphed_step
from xformer.training.graphed_step import WARM_UP, GraphedStep
from xformer.training.loop import Run
from xformer.training.static_step import StaticStep

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
"""The device's rate is a float32, the host's a float64."""


def assert_alike(one: Run, other: Run) -> None:
    assert one.step == other.step > 0
    torch.testing.assert_close(one.optimiser.flat, other.optimiser.flat, **CLOSE)
    for mine, theirs in zip(one.rows, other.rows, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("batch_size", [4, 3], ids=["packed", "padded"])
def test_the_step_on_fixed_storage_is_the_usual_step(architecture: str, batch_size: int) -> None:
    preset = tiny_preset(architecture, batch_size=batch_size, weight_decay=0.1, clip_norm=0.5)
    assert_alike(trained(preset, StaticStep), trained(preset))


def test_it_goes_on_with_the_next_batches_where_those_drawn_end_and_follows_the_rate() -> None:
    preset = tiny_preset(steps=CHUNK + 3, log_every=CHUNK + 3, lr_changes=((CHUNK - 2, 0.001),))
    assert_alike(trained(preset, StaticStep), trained(preset))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Graphs that repeat a program by running it again, and how often they did."""
    counted = SimpleNamespace(replays=0, wrong=0.0)

    def record(program: Callable[[], Any], device: object, stream: object) -> Any:
        def replay() -> None:
            counted.replays += 1
            program()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(graphed_step, "side_stream", lambda device: None)
    monkeypatch.setattr(graphed_step, "aside", lambda program, device, stream: program())
    monkeypatch.setattr(graphed_step, "record", record)
    return counted


def test_after_the_first_steps_one_is_recorded_and_repeated(recorder: SimpleNamespace) -> None:
    preset = tiny_preset()
    assert_alike(trained(preset, GraphedStep), trained(preset))
    assert recorder.replays == preset.train.steps - WARM_UP + 1  # once to be compared


def test_a_recorded_step_that_comes_to_something_else_is_given_up(
    recorder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    preset = tiny_preset()
    run = run_of(preset, GraphedStep)

    def wrong(program: Callable[[], Any], device: object, stream: object) -> Any:
        def replay() -> None:
            program()
            run.optimiser.flat.mul_(1.01)

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(graphed_step, "record", wrong)
    list(run.reports())
    assert_alike(run, trained(preset))
    [said] = caplog.messages
    assert said == "The training goes on without a CUDA graph: the recorded step comes to something else"


def test_what_cannot_be_recorded_is_trained_the_usual_way(
    recorder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(graphed_step, "record", fails)
    preset = tiny_preset()
    assert_alike(trained(preset, GraphedStep), trained(preset))
    [said] = caplog.messages
    assert said.endswith("graph: operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("preset", "why"),
    [
        (tiny_preset(model={"dropout": 0.1}), "its dropout is drawn anew for each step"),
        (tiny_preset(random_positions=True), "its position numbers are drawn anew for each step"),
        (tiny_preset(), "CUDA"),
    ],
    ids=["dropout", "random positions", "no GPU"],
)
def test_where_there_is_no_such_step_the_bits_are_those_of_the_usual_one(
    preset: Preset, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    if why == "CUDA" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with caplog.at_level(logging.WARNING):
        run = trained(preset, GraphedStep)
    assert torch.equal(run.optimiser.flat, trained(preset).optimiser.flat)
    [said] = caplog.messages
    assert why in said


@pytest.mark.cuda
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_on_a_gpu_the_graph_is_the_step(architecture: str, caplog: pytest.LogCaptureFixture) -> None:
    preset = tiny_preset(architecture, weight_decay=0.1, clip_norm=0.5, steps=CHUNK + 3)
    graphed = run_of(preset, device="cuda")
    step = GraphedStep(graphed)
    graphed.take_step = step.take
    list(graphed.reports())
    assert caplog.messages == []
    assert step.graph is not None
    assert_alike(graphed, trained(preset, device="cuda"))
