"""Lightning's loop around our models: the same numbers as ours, and a run in the run store that the app can show."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.training.tiny import ARCHITECTURES, tiny_preset
from xformer.checkpoints import load
from xformer.errors import ConfigError, RunStoreError
from xformer.files import snapshot_file, snapshot_steps
from xformer.model import Transformer
from xformer.training import jobs, liveness
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

# Lightning's own: about workers of data loaders, and what it uses of torch.
pytestmark = [
    pytest.mark.filterwarnings("ignore::Warning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def their() -> ModuleType:
    """Lightning, imported by the worker that needs it instead of by each that reads this file."""
    pytest.importorskip("lightning", reason="lightning is not installed: its integration was NOT tested")
    return importlib.import_module("tests.integrations.loops")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lightning_follows_our_own_loop(their: ModuleType, tmp_path: Path, architecture: str) -> None:
    preset = tiny_preset(architecture, steps=70, log_every=10, snapshot_every=0, weight_decay=0.1)
    module = their.LitTransformer(preset)
    snapshots = their.AttentionSnapshots(module.task, folder=tmp_path, every=10, held_out=preset.train.held_out)
    their.fit(module, preset, snapshots)
    [entry] = RunStore(tmp_path).entries()
    theirs, ours = RunStore(tmp_path).rows(entry.id), [report.row() for report in iter_train(preset)]
    assert [row["step"] for row in theirs] == [row["step"] for row in ours] == [*range(10, 71, 10)]
    for one, other in zip(theirs, ours, strict=True):
        # float32 sums in another order, through 70 updates
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
        assert one["learning_rate"] == pytest.approx(other["learning_rate"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=5e-3)


def test_any_module_leaves_a_run_that_can_be_watched(their: ModuleType, tmp_path: Path) -> None:
    preset, store = tiny_preset(), RunStore(tmp_path)
    module, watcher = their.DeepModule(preset), their.Watcher(RunStore(tmp_path))
    their.fit(
        module,
        preset,
        their.AttentionSnapshots(module.task, folder=tmp_path, name="theirs", every=5),
        watcher,
        steps=12,
    )
    assert [state for state, _, _ in watcher.seen] == ["running"] * 12
    assert all(held for _, held, _ in watcher.seen)
    assert [step for _, _, step in watcher.seen] == [0] * 4 + [5] * 5 + [10] * 3
    [entry] = store.entries()
    folder = store.folder_of(entry.id)
    assert (entry.state, entry.step, entry.name, entry.worker) == ("finished", 12, "theirs", None)
    assert entry.figures["samples"] == 2000
    assert snapshot_steps(folder) == [0, 5, 10, 12]
    assert [row["learning_rate"] for row in store.rows(entry.id)][:2] == [0.01, 0.01]
    final, last = load(folder), load(snapshot_file(folder, 12))
    for mine, kept, latest in zip(
        module.inner["net"].parameters(), final.model.parameters(), last.model.parameters(), strict=True
    ):
        assert torch.equal(mine, kept)
        assert torch.equal(mine, latest)
    assert not liveness.is_held(folder / liveness.LOCK)
    assert module.inner["net"].training


def test_a_failure_is_written_down_and_not_resumed_here(their: ModuleType, tmp_path: Path) -> None:
    preset, store = tiny_preset(), RunStore(tmp_path)
    module = their.DeepModule(preset, fail_at=7)
    with pytest.raises(ZeroDivisionError):
        their.fit(module, preset, their.AttentionSnapshots(module.task, folder=tmp_path, every=5), steps=12)
    [entry] = store.entries()
    assert (entry.state, entry.worker, entry.message) == (
        "failed",
        None,
        "Lightning's loop ended with ZeroDivisionError.",
    )
    with pytest.raises(RunStoreError, match="was trained by another program; go on with it there"):
        jobs.resume(store, entry.id)
    assert store.entry(entry.id).state == "failed"


def test_the_app_can_stop_it(their: ModuleType, tmp_path: Path) -> None:
    preset, store = tiny_preset(), RunStore(tmp_path)
    module = their.DeepModule(preset)

    class Stop(their.lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 6:
                jobs.stop(store, store.entries()[0].id)

    trainer = their.fit(
        module, preset, their.AttentionSnapshots(module.task, folder=tmp_path, every=5), Stop(), steps=30
    )
    assert trainer.global_step == 10
    [entry] = store.entries()
    assert (entry.state, entry.step) == ("finished", 10)


def test_a_module_without_one_of_our_models_is_refused(their: ModuleType, tmp_path: Path) -> None:
    preset = tiny_preset()
    module = their.DeepModule(preset)
    module.inner["other"] = Transformer(preset.model)
    with pytest.raises(ConfigError, match=r"exactly one xformer\.Transformer, got 2"):
        their.fit(module, preset, their.AttentionSnapshots(module.task, folder=tmp_path), steps=3)
    assert not RunStore(tmp_path).entries()


def test_without_room_the_run_says_so_and_lightning_goes_on(
    their: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tiny_preset("encoder", steps=20, log_every=10)
    monkeypatch.setenv("XFORMER_MAX_DISK", "1")
    module = their.LitTransformer(preset)
    their.fit(module, preset, their.AttentionSnapshots(module.task, folder=tmp_path, every=10))
    [entry] = RunStore(tmp_path).entries()
    assert entry.state == "finished"
    assert entry.message.startswith("A snapshot of step 20 takes 0.1 MB. Runs and texts on this server take")
    assert not list((tmp_path / entry.id).glob("snapshots/*"))
