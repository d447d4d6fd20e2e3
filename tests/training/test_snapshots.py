"""A run that is stopped, wherever that is, and resumed ends in the same bits as one that never stopped."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.tiny import ARCHITECTURES, tiny_preset
from xformer.checkpoints import Checkpoint, load, save
from xformer.errors import TrainingError
from xformer.paths import STATE, snapshot_file, snapshot_steps
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training import loop
from xformer.training.loop import Run, iter_train, read_state
from xformer.training.recipe import training_state

# Reports at 5, 10, 12; snapshots at 0, 4, 8, 12.
PRESET = tiny_preset(model={"dropout": 0.2}, weight_decay=0.1)


def run_of(preset: Preset, out: Path | None = None, *, resume: bool = False) -> Run:
    run = Run(preset, Task(preset.task), torch.device("cpu"), out)
    if resume:
        run.restore()
    return run


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


UNDISTURBED: dict[Preset, tuple[TemporaryDirectory[str], Run]] = {}


def undisturbed_run(preset: Preset) -> tuple[Path, Run]:
    """The same run without a stop, trained once for all tests."""
    if preset not in UNDISTURBED:
        folder = TemporaryDirectory()
        run = run_of(preset, Path(folder.name))
        list(run.reports())
        UNDISTURBED[preset] = folder, run
    folder, run = UNDISTURBED[preset]
    return Path(folder.name), run


def assert_ends_like_an_undisturbed_run(run: Run, out: Path) -> None:
    """Weights, optimiser, metric rows and snapshots."""
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
        assert_same_weights(load(out / file), load(other / file))
    assert_same_weights(load(out), load(other))
    assert not (out / STATE).exists()
    assert load(out).card["step"] == run.config.steps


def assert_same_weights(one: Checkpoint, other: Checkpoint) -> None:
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class Interrupt:
    """Calls a function until its n-th call, which is Ctrl-C."""

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
        # a plain function, so that as a method it still gets its object
        patch.setattr(owner, name, lambda *args, **kwargs: function(*args, **kwargs))
        with pytest.raises(KeyboardInterrupt):
            list(iter_train(preset, out=out))


@pytest.mark.parametrize("step", range(1, 13))
def test_an_interrupt_during_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    out = tmp_path / "run"
    interrupted(PRESET, out, monkeypatch, (loop, "learning_rate"), step + (step > 5) + (step > 10))
    run = run_of(PRESET, out, resume=True)
    assert run.step == step - 1
    list(run.reports())
    assert_ends_like_an_undisturbed_run(run, out)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "where",
    [
        pytest.param((loop, "generator"), id="dropout"),
        pytest.param((loop, "cross_entropy"), id="loss"),
        pytest.param((torch.Tensor, "backward"), id="backward"),
        pytest.param((loop, "score"), id="scoring"),
        pytest.param((Run, "probe_scores"), id="probe"),
        pytest.param((Run, "_write_snapshot"), id="snapshot"),
        pytest.param((loop, "write_atomically"), id="state"),
    ],
)
def test_an_interrupt_anywhere_but_in_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], at: int, after: bool
) -> None:
    out = tmp_path / "run"
    if where[1] == "generator" and at == 1:
        at = 4  # the first call is for the first weights: nothing has begun
    interrupted(PRESET, out, monkeypatch, where, at, after=after)
    run = run_of(PRESET, out, resume=True)
    list(run.reports())
    assert_ends_like_an_undisturbed_run(run, out)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_in_the_middle_of_an_update_goes_back_to_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    out = tmp_path / "run"
    interrupted(PRESET, out, monkeypatch, (torch.optim.AdamW, "step"), 7, after=after)
    run = run_of(PRESET, out, resume=True)
    assert run.step == 4
    list(run.reports())
    assert_ends_like_an_undisturbed_run(run, out)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n_reports", [1, 2])
def test_closing_the_generator_writes_the_state(tmp_path: Path, architecture: str, n_reports: int) -> None:
    preset = tiny_preset(architecture, model={"dropout": 0.1}, steps=10, log_every=4, snapshot_every=3)
    out = tmp_path / "run"
    reports = iter_train(preset, out=out)
    for _ in range(n_reports):
        last = next(reports)
    reports.close()
    assert (out / STATE).exists()
    run = run_of(preset, out, resume=True)
    assert run.step == last.step == 4 * n_reports
    assert run.seconds == last.seconds
    list(run.reports())
    assert_ends_like_an_undisturbed_run(run, out)


def test_stopping_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, out = tiny_preset(steps=90, log_every=7, snapshot_every=0, model={"dropout": 0.2}), tmp_path / "run"
    seen, resume = [], False
    for n_steps in (1, 2, 11, 30, 23, 1000):  # across the end of the first 64 batches, which are drawn at once
        run = run_of(preset, out, resume=resume)
        with monkeypatch.context() as patch:
            patch.setattr(run.optimiser, "zero_grad", Interrupt(run.optimiser.zero_grad, n_steps + 1))
            try:
                seen.extend(report.step for report in run.reports())
            except KeyboardInterrupt:
                resume = True
    assert run.step == 90
    assert seen == [*range(7, 90, 7), 90]
    assert_ends_like_an_undisturbed_run(run, out)


def test_a_killed_run_goes_on_from_its_last_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"

    def killed(*_: Any) -> None:
        raise SystemError("killed")  # neither closed nor interrupted: nothing is written any more

    run = run_of(PRESET, out)
    with monkeypatch.context() as patch:
        clear, calls = run.optimiser.zero_grad, []
        patch.setattr(run.optimiser, "zero_grad", lambda: killed() if len(calls) == 10 else (calls.append(1), clear()))
        with pytest.raises(SystemError):
            list(run.reports())
    resumed = run_of(PRESET, out, resume=True)
    assert resumed.step == 8
    list(resumed.reports())
    assert_ends_like_an_undisturbed_run(resumed, out)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("model", tiny_preset(model={"dropout": 0.2, "n_heads": 4}, weight_decay=0.1)),
        ("task", tiny_preset(task={"name": "sort"}, model={"dropout": 0.2}, weight_decay=0.1)),
        ("train", tiny_preset(model={"dropout": 0.2}, weight_decay=0.1, seed=1)),
        ("train", tiny_preset(model={"dropout": 0.2}, weight_decay=0.1, steps=13)),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path, kind: str, other: Preset) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(TrainingError, match=f"had other {kind} settings, so it cannot be resumed as this one"):
        iter_train(other, out=tmp_path, resume=True)
    assert (tmp_path / STATE).read_bytes() == before


def test_nothing_to_resume(tmp_path: Path) -> None:
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
VALUES = {"step": 1, "seconds": 0.0, "window": {}, "rows": []}
SETTINGS = {
    "model": PRESET.model.to_json(),
    "task": PRESET.task.to_json(),
    "train": PRESET.train.to_json(),
}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"nonsense", id="nonsense"),
        pytest.param(state_file([]), id="a list"),
        pytest.param(state_file({}), id="no settings"),
        pytest.param(safetensors.torch.save({"weights": torch.zeros(3)}), id="no values"),
        pytest.param(
            state_file(SETTINGS | VALUES, STATE_OF_NO_STEP | {"model.unembedding.bias": torch.zeros(3)}),
            id="a weight of another shape",
        ),
        pytest.param(
            state_file(SETTINGS | VALUES, STATE_OF_NO_STEP | {"adamw.unembedding.bias.step": torch.ones(())}),
            id="moments of one weight",
        ),
        pytest.param(state_file(SETTINGS, {"other": torch.zeros(3)}), id="no weights"),
        pytest.param(state_file(SETTINGS, STATE_OF_NO_STEP), id="no step"),
        pytest.param(
            state_file(
                SETTINGS | VALUES | {"window": {"nonsense": 1}},
                STATE_OF_NO_STEP,
            ),
            id="another window",
        ),
    ],
)
def test_a_damaged_state_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(TrainingError, match=f"The run in {tmp_path} ") as caught:
        iter_train(PRESET, out=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_a_cut_state_is_one_sentence(tmp_path: Path) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    whole = (tmp_path / STATE).read_bytes()
    for n_bytes in (7, 8, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / STATE).write_bytes(whole[:n_bytes])
        with pytest.raises(TrainingError, match="cannot be resumed"):
            iter_train(PRESET, out=tmp_path, resume=True)


def test_snapshots_are_listed_in_the_order_of_their_steps(tmp_path: Path) -> None:
    checkpoint = run_of(PRESET).checkpoint()
    for step in (1_000_000, 20, 3, 999_999):
        save(checkpoint, snapshot_file(tmp_path, step))
    (tmp_path / "snapshots" / "notes.safetensors").write_bytes(b"")
    assert snapshot_steps(tmp_path) == [3, 20, 999_999, 1_000_000]
    assert snapshot_steps(tmp_path / "nowhere") == []


class Disk:
    """Counts the calls to `os.name`; the n-th says that there is no space left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, full_at: int) -> None:
        self.calls, self.full_at = 0, full_at
        self.real = getattr(os, name) if name != "fsync" else lambda _: None  # slow, and without a visible effect
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*args, **kwargs)


