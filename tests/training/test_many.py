"""Many models trained together, in turns or as one stacked computation: each gives the same result as alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import assert_same_weights
from tests.training.tiny import ARCHITECTURES, tiny_preset, tiny_task, weights_of
from xformer import load
from xformer.errors import ConfigError
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.training.loop import Run
from xformer.training.many import ReportOfOne, iter_train_many, reports, stack_batches, train_many
from xformer.training.sweeps import sweep

CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}
"""Tolerances for sums in another order and for Adam's division by small numbers, over a dozen steps at a rate of 3e-3."""
SETTINGS: dict[str, list[Any]] = {"seed": [3, 4]}


def runs_of(presets: Sequence[Preset], device: str | torch.device = "cpu") -> list[Run]:
    return [Run(one, Task(one.task), torch.device(device), None) for one in presets]


def trained_together(presets: Sequence[Preset], *, stacked: bool | None = True) -> tuple[list[Run], list[ReportOfOne]]:
    runs = runs_of(presets)
    return runs, list(reports(dict(enumerate(runs)), stacked=stacked))


def assert_as_alone(run: Run) -> None:
    """Assert that a run has the same weights and metrics as when it is trained alone."""
    [other] = runs_of([run.preset], run.device)
    list(other.reports())
    assert run.step == other.step
    torch.testing.assert_close(weights_of(run), weights_of(other), **CLOSE)
    for mine, theirs in zip(run.rows, other.rows, strict=True):
        assert mine["step"] == theirs["step"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-3)
        assert mine["held_out_loss"] == pytest.approx(theirs["held_out_loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("architecture", "batch_size"),
    [("encoder", 3), ("decoder", 4), ("encoder-decoder", 3)],  # padded, packed, padded
)
def test_each_model_trained_together_equals_the_model_trained_alone(architecture: str, batch_size: int) -> None:
    settings = sweep(tiny_preset(architecture, batch_size=batch_size, weight_decay=0.1, clip_norm=0.5), **SETTINGS)
    runs, reports = trained_together(settings)
    for run in runs:
        assert_as_alone(run)
    assert [report.number for report in reports if report.is_last] == [0, 1]


@pytest.mark.cuda
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_model_trained_together_on_a_gpu_equals_the_model_trained_alone(architecture: str) -> None:
    runs = runs_of(sweep(tiny_preset(architecture, weight_decay=0.1, clip_norm=0.5), **SETTINGS), "cuda")
    list(reports(dict(enumerate(runs))))
    for run in runs:
        assert_as_alone(run)


PARTS = [
    ("decoder", {"positions": "rotary"}),
    ("decoder", {"positions": "t5"}),
    ("encoder", {"positions": "mirror"}),
    ("encoder", {"norm": "pre", "activation": "gelu", "tied_output": True, "attention_bias": True}),
]


@pytest.mark.parametrize(("architecture", "model"), PARTS, ids=str)
def test_models_with_other_positions_and_norms_train_together(architecture: str, model: dict[str, Any]) -> None:
    # A bias of the keys has no effect, so its gradient is rounding noise, which a small ε would amplify to full steps.
    more = {} if "positions" in model else {"adam_eps": 1e-3}
    for run in trained_together(sweep(tiny_preset(architecture, model=model, steps=6, **more), seed=[1, 2]))[0]:
        assert_as_alone(run)


def test_models_trained_together_have_their_own_recipes() -> None:
    base = tiny_preset()
    changes: list[dict[str, Any]] = [{"weight_decay": 0.5}, {"clip_norm": 0.0}, {"lr_changes": ((3, 0.01),)}]
    changes.append({"beta2": 0.9, "adam_eps": 1e-6})
    runs, _ = trained_together([replace(base, train=base.train.replace(**change)) for change in changes])
    for run in runs:
        assert_as_alone(run)


def test_models_trained_in_turns_equal_the_models_trained_alone_bit_for_bit() -> None:
    presets = sweep(tiny_preset(batch_size=3), **SETTINGS)
    runs, reports = trained_together(presets, stacked=None)  # None: on a CPU in turns
    assert [report.number for report in reports[:2]] == [0, 1]  # of the same step
    for run, [alone] in zip(runs, (runs_of([preset]) for preset in presets), strict=True):
        list(alone.reports())
        assert torch.equal(weights_of(run), weights_of(alone))
        assert [row["loss"] for row in run.rows] == [row["loss"] for row in alone.rows]


def test_models_trained_together_keep_files_and_resume(tmp_path: Path) -> None:
    presets = sweep(tiny_preset(), seed=[0, 1])
    going = iter_train_many(presets, out=tmp_path / "cut", device="cpu")
    next(going)
    going.close()
    steps = [report.progress.step for report in iter_train_many(presets, out=tmp_path / "cut", device="cpu", resume=True)
             if report.progress]  # fmt: skip
    assert min(steps) == 5  # the state was saved at step 5, whose report is due again
    list(iter_train_many(presets, out=tmp_path / "whole", device="cpu"))
    for number in range(2):
        cut, whole = (load(tmp_path / name / f"{number:03d}") for name in ("cut", "whole"))
        assert_same_weights(cut.model, whole.model)
        assert cut.card["seed"] == number
        assert (tmp_path / "cut" / f"{number:03d}" / "snapshots").is_dir()


def test_train_many_returns_a_checkpoint_for_each_preset(tmp_path: Path) -> None:
    base = tiny_preset(model={"norm": "none"}, clip_norm=0.0)
    wild = replace(base, train=base.train.replace(peak_lr=1e12, adam_eps=1.0, warmup=0.0))
    first, given_up, last = train_many([base, wild, sweep(base, seed=[3])[0]], out=tmp_path, device="cpu")
    assert given_up is None
    [failed] = [one.failure for one in iter_train_many([base, wild], device="cpu") if one.is_last and one.failure]
    assert "became" in failed
    for checkpoint, number in ((first, 0), (last, 2)):
        assert checkpoint is not None
        assert checkpoint.card["step"] == 12
        kept = load(tmp_path / f"{number:03d}")
        assert checkpoint.card == kept.card
        assert_same_weights(checkpoint.model, kept.model)
    again = train_many([base], out=tmp_path, device="cpu", resume=True)[0]  # it is finished
    assert again is not None
    assert again.card == load(tmp_path / "000").card


def test_presets_that_cannot_be_trained_together_are_rejected() -> None:
    base = tiny_preset()
    for presets, words in (
        ([], "at least one"),
        ([base, tiny_preset(model={"d_ff": 9})], "one shape and one task"),
        ([base, tiny_preset("decoder")], "one shape and one task"),
        ([base, tiny_preset(batch_size=6)], "same batch_size"),
        ([tiny_preset(model={"dropout": 0.1})], "one by one"),
    ):
        with pytest.raises(ConfigError, match=words):
            train_many(presets)
    for name, value, words in (
        ("seed", -1, "seed"),
        ("no_such", 1, "no_such"),
        ("train_share", 0.5, "of modular addition only, got it for reverse; for example"),
        ("d_model", 16, "cannot be swept: got 'd_model'; for example seed=range"),
        ("symbols", 16, "cannot be swept: got 'symbols'; for example seed=range"),
    ):
        with pytest.raises(ConfigError, match=words):
            sweep(base, **{name: [value]})


def test_shorter_rows_of_a_stack_are_padded_without_labels() -> None:
    short, long = (tiny_task(min_len=n, max_len=n).sample(2, seed=1) for n in (2, 5))
    template, tensors = stack_batches([short, long], pad=6)
    cells = iter(tensors)
    padded = template.map(lambda _: next(cells)[0])
    for found, own, filler in zip(padded.tensors(), short.tensors(), (6, 0, 0, 0, IGNORED), strict=True):
        width = own.shape[1]
        assert torch.equal(found[:, :width], own)
        assert found[:, width:].unique().tolist() == [filler]
    assert template.layout.padded


def test_train_share_can_differ_between_models() -> None:
    base = tiny_preset("decoder", task={"name": "modular", "symbols": 7, "min_len": 2, "max_len": 2})
    runs, _ = trained_together(sweep(base, train_share=[0.25, 0.5]))
    seen = [{tuple(row) for row in run.batch(0).tokens.tolist()} for run in runs]
    assert seen[0] != seen[1]
    for run in runs:
        assert_as_alone(run)
