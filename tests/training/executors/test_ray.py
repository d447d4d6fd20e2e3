"""The executor `ray` with a fake cluster whose actors are objects in this process. test_cluster.py uses a real cluster."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.at_work import LocalRun, bits, failing_with, outcome
from tests.training.tiny import tiny_preset
from xformer.cli import train as cli_train
from xformer.cli.main import main
from xformer.errors import QuotaExceededError
from xformer.files import STATE, is_finished, snapshot_steps
from xformer.presets import Preset
from xformer.tasks import texts
from xformer.training import jobs, worker
from xformer.training.executors import Resources, ray, remote
from xformer.training.executors.cluster import LostError
from xformer.training.executors.ray import RayExecutor, batches
from xformer.training.executors.remote import RemoteJob, RemoteReport, RemoteRun
from xformer.training.limits import memory_needed
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, put_command
from xformer.training.stored_sweep import StoredSweep

PATIENCE = 120.0
PRESET = tiny_preset(steps=30, log_every=5, snapshot_every=10, model={"dropout": 0.2}, weight_decay=0.1)
ENDLESS = tiny_preset(steps=100_000, log_every=20, snapshot_every=20)
SWEPT = tiny_preset(steps=10, log_every=5, snapshot_every=10)
LOST = "The node node-1 that trained this run was lost."


class Actors:
    """A fake cluster: one node with these resources, and actors in this process."""

    def __init__(self, cpus: float = 2.0, gpus: float = 0.0) -> None:
        self.actors: dict[str, RemoteRun] = {}
        self.needs: dict[str, Resources] = {}
        self.jobs: dict[str, RemoteJob] = {}
        self.dead: set[str] = set()
        self.node = {"id": "", "name": "node-1", "CPU": cpus, "GPU": gpus, "memory": 8e9}
        self.loses_answers = False

    def start(self, name: str, job: RemoteJob, needs: Resources) -> None:
        if name not in self.actors:
            self.dead.discard(name)
            self.jobs[name], self.needs[name] = job, needs
            self.actors[name] = RemoteRun(job)

    def ask(self, name: str, *question: Any) -> RemoteReport | None:
        if name not in self.actors:
            raise LostError(is_certain=name in self.dead)
        report = self.actors[name].poll(*question)
        return None if self.loses_answers else report

    def tell(self, name: str, commands: Sequence[tuple[int, str, float | None]]) -> None:
        if name in self.actors:
            self.actors[name].command(commands)

    def end(self, name: str) -> None:
        if (actor := self.actors.pop(name, None)) is not None:
            with actor.store.database.writing() as db:  # a thread cannot be killed
                put_command(db, actor.run, "stop")
            actor.thread.join(PATIENCE)
            actor.close()

    def die(self) -> None:
        """Lose the node with all its actors."""
        self.dead |= self.actors.keys()
        for name in list(self.actors):
            self.end(name)

    def names(self) -> list[str]:
        return list(self.actors)

    def nodes(self) -> list[dict[str, Any]]:
        return [self.node]

    def free(self) -> dict[str, float]:
        return {"CPU": max(0.0, self.node["CPU"] - len(self.actors))}


class Office:
    """A run store with its executor."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.cluster = store, Actors()
        self.restart()

    def restart(self) -> None:
        """Create a new executor, which has received nothing from the actors, as in a new process."""
        self.executor = RayExecutor(self.store, self.cluster)  # pyright: ignore[reportArgumentType]

    def entry(self, run: str) -> RunRecord:
        return self.store.entry(run)

    def wait(self, run: str, holds: Callable[[RunRecord], object]) -> RunRecord:
        deadline = time.monotonic() + PATIENCE
        while not holds(self.entry(run)):
            assert time.monotonic() < deadline, self.entry(run)
            self.executor.round(starts=True)
            time.sleep(0.03)  # for the threads that train
        return self.entry(run)

    def wait_for_end(self, run: str) -> RunRecord:
        return self.wait(run, lambda entry: not entry.is_active and entry.state != "queued")