FULL_DISK_PRESET = tiny_preset(steps=6, log_every=3, snapshot_every=2)


def assert_whole(out: Path) -> None:
    """Every file that is there can be read, and there are none but these."""
    for path in out.rglob("*"):
        if path.is_dir():
            continue
        assert path.suffix != ".part", path
        if path.name == STATE:
            read_state(out)
        elif path.suffix == ".safetensors":
            load(path)
        else:
            assert path.name == "card.json"


@pytest.mark.parametrize("name", ["fsync", "replace", "fdopen"])
def test_a_run_on_a_full_disk_fails_aloud_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch.set_num_threads(1)
    with monkeypatch.context() as patch:
        counter = Disk(patch, name, full_at=0)
        list(iter_train(FULL_DISK_PRESET, out=tmp_path / "whole"))
    assert counter.calls >= 8  # four snapshots, three states, a model and its card
    for at in range(1, counter.calls + 1):
        out = tmp_path / f"{name}-{at}"
        with monkeypatch.context() as patch:
            Disk(patch, name, full_at=at)
            with pytest.raises(OSError, match="No space left on device"):
                list(iter_train(FULL_DISK_PRESET, out=out))
        assert_whole(out)
        if (out / STATE).exists():  # and with space again, the run goes on
            list(iter_train(FULL_DISK_PRESET, out=out, resume=True))
            assert snapshot_steps(out) == [0, 2, 4, 6]
            assert (out / "model.safetensors").read_bytes()[-400:] == (
                tmp_path / "whole" / "model.safetensors"
            ).read_bytes()[-400:]
