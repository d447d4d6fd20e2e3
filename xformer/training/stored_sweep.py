"""Results of a sweep in the run store: metrics, outcomes, and the attention pattern of each model's best head over time.

    sweep = StoredSweep(RunStore("checkpoints/runs"), "3fa9c1d2")
    viz.training_fan(sweep.rows(), metric="loss")
    viz.sweep_outcome(sweep.outcomes(), x="peak_lr", y="seed")
    viz.map_grid(*sweep.maps())

The maps of one step are stored in one file, such as `maps/000200.npy`, as uint8 [member, query, key].
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import UInt8

from xformer.adapters.on_demand import LEVELS, MASKED
from xformer.errors import RunStoreError
from xformer.files import write_atomically
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.trace import record
from xformer.training.loop import Run
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore, exact_match, has_no_answer
from xformer.training.sweeps import SweepMember, goal, members_of

METRICS = ("loss", "held_out_loss", "held_out_exact_match", "held_out_token_accuracy", "gradient_norm", "learning_rate")


class StoredSweep:
    """The current state of a sweep in the run store. Raises `RunStoreError` if there is no such sweep."""

    def __init__(self, store: RunStore, run: str) -> None:
        self.store, self.entry = store, store.entry(run)
        if self.entry.sweep is None:
            raise RunStoreError(f"The run “{self.entry.name}” trains one model, so it is not a sweep.")
        self.members = members_of(self.entry)
        self.names = [member.name for member in self.members]
        self.runs: dict[str, RunRecord] = {one.id: one for one in store.entries() if one.sweep_of == run}
        """The members that have become runs, by id."""
        self.rows_of = {member.id: store.rows(member.id) for member in self.members}
        """The metrics of each member, by id."""

    def rows(self) -> pd.DataFrame:
        """Return a row for each report, with the columns `member`, `step` and `METRICS`."""
        found = [
            {"member": member.name, "step": row["step"]} | {name: row.get(name) for name in METRICS}
            for member in self.members
            for row in self.rows_of[member.id]
        ]
        return pd.DataFrame(found, columns=["member", "step", *METRICS]).astype(dict.fromkeys(METRICS, float))

    def outcomes(self) -> pd.DataFrame:
        """Return a row for each member, with its settings, state, scores, and whether it has solved its task.

        A member solves its task at the first report whose exact match on unseen examples reaches the goal. `solved` is False if
        training ended without such a report, and None while it is undecided.
        """
        lines = []
        for member in self.members:
            rows, run = self.rows_of[member.id], self.runs.get(member.id)
            step = self._solved_at(member.id)
            has_ended = run is not None and run.state in ("finished", "failed")
            line = {"member": member.name, "run": "" if run is None else run.id, **member.values}
            line |= {"state": "training" if run is None else run.state, "step": rows[-1]["step"] if rows else 0}
            line |= {"exact_match": exact_match(run or self.entry, rows[-1] if rows else {})}
            line |= {"loss": rows[-1].get("loss", np.nan) if rows else np.nan}
            line |= {"solved": True if step is not None else False if has_ended and self.is_judged else None}
            lines.append(line | {"steps_to_solve": np.nan if step is None else float(step)})
        return pd.DataFrame(lines).astype({"solved": object, "steps_to_solve": float, "exact_match": float})

    def map_steps(self) -> list[int]:
        """Return the steps that have maps."""
        return map_steps(self.store.folder_of(self.entry.id))

    def maps(self, step: int | None = None) -> tuple[Maps, list[str], list[bool]]:
        """Return the map of each member's best head at a step, its label, and whether it had solved the task.

        The default is the last step. Raises `RunStoreError` if there are no maps of that step.
        """
        chosen = max(self.map_steps(), default=-1) if step is None else step
        try:
            found = read_maps(self.store.folder_of(self.entry.id), chosen)
        except (OSError, ValueError):
            raise RunStoreError(f"The sweep “{self.entry.name}” has no maps of that step yet.") from None
        if len(found) != len(self.members):
            raise RunStoreError(f"The maps of the sweep “{self.entry.name}” do not match its models.")
        solved = [self._solved_at(member.id) for member in self.members]
        return found, [one.label for one in self.members], [at is not None and at <= chosen for at in solved]

    @property
    def is_judged(self) -> bool:
        """Whether the task has right answers, which continuing a text does not."""
        return not has_no_answer(self.entry)

    def _solved_at(self, member: str) -> int | None:
        """Return the step of the first report that reaches the goal, or None."""
        if not self.is_judged:
            return None
        share = goal(self.entry)
        rows = self.rows_of[member]
        return next((row["step"] for row in rows if (row.get("held_out_exact_match") or 0.0) >= share), None)


Maps = UInt8[np.ndarray, "member query key"]

FRAMES = 30
"""The approximate number of steps with maps."""


def probe(members: Sequence[SweepMember]) -> Example:
    """Return the input on which the maps are recorded; no member is trained on it."""
    return Task(members[0].preset.task).probe(members[0].preset.train.seed)


def map_steps(folder: Path) -> list[int]:
    """Return the steps that have maps, in ascending order."""
    return sorted(int(file.stem) for file in (folder / "maps").glob("*.npy") if file.stem.isdecimal())


def maps_file(folder: Path, step: int) -> Path:
    """Return the path of the maps of a step."""
    return folder / "maps" / f"{step:06d}.npy"


def read_maps(folder: Path, step: int) -> Maps:
    """Read the maps of a step, uint8 [member, query, key]. Raises `OSError` or `ValueError` if there are none."""
    maps = np.load(maps_file(folder, step), allow_pickle=False)
    if maps.dtype != np.uint8 or maps.ndim != 3:
        raise ValueError(f"maps/{step:06d}.npy does not contain maps.")
    return maps


def write_maps(folder: Path, step: int, maps: Maps) -> None:
    """Write the maps of a step."""
    content = io.BytesIO()
    np.save(content, maps, allow_pickle=False)
    write_atomically(maps_file(folder, step), content.getvalue())


class MapWriter:
    """Writes the maps of a sweep during training."""

    def __init__(self, folder: Path, members: Sequence[SweepMember], runs: Mapping[int, Run]) -> None:
        self.folder, self.n, self.runs = folder, len(members), dict(runs)
        self.probe = probe(members)
        self.every = _round_up(max(member.preset.train.steps for member in members) / FRAMES)
        self.step = max((run.step for run in runs.values()), default=0)
        self.maps: np.ndarray | None = None
        for step in map_steps(folder):  # after a resume, members that have ended keep their last map
            if step > self.step:
                maps_file(folder, step).unlink(missing_ok=True)
            else:
                self.maps = read_maps(folder, step)
        self.written_step = -1

    def write_if_due(self, *, now: bool = False) -> None:
        """Write the maps of this step if they are due or `now` is set."""
        self.step = max((run.step for run in self.runs.values()), default=self.step)
        if self.step == self.written_step or not (now or self.step % self.every == 0):
            return
        for number, run in self.runs.items():
            self._draw(number, run)
        if self.maps is not None:
            write_maps(self.folder, self.step, self.maps)
        self.written_step = self.step

    def end_member(self, number: int) -> None:
        """Record the last map of a model that has ended. After the last model, the maps are written before it becomes a run."""
        run = self.runs.pop(number)
        self.step = max(self.step, run.step)
        self._draw(number, run)
        if not self.runs:
            self.write_if_due(now=True)

    def _draw(self, number: int, run: Run) -> None:
        found = self._best_head(run)
        if self.maps is None:
            self.maps = np.zeros((self.n, *found.shape), np.uint8)
        self.maps[number] = found

    @torch.no_grad()
    def _best_head(self, run: Run) -> UInt8[np.ndarray, "query key"]:
        """Return the pattern of the head with the highest task score."""
        run.model.eval()
        trace = record(run.model, self.probe.input_ids, self.probe.target, keep=["*.pattern", "*.mask"])
        run.model.train()
        scores = run.task.head_scores(trace, self.probe)
        _, path, head = max((score, path, head) for path, heads in scores.items() for head, score in enumerate(heads))
        pattern = trace.patterns()[path][0, head].nan_to_num()  # [query, key]
        cells = (pattern * LEVELS).round().clamp(0, LEVELS)
        if (mask := f"{path}.mask") in trace:
            allowed = trace[mask][0].expand(len(scores[path]), *cells.shape)[head]
            cells = cells.masked_fill(~allowed, MASKED)
        return cells.to(torch.uint8).cpu().numpy()


def _round_up(value: float) -> int:
    """Return the next round number of steps that is at least `value`."""
    return next((n for n in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000) if n >= value), max(1, round(value)))
