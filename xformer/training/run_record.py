"""One run of the run store: its settings, owner, state and progress.

A cell of the store may be damaged by a disk error or by manual edits. It is replaced with a default and named in the message
of its run, so one damaged cell does not hide the other runs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError
from xformer.presets import Preset

LARGEST = 2**53

LATEST = 9e9
"""The largest time in seconds that fits into 64-bit nanoseconds."""

SCORING = "scoring"
"""Key of the live figure that is a list: examples scored, examples in total, and seconds elapsed."""


M = TypeVar("M", bound=BaseModel)


def without_damage(kind: type[M], values: Any) -> tuple[M, list[str], str]:
    """Validate values, replacing invalid fields with their defaults.

    Returns the object, the names of the invalid fields, and the rule that an invalid configuration breaks ("" if none).
    Raises `ValidationError` if a field without a default is invalid.
    """
    try:
        return kind.model_validate(values), [], ""
    except ValidationError as error:
        if not isinstance(values, dict):
            raise
        found = error.errors()
    wrong = list(dict.fromkeys(str(one["loc"][0]) for one in found))
    causes = [one.get("ctx", {}).get("error") for one in found]
    rule = next((str(cause)[:300] for cause in causes if isinstance(cause, ConfigError)), "")
    return kind.model_validate({name: one for name, one in values.items() if name not in wrong}), wrong, rule


def from_json(value: Any) -> Any:
    """Parse a JSON cell; a value that is not a string is returned unchanged. Raises `ValueError`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_number(value: Any) -> bool:
    """Return whether a value is a float, or an integer that a float represents exactly."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def are_numbers(value: Any) -> bool:
    """Return whether a value is a list of such numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def _sweep(value: Any) -> Any:
    """Check the settings and ids of a sweep: {"settings": {"seed": [0, 1]}, "ids": ["1f3c5a70", "9b2d4e61"]}."""
    value = from_json(value)
    if value is None:
        return None
    settings, ids = (value.get(name) for name in ("settings", "ids")) if isinstance(value, dict) else (None, None)
    if (
        not (isinstance(settings, dict) and 1 <= len(settings) <= 2 and all(map(are_numbers, settings.values())))
        or not isinstance(ids, list)
        or not all(isinstance(one, str) and re.fullmatch("[0-9a-f]{8}", one) for one in ids)
        or len({*ids}) != math.prod(map(len, settings.values()))
    ):
        raise ValueError("a sweep has one or two settings with numeric values, and an id for each model")
    return value


def settings_of(kind: type[Config]) -> BeforeValidator:
    """Return a validator of a configuration that keeps it as plain JSON values."""

    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            if rule := _broken_rule(kind, value):
                raise ConfigError(rule)
            return from_json(value)
        if not isinstance(value, dict):
            raise ConfigError(f"{kind.__name__} must be a JSON object.")
        return value

    return BeforeValidator(read)


@lru_cache(maxsize=4096)
def _broken_rule(kind: type[Config], text: str) -> str:
    """Return why settings are invalid, or an empty string. Cached because the run store is read every second."""
    try:
        kind.from_json(from_json(text))
    except ConfigError as error:
        return str(error)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return f"{kind.__name__} holds an invalid value."
    return ""


def _one_line(value: str) -> str:
    if not value[:800].isprintable():
        raise ValueError("a line must be printable")
    return " ".join(value[:800].split())


def _numbers_of(value: dict[str, Any]) -> dict[str, Any]:
    """Keep the numbers of an object, its list `SCORING`, and the numbers of its edge cases.

    For example {"loss": 0.1, "scoring": [10, 20, 0.5], "edge_cases": {"exact_match": 0.2, "samples": 5}}.
    """
    kept = {name: one for name, one in value.items() if is_number(one) or (name == SCORING and are_numbers(one))}
    edges = value.get("edge_cases")
    if isinstance(edges, dict) and all(is_number(edges.get(name)) for name in ("exact_match", "samples")):
        kept["edge_cases"] = {name: one for name, one in edges.items() if is_number(one)}
    return kept


def _tags(value: Any) -> tuple[str, ...]:
    found = from_json(value)
    if not isinstance(found, list | tuple) or not all(isinstance(tag, str) and tag.isprintable() for tag in found):
        raise ValueError("tags must be a list of printable strings")
    return tuple(tag[:80] for tag in found[:12])


NUMBERED = re.compile(r"number-(\d{1,18})", re.ASCII)
"""Substitute id of a run whose id is damaged."""

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\z")]
"""An id is also a folder name, so it must not lead out of the folder of runs."""

Text = Annotated[str, AfterValidator(lambda value: value[:10_000])]

Line = Annotated[str, AfterValidator(_one_line)]

Whole = Annotated[int, Field(ge=0, le=LARGEST)]

Number = Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]

Tags = Annotated[tuple[str, ...], BeforeValidator(_tags)]

Figures = Annotated[dict[str, Any], AfterValidator(_numbers_of), BeforeValidator(from_json)]

Sweep = Annotated[dict[str, Any] | None, BeforeValidator(_sweep)]

MOVES = {
    "queued": ("running", "stopped"),
    "running": ("paused", "queued", "stopped", "finished", "failed", "interrupted"),
    "paused": ("running", "queued", "stopped", "finished", "failed", "interrupted"),
    "stopped": ("queued",),
    "interrupted": ("queued",),
    "failed": ("queued",),
    "finished": (),
}
"""The allowed state transitions."""
RESUMABLE = tuple(state for state, moves in MOVES.items() if "queued" in moves)
AT_WORK = ("running", "paused")
"""The states in which a run can have a process."""
DAMAGED = "damaged"
"""The state of a run whose settings cannot be read."""
ELSEWHERE = "elsewhere"
"""The device of a run that another program trains. The app can show and stop it; only that program can resume it."""
EXTERNAL = "external"
"""The preset name of a run recorded by `AttentionHealth`. The only known training setting is the number of steps."""
NO_TASK = TaskConfig(
    name="characters", architecture="decoder", symbols=2, alphabet="ab", text="python", min_len=2, max_len=2
)
"""Placeholder for the task of such a run, which is not one of xformer's tasks."""
SETTINGS: dict[str, type[Config]] = {"model": ModelConfig, "task": TaskConfig, "train": TrainConfig}


