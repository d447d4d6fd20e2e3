"""A sweep in the run store: one process trains many models, and each becomes a separate run, even after a failure."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.training.at_work import LocalRun, claim, quick_worker
from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.errors import ConfigError, RunStoreError
from xformer.files import STATE, snapshot_steps
from xformer.tasks import texts
from xformer.training import jobs, worker
from xformer.training.limits import Limits
from xformer.training.loop import Run
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore
from xformer.training.stored_sweep import StoredSweep, map_steps, read_maps
from xformer.training.sweeps import members_of, sweep

PRESET = tiny_preset(steps=20, log_every=5, snapshot_every=10)


@pytest.fixture(autouse=True)
def _no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "reconcile", lambda _: None)


def submit(store: RunStore, preset: Any = PRESET, **settings: Any) -> str:
    return jobs.submit(store, preset, owner="ada", name="Many", sweep=settings or {"seed": [0, 1, 2]})


def train(store: RunStore, run: str, monkeypatch: pytest.MonkeyPatch, at: dict[int, Any] | None = None) -> RunRecord:
    """Train a queued sweep in this process; `at[step]` is called before the next step."""
    step_of_one = Run.train_step

    def step(run: Run) -> None:
        if at and (do := at.pop(run.step, None)):
            do()
        step_of_one(run)

    with quick_worker(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(Run, "train_step", step)
        worker.work(store, run, claim(store, run))
    return store.entry(run)


def members(store: RunStore, run: str) -> list[RunRecord]:
    """Return the runs that the models of a sweep have become, in order."""
    return sorted((one for one in store.entries() if one.sweep_of == run), key=lambda one: one.parent or "")


def test_each_model_of_a_sweep_becomes_an_ordinary_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(store)
    entry = train(store, run, monkeypatch)
    assert (entry.state, entry.step, entry.worker, entry.message) == ("finished", 20, None, "")
    found = members(store, run)
    assert [one.id for one in found] == [member.id for member in members_of(entry)]
    assert [one.name for one in found] == ["Many · seed 0", "Many · seed 1", "Many · seed 2"]
    for seed, one in enumerate(found):
        folder = store.folder_of(one.id)
        assert (one.state, one.step, one.owner, one.device, one.train["seed"]) == ("finished", 20, "ada", "cpu", seed)
        assert [row["step"] for row in store.rows(one.id)] == [5, 10, 15, 20]
        assert snapshot_steps(folder) == [0, 10, 20]
        assert load(folder).card["figures"] == one.figures
        assert one.figures["samples"] == 20
        assert not (folder / STATE).exists()
    assert entry.seconds == pytest.approx(sum(one.seconds for one in found))
    assert not list((store.folder_of(run) / "members").iterdir())
    assert map_steps(store.folder_of(run)) == list(range(21))
    first, last = (read_maps(store.folder_of(run), step) for step in (0, 20))
    assert last.shape == (3, *first.shape[1:])
    assert np.abs(last.sum(axis=2, dtype=int) - 253).max() <= last.shape[2]  # each row sums to 1, up to rounding
    assert not np.array_equal(first, last)
    store.delete(found[0].id)
    store.delete(run)  # the runs of a sweep are deleted and restored with it
    assert store.entries() == []
    store.undelete(run)
    assert members(store, run) == found[1:]
    assert store.entry(found[0].id).deleted is not None  # it had been deleted separately
    store.delete(run)
    jobs.empty_bin(store, older_than=-1)
    assert store.entries(deleted=True) == []
    assert not [path for path in store.folder.iterdir() if path.is_dir()]
    with store.database.reading() as db:
        assert db.execute("SELECT count(*) FROM metrics").fetchone()[0] == 0


def test_stop_turns_unfinished_models_into_stopped_runs(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(store, steps=[5, 20], seed=[0, 1])
    entry = train(store, run, monkeypatch, {12: lambda: jobs.stop(store, run)})
    assert entry.state == "stopped"
    assert [one.state for one in members(store, run)] == ["finished", "finished", "stopped", "stopped"]
    assert {one.step for one in members(store, run)[2:]} == {13}
    one = members(store, run)[2]
    assert snapshot_steps(store.folder_of(one.id))[-1] == 13
    assert LocalRun(store, monkeypatch, one.id).resume().state == "finished"  # a member can be resumed alone
    jobs.resume(store, run)  # and the sweep resumes the others
    assert train(store, run, monkeypatch).state == "finished"
    assert [one.state for one in members(store, run)] == ["finished"] * 4
    assert {one.step for one in members(store, run)[2:]} == {20}


def test_stored_sweep_has_metrics_outcomes_and_maps(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(store, weight_decay=[0.0, 0.5], seed=[0, 1])
    assert StoredSweep(store, run).rows().empty
    assert StoredSweep(store, run).outcomes()["solved"].isna().all()
    with pytest.raises(RunStoreError, match="no maps of that step yet"):
        StoredSweep(store, run).maps()
    train(store, run, monkeypatch)
    [one, *_] = members(store, run)
    store.put_rows(one.id, [row | {"held_out_exact_match": 1.0} for row in store.rows(one.id) if row["step"] >= 15])
    sweep = StoredSweep(store, run)
    rows, outcomes = sweep.rows(), sweep.outcomes()
    assert list(rows["member"].unique()) == sweep.names == list(outcomes["member"])
    assert sweep.names[1] == "weight decay 0, seed 1"
    assert list(rows["step"]) == [5, 10, 15, 20] * 4
    assert list(outcomes["weight_decay"]) == [0.0, 0.0, 0.5, 0.5]
    assert list(outcomes["solved"]) == [True, False, False, False]
    assert outcomes["steps_to_solve"][0] == 15
    assert outcomes["steps_to_solve"][1:].isna().all()
    maps, names, solved = sweep.maps()
    assert (len(maps), names, solved) == (4, ["0 · 0", "0 · 1", "0.5 · 0", "0.5 · 1"], [True, False, False, False])
    assert sweep.maps(10)[2] == [False] * 4
    with pytest.raises(RunStoreError, match="trains one model, so it is not a sweep"):
        StoredSweep(store, one.id)


def test_sweep_on_text_has_no_outcome_and_marks_masked_cells(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = "".join(sorted(set(texts.read("python"))))
    words = {"name": "characters", "symbols": len(alphabet), "alphabet": alphabet, "text": "python"}
    preset = tiny_preset("decoder", task=words | {"min_len": 8, "max_len": 8}, steps=5, log_every=5)
    run = submit(store, preset, seed=[0, 1])
    train(store, run, monkeypatch)
    sweep = StoredSweep(store, run)
    assert sweep.outcomes()[["solved", "exact_match"]].isna().all(axis=None)
    above = np.triu(np.ones(sweep.maps()[0].shape[1:], bool), 1)
    assert (sweep.maps()[0][:, above] == 255).all()
    assert (sweep.maps()[0][:, ~above] <= 253).all()


def test_finished_model_of_a_killed_process_becomes_a_run(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(store)
    train(store, run, monkeypatch)
    for number, moved in ((1, False), (2, True)):
        lost = members(store, run)[number]
        with store.database.writing() as db:
            db.execute("DELETE FROM runs WHERE id = ?", (lost.id,))
        if not moved:
            store.folder_of(lost.id).rename(store.folder_of(run) / "members" / f"{number:03d}")
        store.change(run, state="interrupted")
        jobs.resume(store, run)
        assert train(store, run, monkeypatch).state == "finished"
        again = members(store, run)[number]
        assert (again.id, again.step, again.figures) == (lost.id, 20, lost.figures)
        assert again.seconds == pytest.approx(lost.seconds, abs=0.01)


def test_failed_model_becomes_a_run_and_the_sweep_reports_it(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = tiny_preset(model={"norm": "none"}, clip_norm=0.0, adam_eps=1.0, warmup=0.0)
    run = submit(store, preset, peak_lr=[0.001, 1e12])
    entry = train(store, run, monkeypatch)
    assert entry.state == "finished"
    assert entry.message == "1 of its 2 models failed because the loss was no longer finite."
    good, bad = members(store, run)
    assert (good.state, bad.state) == ("finished", "failed")
    assert "became" in bad.message


def test_invalid_sweeps_and_commands_are_rejected(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, words in (
        ({"seed": []}, "at least one value each"),
        ({"seed": [0], "peak_lr": [0.1], "warmup": [0.1]}, "one or two settings"),
        ({"seed": [0], "batch_size": [2, 4]}, "same batch_size"),
    ):
        with pytest.raises(ConfigError, match=words):
            submit(store, **settings)
    with pytest.raises(ConfigError, match=r"seed must be a list of values, got 3; for example seed=\[3\]"):
        sweep("reverse-small", seed=3)  # type: ignore[arg-type]
    words = "trains 60 models at once, and this server allows 2; choose fewer values"
    with pytest.raises(RunStoreError, match=words):
        jobs.submit(store, PRESET, sweep={"seed": range(60)}, limits=Limits(models=2))
    assert store.entries() == []
    run = submit(store)
    claim(store, run)
    for command in (lambda: store.send(run, "pause"), lambda: jobs.change_rate(store, run, 0.1)):
        with pytest.raises(RunStoreError, match="stop it"):
            command()


def test_sweep_with_a_damaged_list_of_models_is_damaged(store: RunStore) -> None:
    run = submit(store)
    good = store.entry(run).sweep
    assert good is not None
    for bad in ("[", json.dumps(good | {"ids": ["../../x"] * 3}), json.dumps(good | {"ids": good["ids"][:2]})):
        store.change(run, sweep=bad)
        assert store.entry(run).state == "damaged"
        assert "sweep" in store.entry(run).message


def test_last_maps_are_written_before_all_models_are_runs(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, become_run, found = submit(store, seed=[0, 1, 2]), worker.become_run, []

    def record_maps(*args: Any, **kwargs: Any) -> None:  # readers look for no more maps once all models are runs
        found.append(map_steps(store.folder_of(run))[-1:])
        become_run(*args, **kwargs)

    monkeypatch.setattr(worker, "become_run", record_maps)
    train(store, run, monkeypatch)
    assert found[-1] == map_steps(store.folder_of(run))[-1:] == [20]
    assert read_maps(store.folder_of(run), 20).reshape(3, -1).any(axis=1).all()