@pytest.fixture
def office(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(worker, "SAMPLES", 20)
    made = Office(store)
    yield made
    made.cluster.die()


def by_a_process(store: RunStore, settings: Preset, monkeypatch: pytest.MonkeyPatch, **how: Any) -> str:
    """Train a run of the store as the process executor does, and return its id."""
    run = LocalRun(store, monkeypatch, store.add(settings, **how))
    run.train()
    return run.id


def has_saved(entry: RunRecord) -> bool:
    return entry.pid is not None and entry.step > 20


def test_run_ends_in_the_bits_of_a_process_if_reports_are_lost(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(PRESET)
    for _ in range(3):
        office.cluster.loses_answers = not office.cluster.loses_answers
        office.executor.round(starts=True)
        office.restart()  # the process was killed, before or after it wrote the report
    office.cluster.loses_answers = False
    entry = office.wait_for_end(run)
    assert (entry.state, entry.message, entry.node, entry.device) == ("finished", "", "node-1", "cpu")
    peer = by_a_process(office.store, PRESET, monkeypatch)
    assert outcome(office.store, run) == outcome(office.store, peer)
    assert entry.live.keys() == office.entry(peer).live.keys()
    assert is_finished(office.store.folder_of(run))
    assert not office.cluster.actors


def test_run_of_a_lost_node_reports_it_and_goes_on_elsewhere(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that it has not ended when its loss is noticed on a fast machine.
    settings = tiny_preset(steps=200, log_every=20, snapshot_every=20, model={"dropout": 0.2})
    run = office.store.add(settings)
    office.wait(run, has_saved)
    office.cluster.die()
    office.executor.round(starts=False)
    entry = office.entry(run)
    assert (entry.state, entry.worker) == ("queued", None)
    step = ray.saved_step(office.store.folder_of(run))
    assert step >= 20
    assert entry.message == f"{LOST} The run continues from step {step:,}, the last state that was saved here."
    office.wait_for_end(run)
    peer = by_a_process(office.store, settings, monkeypatch)
    mine, theirs = outcome(office.store, run), outcome(office.store, peer)
    assert mine == theirs


def test_paused_run_of_a_lost_node_stays_paused(office: Office) -> None:
    run = office.store.add(ENDLESS)
    office.wait(run, has_saved)
    office.store.send(run, "pause")
    office.wait(run, lambda entry: entry.state == "paused")
    office.cluster.die()
    office.executor.round(starts=True)
    assert (office.entry(run).state, office.entry(run).worker) == ("paused", None)


def test_unknown_actor_has_a_grace_period(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(ENDLESS)
    office.wait(run, has_saved)
    office.cluster.die()
    office.cluster.dead.clear()  # the head has restarted and does not know the actors yet
    office.executor.round(starts=True)
    assert office.entry(run).state == "running"
    monkeypatch.setattr(ray, "GRACE_SECONDS", 0.0)
    office.executor.round(starts=False)
    assert office.entry(run).state == "queued"


def test_run_whose_node_is_lost_repeatedly_fails(office: Office) -> None:
    run = office.store.add(tiny_preset(steps=10**5, log_every=10**5, snapshot_every=0))
    for _ in range(ray.MAX_STARTS):
        office.wait(run, lambda entry: entry.is_active)
        office.cluster.die()
        office.executor.round(starts=False)
    entry = office.entry(run)
    assert entry.state == "failed"
    assert entry.message.startswith("Its node was lost 5 times in a row before a saved state came back")


def test_commands_reach_the_node_and_their_effect_comes_back(office: Office) -> None:
    run = office.store.add(ENDLESS)
    office.wait(run, has_saved)
    office.store.send(run, "pause")
    step = office.wait(run, lambda entry: entry.state == "paused").step
    office.store.send(run, "step")
    office.wait(run, lambda entry: entry.step == step + 1)
    office.restart()  # no command must be carried out twice
    jobs.change_rate(office.store, run, 0.02)
    office.wait(run, lambda entry: entry.train["lr_changes"])
    assert office.entry(run).step == step + 1
    assert snapshot_steps(office.store.folder_of(run))[-1] == step + 1
    office.store.send(run, "resume")
    office.wait(run, lambda entry: entry.step > step + 1)
    jobs.stop(office.store, run)
    entry = office.wait_for_end(run)
    assert (entry.state, entry.message) == ("stopped", "")
    assert ray.saved_step(office.store.folder_of(run)) == entry.step
    assert not office.cluster.actors


def test_run_without_node_stops_and_unresponsive_run_is_killed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(ENDLESS)
    office.cluster.loses_answers = True
    office.executor.round(starts=True)
    assert office.entry(run).node == ""
    jobs.stop(office.store, run)
    office.executor.round(starts=True)
    assert (office.entry(run).state, office.cluster.names()) == ("stopped", [])
    office.cluster.loses_answers = False
    unresponsive = office.store.add(ENDLESS)
    office.wait(unresponsive, has_saved)
    monkeypatch.setattr(office.cluster, "tell", lambda name, commands: None)
    jobs.stop(office.store, unresponsive)
    office.executor.round(starts=True)
    assert office.entry(unresponsive).is_active
    monkeypatch.setattr(ray, "STOP_SECONDS", 0.0)
    office.executor.round(starts=True)
    entry = office.entry(unresponsive)
    assert (entry.state, entry.message) == ("stopped", ray.UNANSWERED)


def test_only_obsolete_actors_of_this_store_are_ended(office: Office) -> None:
    run = office.store.add(ENDLESS)
    entry = office.wait(run, lambda entry: entry.is_active)
    mine, other = f"{run}-{entry.worker}", "0123abcd-token"
    job = office.cluster.jobs[mine]
    office.cluster.start(f"{run}-earlier", job, Resources())
    office.cluster.start(other, job, Resources())  # it belongs to another run store on this cluster
    office.executor.round(starts=True)
    assert office.cluster.names() == [mine, other]


def test_runs_beyond_the_cpus_of_the_cluster_wait_in_turn(office: Office) -> None:
    owners = ["ada", "ada", "ada", "ada", "ada", "bob"]
    runs = [office.store.add(ENDLESS, owner=owner) for owner in owners]
    office.executor.round(starts=True)
    states = [office.entry(run).state for run in runs]
    assert states == ["running"] * 3 + ["queued"] * 2 + ["running"]  # 2 CPUs, and 2 ahead


def test_paused_run_leaves_its_node_when_others_wait(office: Office) -> None:
    office.cluster.node["CPU"] = 1.0
    run = office.store.add(ENDLESS)
    office.wait(run, has_saved)
    office.store.send(run, "pause")
    step = office.wait(run, lambda entry: entry.state == "paused").step
    assert office.entry(run).is_active
    for _ in range(3):
        office.store.add(ENDLESS)
    office.wait(run, lambda entry: not entry.is_active)
    assert office.entry(run).state == "paused"
    assert ray.saved_step(office.store.folder_of(run)) == step


def test_command_that_arrives_twice_is_handled_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(ENDLESS)
    office.wait(run, lambda entry: entry.step > 0)
    (actor,) = office.cluster.actors.values()
    taken: list[str] = []
    monkeypatch.setattr(remote, "put_command", lambda db, run, kind, value: taken.append(kind))
    begun = actor.obeyed
    actor.command([(begun + 1, "pause", None)])
    actor.command([(begun + 1, "pause", None), (begun + 2, "step", None)])
    assert taken == ["pause", "step"]


def test_gpu_is_requested_if_one_exists(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for wanted, gpus in (("auto", 1.0), ("cuda:0", 4.0), ("cpu", 1.0), ("auto", 0.0)):
        cluster = Actors(gpus=gpus)
        monkeypatch.setattr(cluster, "start", lambda name, job, needs: found.append((needs.gpus, needs.memory > 10**8)))
        executor = RayExecutor(store, cluster)  # pyright: ignore[reportArgumentType]
        entry = store.entry(store.add(PRESET, device=wanted))
        executor.submit(entry, executor.needs(entry))
    assert found == [(1, True), (1, True), (0, True), (0, True)]


def test_exceeded_local_quota_fails_the_run_with_a_message(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(ENDLESS)
    office.wait(run, has_saved)
    monkeypatch.setattr(office.executor.room, "check", failing_with(QuotaExceededError("There is no room.")))
    entry = office.wait_for_end(run)
    assert (entry.state, entry.message) == ("failed", "There is no room. Resume continues from there.")
    assert not office.cluster.actors


@pytest.mark.parametrize("path", ["../precious", "/{folder}/precious", "{run}/../../precious", "other/precious", ""])
def test_node_cannot_delete_outside_its_run(office: Office, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    run, ask, folder = office.store.add(ENDLESS), office.cluster.ask, office.store.folder
    kept = [folder.parent / "precious", folder / "other" / "precious"]
    for file in kept:
        file.parent.mkdir(exist_ok=True)
        file.write_text("kept")
    gone = [path.format(run=run, folder=folder.parent)]
    monkeypatch.setattr(office.cluster, "ask", lambda *args: (one := ask(*args)) and replace(one, gone=gone))
    entry = office.wait_for_end(run)
    assert "a file that does not belong to this run" in entry.message
    assert all(file.exists() for file in kept)


@pytest.mark.parametrize("path", ["../../7.npy", "{run}/maps/../../../7.npy"])
def test_node_cannot_write_outside_its_run(office: Office, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    run, ask, maps = office.store.add(ENDLESS), office.cluster.ask, io.BytesIO()
    np.save(maps, np.zeros((1, 2, 2), np.uint8))
    files = {path.format(run=run): ((1, 1), maps.getvalue())}
    monkeypatch.setattr(office.cluster, "ask", lambda *args: (one := ask(*args)) and replace(one, files=files))
    entry = office.wait_for_end(run)
    assert entry.state == "failed"
    assert "a file that does not belong to this run" in entry.message
    assert not list(office.store.folder.parent.rglob("7.npy")) + list(office.store.folder.parents[1].glob("7.npy"))


def test_text_is_sent_to_the_node(store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path))
    name = texts.keep(("to be or not to be " * 200).encode())
    [found] = [ray.text_of(store.entry(store.add(PRESET)).but(task={"name": "characters", "text": name}))]
    assert found == (name, texts.read(name).encode())
    assert ray.text_of(store.entry(store.add(PRESET))) is None


def test_sweep_is_trained_in_batches(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "FEW", 2)
    office.cluster.node["CPU"] = 4.0
    column = {"settings": {"seed": [0, 1, 2, 3, 4]}, "ids": [f"0000000{n}" for n in range(5)]}
    run = office.store.add(SWEPT, sweep=column)
    office.wait(run, lambda entry: entry.is_active)
    assert [len(batch.members) for batch in batches(office.entry(run))] == [2, 2, 1]
    entry = office.wait_for_end(run)
    assert (entry.state, entry.step, entry.message) == ("finished", 10, "")
    found = StoredSweep(office.store, run)
    assert set(found.outcomes()["state"]) == {"finished"}
    maps, _, _ = found.maps()
    assert maps.reshape(5, -1).any(axis=1).all()
    for one in column["ids"]:
        assert is_finished(office.store.folder_of(one))
        assert [row["step"] for row in office.store.rows(one)] == [5, 10]
    alone = by_a_process(office.store, SWEPT, monkeypatch, sweep=column | {"ids": [f"1000000{n}" for n in range(5)]})
    theirs = StoredSweep(office.store, alone)
    assert theirs.map_steps() == found.map_steps()
    for mine, other in zip(found.rows_of.values(), theirs.rows_of.values(), strict=True):
        assert [row["loss"] for row in mine] == pytest.approx([row["loss"] for row in other], rel=1e-3)


def test_lost_batch_continues_from_the_states_of_its_models(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "FEW", 1)
    settings = tiny_preset(steps=10_000, log_every=20, snapshot_every=20)
    column = {"settings": {"seed": [0, 1]}, "ids": ["00000000", "00000001"]}
    run = office.store.add(settings, sweep=column)
    folders = [office.store.folder_of(run) / "members" / name for name in ("000", "001")]
    office.wait(run, lambda _: all(map(ray.saved_step, folders)))
    office.cluster.die()
    office.executor.round(starts=True)
    entry = office.entry(run)
    assert (entry.state, entry.message.partition(" The run continues from step ")[0]) == ("running", LOST)
    assert all(STATE in "".join(job.files or {}) for job in office.cluster.jobs.values())


def test_batch_is_no_larger_than_a_cpus_share_of_the_memory(store: RunStore) -> None:
    cluster = Actors()
    executor = RayExecutor(store, cluster)  # pyright: ignore[reportArgumentType]
    column = {"settings": {"seed": list(range(500))}, "ids": [f"{n:08x}" for n in range(500)]}
    entry = store.entry(store.add(SWEPT, sweep=column))
    assert executor.models_per_actor(entry) == 250  # 2 CPUs
    cluster.node["memory"] = 2.0 * memory_needed(SWEPT, n_models=100)
    executor.nodes = cluster.nodes()
    assert executor.models_per_actor(entry) == 100


def test_command_line_gives_the_same_weights_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offices: dict[Path, Office] = {}

    def reconcile(store: RunStore) -> None:
        if store.folder not in offices:
            offices[store.folder] = Office(store)
        offices[store.folder].executor.round(starts=True)

    monkeypatch.setattr(jobs, "reconcile", reconcile)
    monkeypatch.setattr(cli_train, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("xformer.training.loop.prepare_process", lambda *_: None)  # its settings would outlast the test
    monkeypatch.setenv("XFORMER_EXECUTOR", "process")
    words = ["train", "--preset", "reverse-mirror", "--steps", "20", "--device", "cpu", "--score", "0"]
    found = {}
    for name in ("process", "ray"):
        out = tmp_path / name
        assert main([*words, "--executor", name, "--out", str(out)]) == 0
        files = sorted(out.rglob("*.safetensors"))
        found[name] = {str(file.relative_to(out)): bits(file) for file in files}
    assert found["ray"] == found["process"]
    assert len(offices) == 1


def test_report_before_the_end_of_the_thread_has_all_rows(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run = office.store.add(PRESET)
    office.executor.round(starts=True)
    (actor,) = office.cluster.actors.values()
    actor.thread.join(PATIENCE)
    monkeypatch.setattr(actor.thread, "is_alive", lambda: True)
    report = actor.poll({}, {}, ())
    assert (report.is_over, report.row["state"]) == (False, "finished")
    assert [row["step"] for row in report.rows[run]][-1] == PRESET.train.steps
