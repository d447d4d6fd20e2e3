"""One run as the run store has it: what was asked for, who asked, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from xformer import notebook_html
from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig
from xformer.presets import Preset
from xformer.training.cells import (
    Damage,
    Id,
    Line,
    Number,
    ScoreFigures,
    StepFigures,
    Sweep,
    Tags,
    Text,
    Whole,
    or_else,
    settings_of,
)

MOVES = {
    "queued": ("running", "stopped"),
    "running": ("paused", "queued", "stopped", "finished", "failed", "interrupted"),
    "paused": ("running", "queued", "stopped", "finished", "failed", "interrupted"),
    "stopped": ("queued",),
    "interrupted": ("queued",),
    "failed": ("queued",),
    "finished": (),
}
"""From which state a run may go to which."""
RESUMABLE = tuple(state for state, moves in MOVES.items() if "queued" in moves)
AT_WORK = ("running", "paused")
"""In which states a run can have a process."""
DAMAGED = "damaged"
"""The state of a run of which too little can be read to train it, or to tell how it was trained: nothing starts from it."""
ELSEWHERE = "elsewhere"
"""The device of a run that another program trains: it can be watched and stopped, and is resumed there."""
SETTINGS: dict[str, type[Config]] = {"model": ModelConfig, "task": TaskConfig, "train": TrainConfig}


class Entry(BaseModel, frozen=True, strict=True, extra="ignore"):
    """One run; its configurations are the plain JSON values that were written down."""

    number: Annotated[Whole, or_else(0)]
    id: Annotated[Id, or_else("")]
    name: Annotated[Line, or_else("?")]
    owner: Annotated[Text, or_else("")]
    tags: Annotated[Tags, or_else(())]
    preset: Annotated[Line, or_else("")]
    title: Annotated[Line, or_else("")]
    about: Annotated[Text, or_else("")]
    model: Annotated[dict[str, Any], settings_of(ModelConfig), or_else({})]
    task: Annotated[dict[str, Any], settings_of(TaskConfig), or_else({})]
    train: Annotated[dict[str, Any], settings_of(TrainConfig), or_else({})]
    wanted: Annotated[Line, or_else("auto")]
    parent: Annotated[Line | None, or_else(None)]
    state: Annotated[str, Field(pattern=rf"^(?:{'|'.join((*MOVES, DAMAGED))})\z"), or_else(DAMAGED)]
    device: Annotated[Line | None, or_else(None)]
    turn: Annotated[Whole, or_else(0)]
    worker: Annotated[Text | None, or_else(None)]
    pid: Annotated[Whole | None, or_else(None)]
    step: Annotated[Whole, or_else(0)]
    seconds: Annotated[Number, or_else(0.0)]
    live: Annotated[StepFigures, or_else({})]
    """Figures of the latest step: loss, gradient_norm, learning_rate, steps_per_second, tokens_per_second."""
    message: Annotated[Text, or_else("")]
    figures: Annotated[ScoreFigures, or_else({})]
    """The score on unseen examples once it is finished."""
    created: Annotated[Number, or_else(0.0)]
    deleted: Annotated[Number | None, or_else(0.0)]
    private: Annotated[int, Field(ge=0, le=1), or_else(1)] = 0
    """1 where only its owner sees it."""
    sweep: Annotated[Sweep, or_else(None)] = None
    """Of many models that are trained together, what differs in them, and their ids; see `sweep_members`."""
    unreported_starts: Annotated[Whole, or_else(0)] = 0
    """Workers that were started since the last report: 0 once one has reported, 2 where the first one was replaced."""

    @property
    def is_active(self) -> bool:
        """Whether a process has it."""
        return self.worker is not None

    @property
    def sweep_of(self) -> str:
        """The sweep that it was a model of; empty for any other run."""
        return (self.parent or "").partition("/")[0] if "/" in (self.parent or "") else ""

    def settings(self) -> Preset:
        """What is to be trained. Raises `ConfigError` where the run store was edited into something that is none."""
        return Preset(
            self.preset,
            self.title,
            self.about,
            ModelConfig.from_json(self.model),
            TaskConfig.from_json(self.task),
            TrainConfig.from_json(self.train),
        )

    def _repr_html_(self) -> str:
        """In a notebook: what was asked for, how far it is, and how well it does."""
        steps = self.train.get("steps")
        rows = [
            ("run", self.id),
            ("state", self.state),
            ("step", f"{self.step:,} of {steps:,}" if isinstance(steps, int) else f"{self.step:,}"),
            *((name, getattr(self, name)) for name in ("preset", "device", "parent")),
            ("seconds", f"{self.seconds:.1f}"),
            *notebook_html.scores(self.figures, "exact_match", "loss"),
        ]
        said = [notebook_html.text(line) for line in (self.about, self.message) if line]
        return notebook_html.card(self.name, *said, notebook_html.facts(rows))

    def but(self, **values: Any) -> Entry:
        """The same run with other values in some of its fields."""
        return self.model_copy(update=values)


def entry_from(cells: Mapping[str, Any]) -> Entry:
    """A run from the cells of its row, whatever they hold; what was wrong with them stands at the end of its message."""
    damage = Damage()
    there = cells.keys()  # of a row of SQLite, `in` would ask for its values
    entry = Entry.model_validate(
        {name: cells[name] if name in there else None for name in Entry.model_fields}, context=damage
    )
    wrong = damage.columns
    if entry.worker is not None and entry.state not in AT_WORK:
        wrong.append("worker")
        entry = entry.but(worker=None, pid=None)
    if not wrong:
        return entry
    if "id" in wrong:
        entry = entry.but(id=f"number-{entry.number}")
    if not {"id", "state", "sweep", *SETTINGS}.isdisjoint(wrong):
        entry = entry.but(state=DAMAGED, worker=None, pid=None)
    said = f"Its entry in the book of runs is damaged ({', '.join(wrong)}). {damage.why}".rstrip()
    return entry.but(message=f"{entry.message} {said}".lstrip())
