"""What the process of a sweep does: train its models together, and have each become a run of its own as it leaves the stack.

Whatever kills it, each model's last state is whole, and resuming goes on with those that have not left. A stop makes runs of
the others too, as they stand: each of them can be resumed by itself, and all of them with the sweep.
"""

from __future__ import annotations

import torch

from xformer.checkpoints import load
from xformer.disk_quota import Room
from xformer.errors import QuotaExceededError
from xformer.paths import STATE, is_finished
from xformer.tasks import Task
from xformer.training.commands import Scoring, SweepLoop
from xformer.training.entry import Entry
from xformer.training.evaluate import put_figures_on_card
from xformer.training.limits import check_memory
from xformer.training.loop import Run, Stopped
from xformer.training.many import reports
from xformer.training.member_runs import become_run, become_runs_again, take_back
from xformer.training.run_store import RunStore, insert_rows
from xformer.training.snapshots import forget_after, forget_unfinished
from xformer.training.stored_sweep import MapMaker
from xformer.training.sweeps import Member, members_of


def train_sweep(store: RunStore, entry: Entry, loop: SweepLoop, device: torch.device, samples: int) -> tuple[str, str]:
    """Train, and say in which state the sweep is afterwards. Raises what stops it."""
    folder, members = store.folder_of(entry.id), members_of(entry)
    forget_unfinished(folder)
    become_runs_again(store, entry, members)
    take_back(store, entry, members)
    known = {one.id for deleted in (False, True) for one in store.entries(deleted=deleted)}
    waiting = [member for member in members if member.id not in known]
    check_memory(entry.settings(), device.type, n_models=len(waiting))
    runs = {member.number: _begin(store, entry, member, device) for member in waiting}
    ended = [member for member in waiting if is_finished(member.folder(store, entry.id))]
    loop.drives({members[number].id: run for number, run in runs.items()})
    maps = MapMaker(folder, members, runs)
    loop.at_each_step = maps.look
    state = _Leaving(store, entry, loop, maps, samples)
    try:
        for member in ended:  # killed between its last step and becoming a run
            state.leave(member, runs.pop(member.number))
        for report in reports(runs, loop.between):
            member = members[report.number]
            if report.progress is not None:
                loop.report(member.id, report.progress.row())
            if report.is_last:
                state.leave(member, runs[report.number], report.failure)
    except Stopped:
        maps.look(now=True)
        return loop.reason, state.stop(members, runs) if loop.reason == "stopped" else ""
    finally:
        loop.flush()
    maps.look(now=True)
    return "finished", state.message(len(members))


class _Leaving:
    """How the models of a sweep leave it."""

    def __init__(self, store: RunStore, entry: Entry, loop: SweepLoop, maps: MapMaker, samples: int) -> None:
        self.store, self.entry, self.loop, self.maps, self.samples = store, entry, loop, maps, samples
        self.given_up = 0

    def leave(self, member: Member, run: Run, failure: str = "") -> None:
        """A model that has come to its end becomes a run: scored as any other, or with the reason why it was given up."""
        self.loop.left.add(member.id)
        self.maps.leave(member.number)
        self.loop.flush()
        place = {"step": run.step, "seconds": run.seconds}
        if failure:
            self.given_up += 1
            become_run(self.store, self.entry, member, "failed", message=failure, **place)
            return
        scoring = Scoring(self.store, self.entry, self.loop)
        figures = put_figures_on_card(member.folder(self.store, self.entry.id), self.samples, scoring)
        become_run(self.store, self.entry, member, "finished", figures=figures, message=scoring.ended, **place)

    def stop(self, members: list[Member], runs: dict[int, Run]) -> str:
        """The models that go on become runs that are stopped; what there is to say about it."""
        message = ""
        for number, run in runs.items():
            if members[number].id in self.loop.left:
                continue
            try:
                run.keep_snapshot()
            except QuotaExceededError as error:
                message = f"No snapshots of this step were kept. {error}"
            become_run(self.store, self.entry, members[number], "stopped", step=run.step, seconds=run.seconds)
        return message

    def message(self, n: int) -> str:
        """What is to be said at the end."""
        if not self.given_up:
            return ""
        words = "was given up: its" if self.given_up == 1 else "were given up: their"
        return f"{self.given_up} of its {n} models {words} loss is no number any more."


def _begin(store: RunStore, entry: Entry, member: Member, device: torch.device) -> Run:
    """A model as it stands: fresh, or where it was when it was stopped."""
    folder = member.folder(store, entry.id)
    run = Run(member.preset, Task(member.preset.task), device, folder, Room(store.folder))
    if is_finished(folder):
        card = load(folder).card
        run.step, run.seconds, run.rows = card["step"], card["seconds"], card["curve"]
        run.begin_with(load(folder).model)
    elif (folder / STATE).exists():
        run.restore()
    forget_after(folder, run.step)
    with store.database.writing() as db:
        db.execute("DELETE FROM metrics WHERE run = ? AND step > ?", (member.id, run.step))
        insert_rows(db, member.id, run.rows)
    return run
