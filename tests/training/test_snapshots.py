"""A run that is stopped anywhere and resumed ends in the same bits as a run that never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.at_work import assert_same_weights, untimed
from tests.training.tiny import run_of, tiny_preset
from xformer.checkpoints import load
from xformer.errors import TrainingError
from xformer.files import STATE, snapshot_steps
from xformer.presets import Preset
from xformer.training import loop
from xformer.training.loop import Run, iter_train
from xformer.training.recipe import training_state

# Reports at 5, 10, 12; snapshots at 0, 4, 8, 12.
PRESET = tiny_preset(model={"dropout": 0.2}, weight_decay=0.1)


def resumed(preset: Preset, out: Path) -> Run:
    run = run_of(preset, out)
    run.restore()
    return run


UNDISTURBED: dict[Preset, tuple[TemporaryDirectory[str], Run]] = {}


def undisturbed_run(preset: Preset) -> tuple[Path, Run]:
    """Return the folder and the run of a preset trained without a stop, once for all tests."""
    if preset not in UNDISTURBED:
        folder = TemporaryDirectory()
        run = run_of(preset, Path(folder.name))
        list(run.reports())
        UNDISTURBED[preset] = folder, run
    folder, run = UNDISTURBED[preset]
    return Path(folder.name), run


def assert_ends_like_an_undisturbed_run(run: Run, out: Path) -> None:
    """Train a run to its end and assert that its weights, optimiser, metrics and snapshots are those without a stop."""
    list(run.reports())
    other, undisturbed = undisturbed_run(run.preset)
    assert run.step == undisturbed.step == run.config.steps
    mine = training_state(run.model, run.optimiser)
    theirs = training_state(undisturbed.model, undisturbed.optimiser)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(mine[name], theirs[name]), name
    assert untimed(run.rows) == untimed(undisturbed.rows)
    assert snapshot_steps(out) == snapshot_steps(other)
    for step in snapshot_steps(out):
        file = f"snapshots/{step:06d}.safetensors"
        assert_same_weights(load(out / file).model, load(other / file).model)
    assert_same_weights(load(out).model, load(other).model)
    assert not (out / STATE).exists()
    assert load(out).card["step"] == run.config.steps


class Interrupt:
    """Wraps a function and raises `KeyboardInterrupt` at its n-th call, before or after calling it."""

    def __init__(self, function: Callable[..., Any], at: int, *, after: bool = False) -> None:
        self.function, self.left, self.after = function, at, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        result = self.function(*args, **kwargs)
        if self.left == 0:
            raise KeyboardInterrupt
        return result


def interrupted(
    preset: Preset, out: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], at: int, *, after: bool = False
) -> None:
    owner, name = where
    with monkeypatch.context() as patch:
        function = Interrupt(getattr(owner, name), at, after=after)
        # a plain function, so that a method still receives its instance
        patch.setattr(owner, name, lambda *args, **kwargs: function(*args, **kwargs))
        with pytest.raises(KeyboardInterrupt):
            list(iter_train(preset, out=out))


PLACES: dict[str, tuple[Any, str]] = {
    "backward": (torch.Tensor, "backward"), "probe": (Run, "probe_scores"), "state": (loop, "write_atomically"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_run_interrupted_outside_an_update_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    out, after = tmp_path / "run", place == "state"
    interrupted(PRESET, out, monkeypatch, PLACES[place], 3 if after else 2, after=after)
    assert_ends_like_an_undisturbed_run(resumed(PRESET, out), out)


def test_run_interrupted_in_an_update_resumes_from_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    interrupted(PRESET, out, monkeypatch, (torch.optim.AdamW, "step"), 7, after=True)
    run = resumed(PRESET, out)
    assert run.step == 4
    assert_ends_like_an_undisturbed_run(run, out)


def test_run_stopped_repeatedly_ends_like_an_undisturbed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, out = tiny_preset(steps=90, log_every=7, snapshot_every=0, model={"dropout": 0.2}), tmp_path / "run"
    seen, run = [], run_of(preset, out)
    for n_steps in (1, 2, 11, 30, 23):  # past the end of the first 64 batches, which are drawn at once
        with monkeypatch.context() as patch:
            patch.setattr(run.optimiser, "zero_grad", Interrupt(run.optimiser.zero_grad, n_steps + 1))
            with pytest.raises(KeyboardInterrupt):
                seen.extend(report.step for report in run.reports())
        run = resumed(preset, out)
    assert run.step == 67
    assert seen == [*range(7, 67, 7)]
    assert_ends_like_an_undisturbed_run(run, out)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("model", tiny_preset(model={"dropout": 0.2, "n_heads": 4}, weight_decay=0.1)),
        ("task", tiny_preset(task={"name": "sort"}, model={"dropout": 0.2}, weight_decay=0.1)),
        ("train", tiny_preset(model={"dropout": 0.2}, weight_decay=0.1, seed=1)),
    ],
)
def test_run_is_not_resumed_with_different_settings(tmp_path: Path, kind: str, other: Preset) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(TrainingError, match=f"had different {kind} settings, so these cannot resume it"):
        iter_train(other, out=tmp_path, resume=True)
    assert (tmp_path / STATE).read_bytes() == before


def test_folder_without_an_unfinished_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is no run to resume in"):
        iter_train(PRESET, out=tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(TrainingError, match="Resuming needs the folder of the run"):
        iter_train(PRESET, resume=True)
    list(iter_train(PRESET, out=tmp_path / "run"))
    with pytest.raises(TrainingError, match="There is no run to resume in"):  # it is finished
        iter_train(PRESET, out=tmp_path / "run", resume=True)


def state_file(values: Any, tensors: dict[str, torch.Tensor] | None = None) -> bytes:
    return safetensors.torch.save(tensors or {"weights": torch.zeros(3)}, {"state": json.dumps(values)})


STATE_OF_NO_STEP = training_state(run_of(PRESET).model, run_of(PRESET).optimiser)
SETTINGS = {kind: getattr(PRESET, kind).to_json() for kind in ("model", "task", "train")}
WHOLE = SETTINGS | {"step": 1, "seconds": 0.0, "window": {}, "rows": []}
DAMAGED = {
    "nonsense": b"nonsense",
    "no settings": state_file({}),
    "moments of one weight": state_file(WHOLE, STATE_OF_NO_STEP | {"adamw.unembedding.bias.step": torch.ones(())}),
    "no weights": state_file(SETTINGS, {"other": torch.zeros(3)}),
    "another window": state_file(WHOLE | {"window": {"nonsense": 1}}, STATE_OF_NO_STEP),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_state_gives_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(TrainingError, match=f"The run in {tmp_path} ") as caught:
        iter_train(PRESET, out=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_truncated_state_is_rejected(tmp_path: Path) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    whole = (tmp_path / STATE).read_bytes()
    for n_bytes in (0, 7, 100, len(whole) - 1):
        (tmp_path / STATE).write_bytes(whole[:n_bytes])
        with pytest.raises(TrainingError, match="cannot be resumed"):
            iter_train(PRESET, out=tmp_path, resume=True)