class RunRecord(BaseModel, frozen=True, strict=True, extra="ignore"):
    """One run. Its configurations are plain JSON values. Cells that cannot be read have their default."""

    number: Whole = 0
    id: Id = ""
    name: Line = "?"
    owner: Text = ""
    tags: Tags = ()
    preset: Line = ""
    title: Line = ""
    about: Text = ""
    model: Annotated[dict[str, Any], settings_of(ModelConfig)] = {}
    task: Annotated[dict[str, Any], settings_of(TaskConfig)] = {}
    train: Annotated[dict[str, Any], settings_of(TrainConfig)] = {}
    wanted: Line = "auto"
    parent: Line | None = None
    state: Annotated[str, Field(pattern=rf"^(?:{'|'.join((*MOVES, DAMAGED))})\z")] = DAMAGED
    device: Line | None = None
    turn: Whole = 0
    worker: Text | None = None
    pid: Whole | None = None
    step: Whole = 0
    seconds: Number = 0.0
    live: Figures = {}
    """Figures of the latest step: loss, gradient_norm, learning_rate, steps_per_second, tokens_per_second."""
    message: Text = ""
    figures: Figures = {}
    """The score on unseen examples after training."""
    created: Number = 0.0
    deleted: Number | None = 0.0
    """Unix time at which the run was deleted; None if it was not."""
    private: Annotated[int, Field(ge=0, le=1)] = 1
    """1 if only the owner can see the run."""
    sweep: Sweep = None
    """For a sweep, the swept settings and the ids of its models; see `sweeps`."""
    unreported_starts: Whole = 0
    """The number of workers started since the last report."""
    node: Line | None = None
    """The Ray node that trains or trained the run; empty until one is assigned; None for this machine."""

    @property
    def is_active(self) -> bool:
        """Whether a process has the run."""
        return self.worker is not None

    @property
    def sweep_of(self) -> str:
        """The id of the sweep that the run was a model of, or an empty string."""
        return (self.parent or "").partition("/")[0] if "/" in (self.parent or "") else ""

    def settings(self) -> Preset:
        """Return the settings as a preset. Raises `ConfigError` if they are damaged."""
        model, task = ModelConfig.from_json(self.model), TaskConfig.from_json(self.task)
        return Preset(self.preset, self.title, self.about, model, task, TrainConfig.from_json(self.train))

    def _repr_html_(self) -> str:
        """Show the settings, progress and scores in a notebook."""
        from xformer import notebook_html  # only here: it needs numpy

        steps = self.train.get("steps")
        rows = [
            ("run", self.id),
            ("state", self.state),
            ("step", f"{self.step:,} of {steps:,}" if isinstance(steps, int) else f"{self.step:,}"),
            *((name, getattr(self, name)) for name in ("preset", "device", "parent")),
            ("seconds", f"{self.seconds:.1f}"),
            *notebook_html.scores(self.figures, "exact_match", "loss"),
        ]
        texts = [notebook_html.text(line) for line in (self.about, self.message) if line]
        return notebook_html.card(self.name, *texts, notebook_html.facts(rows))

    def but(self, **values: Any) -> RunRecord:
        """Return a copy with some fields replaced."""
        return self.model_copy(update=values)


def entry_from(cells: Mapping[str, Any]) -> RunRecord:
    """Return the run of a row. Its message ends with the names of damaged cells."""
    columns = cells.keys()  # `in` on an SQLite row searches its values
    values = {name: cells[name] if name in columns else None for name in RunRecord.model_fields}
    entry, wrong, rule = without_damage(RunRecord, values)
    if entry.worker is not None and entry.state not in AT_WORK:
        wrong.append("worker")
        entry = entry.but(worker=None, pid=None)
    if not wrong:
        return entry
    if "id" in wrong:
        entry = entry.but(id=f"number-{entry.number}")
    if not {"id", "state", "sweep", *SETTINGS}.isdisjoint(wrong):
        entry = entry.but(state=DAMAGED, worker=None, pid=None)
    message = f"Its entry in the run store is damaged ({', '.join(wrong)}). {rule}".rstrip()
    return entry.but(message=f"{entry.message} {message}".lstrip())


FIGURES = ("step", "steps", "loss", "learning_rate", "gradient_norm", "seconds", "tokens_per_second", "best_head_score",
           "held_out_loss", "held_out_token_accuracy", "held_out_exact_match", "held_out_samples")  # fmt: skip
"""The columns of a row of metrics that must be numbers."""


def metrics_row(step: Any, text: Any) -> dict[str, Any] | None:
    """Parse a row of metrics and drop its damaged values. Returns None if it is not a row of that step."""
    try:
        row = from_json(text)
    except ValueError:
        return None
    if type(step) is not int or not 0 <= step <= LARGEST or not isinstance(row, dict) or row.get("step") != step:
        return None
    kept = {name: value for name, value in row.items() if name not in FIGURES or value is None or is_number(value)}
    scores = kept.get("scores", {})
    if not isinstance(scores, dict) or not all(map(are_numbers, scores.values())):
        del kept["scores"]
    if not isinstance(kept.get("note", ""), str):
        del kept["note"]
    return kept
