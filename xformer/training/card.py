"""The card of a checkpoint: how the model was trained and how well it performs. Exported and imported runs carry their card.

    content = to_file(store, run)                        # weights, settings, curve and scores as one safetensors file
    imported = from_file(store, content, owner="me")     # a finished run with the tag “imported”

The card of an imported file is untrusted. Values of the wrong type, size or order are dropped, and `ImportedCard.left_out`
names them in one sentence. `xformer.checkpoints` checks the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from xformer.config import TrainConfig
from xformer.counting import n_parameters
from xformer.errors import CheckpointError, ConfigError, RunStoreError
from xformer.files import FILE, MAX_HEADER, STATE, guarded, parse_header, snapshot_file, snapshot_steps, strict_json
from xformer.presets import Preset
from xformer.training.limits import Limits
from xformer.training.run_record import RunRecord, without_damage
from xformer.training.run_store import RunStore, new_id, one_line

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint

MAX_STEPS = 10_000_000
MAX_ROWS = 2_000
MAX_SCORES = 4_096
"""Largest number of head scores in one row, including one per layer."""


def _few(scores: dict[str, list[float]]) -> dict[str, list[float]]:
    if len(scores) + sum(map(len, scores.values())) > MAX_SCORES:
        raise ValueError("there are too many heads")
    return scores


Fraction = Annotated[int | float, Field(ge=0, le=1)]
NonNegative = Annotated[int | float, Field(ge=0, le=1e30)]
LayerPath = Annotated[str, BeforeValidator(lambda text: one_line(text, 60))]
Name = Annotated[str, BeforeValidator(lambda text: one_line(text, 80))]
Note = Annotated[str, BeforeValidator(lambda text: one_line(text, 300))]
About = Annotated[str, BeforeValidator(lambda text: one_line(text, 400))]


class CardPart(BaseModel, frozen=True, strict=True, extra="ignore"):
    """A part of a card. Unknown fields and invalid optional fields are dropped."""

    @classmethod
    def of(cls, values: Any) -> dict[str, Any]:
        """Return the valid fields, or an empty dictionary if a required field is missing or invalid."""
        try:
            return without_damage(cls, values)[0].model_dump(exclude_none=True)
        except ValidationError:
            return {}


class Row(CardPart, frozen=True):
    """A row of a curve."""

    step: int
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    loss: NonNegative
    held_out_loss: NonNegative
    held_out_token_accuracy: Fraction
    held_out_exact_match: Fraction
    held_out_samples: NonNegative
    learning_rate: NonNegative
    gradient_norm: NonNegative
    seconds: NonNegative
    tokens_per_second: NonNegative
    best_head_score: Fraction | None = None
    scores: Annotated[dict[LayerPath, list[Fraction]], AfterValidator(_few)] | None = None
    """The score of each head by the path of its layer: {"encoder.0.attn": [0.1, …]}."""
    note: Note = ""
    done: bool = False


class CardScore(CardPart, frozen=True):
    """The score of a finished run."""

    loss: NonNegative
    exact_match: Fraction
    samples: NonNegative
    token_accuracy: Fraction | None = None
    seed: Annotated[int | float, Field(ge=0, le=2**63)] | None = None
    edge_cases: Annotated[CardScore | None, BeforeValidator(lambda values: CardScore.of(values) or None)] = None
    at: str | None = None


class ScalarFields(CardPart, frozen=True):
    """The scalar fields of a card."""

    name: Name = ""
    title: Name = ""
    about: About = ""
    preset: Name = ""
    step: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    device: Literal["cpu", "cuda"] | None = None


class ImportedCard(ScalarFields, frozen=True):
    """The valid content of an imported card."""

    train: TrainConfig
    figures: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: str
    """One sentence that names the invalid fields; empty if all fields are valid."""
    has_recipe: bool
    """Whether the card has valid training settings."""


def read_card(card: dict[str, Any]) -> ImportedCard:
    """Check a card and return its valid content."""
    problems, has_recipe = [], True
    fields = without_damage(ScalarFields, card)[0]
    try:
        train = TrainConfig.from_json(card["train"])
    except (ConfigError, KeyError) as error:
        train, has_recipe = TrainConfig(steps=max(1, fields.step)), False
        if not isinstance(error, KeyError):
            problems.append(f"its training settings ({one_line(str(error), 160).rstrip('.')})")
    try:
        rows = checked_rows(card.get("curve", []), fields.step)
    except CheckpointError as error:
        rows = []
        problems.append(f"its curve ({str(error).rstrip('.')})")
    values: dict[str, Any] = fields.model_dump()
    values["name"] = fields.name or fields.title
    return ImportedCard.model_construct(
        **values,
        train=train,
        figures=CardScore.of(card.get("figures")),
        rows=rows,
        left_out=f"Left out of the imported file: {' and '.join(problems)}." if problems else "",
        has_recipe=has_recipe,
    )


def valid_fields(card: dict[str, Any]) -> dict[str, Any]:
    """Return the valid fields of a card for display, without the curve."""
    read = read_card({name: value for name, value in card.items() if name != "curve"})
    kept = read.model_dump(include=set(ScalarFields.model_fields)) | {"device": read.device or "cpu"}
    if read.has_recipe:
        kept |= {"train": read.train.to_json(), "seed": read.train.seed}
        if type(card.get("seed")) is int:
            kept["seed"] = card["seed"]
    scores = {name: CardScore.of(card.get(name)) for name in ("figures", "reported")}
    return kept | {name: score for name, score in scores.items() if score}


def checked_rows(curve: Any, last: int) -> list[dict[str, Any]]:
    """Return the rows of a curve with their known fields only.

    Raises `CheckpointError` for the first invalid row. Steps must increase and must not exceed `last`.
    """
    if not isinstance(curve, list) or len(curve) > MAX_ROWS:
        raise CheckpointError(f"a curve must be a list of at most {MAX_ROWS:,} rows.")
    rows: list[dict[str, Any]] = []
    for number, values in enumerate(curve, start=1):
        try:
            row = without_damage(Row, values)[0]
        except ValidationError as error:
            raise CheckpointError(f"row {number} is not valid{first_problem(error)}.") from None
        before = rows[-1]["step"] if rows else 0
        if not before < row.step <= last:
            raise CheckpointError(f"the step of row {number} must be after {before} and up to {last}, got {row.step}.")
        rows.append(row.model_dump(exclude_none=True))
    return rows


def first_problem(error: ValidationError) -> str:
    """Return the location and reason of the first error: " at train.steps: Input should be a valid integer"."""
    first = error.errors()[0]
    place = " at " + ".".join(map(str, first["loc"])) if first["loc"] else ""
    return f"{place}: {first['msg']:.200}"


def card_of(entry: RunRecord, rows: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """Return the card of a stored run up to a step, with its curve thinned to fit into a file."""
    rows = [row for row in rows if row["step"] <= step]
    latest = rows[-1] if rows else {}
    is_last = step == entry.step
    card = {"name": entry.name, "preset": entry.preset, "title": entry.title, "about": entry.about}
    card |= {"seed": entry.train.get("seed"), "step": step, "train": entry.train}
    card |= {"device": (entry.device or "cpu").partition(":")[0]}
    card |= {"seconds": round(entry.seconds if is_last else latest.get("seconds", 0.0), 2), "curve": fitting(rows)}
    return card | ({"figures": entry.figures} if entry.figures and is_last else {})


ROWS = 500
"""Largest number of rows of a curve in a card."""

SHARE = 0.7
"""Largest fraction of a file's header that the curve may take."""


def fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thin a curve evenly until it fits into the header of a file, always keeping the last row."""
    every = max(1, -(-len(rows) // ROWS))
    # The card is JSON inside JSON, so each quotation mark is escaped with an extra character.
    while len(rows) > every and len(json.dumps(json.dumps(rows[::-every]))) > SHARE * MAX_HEADER:
        every *= 2
    return rows[::-every][::-1]


MAX_STATE_HEADER = 100_000_000
"""safetensors' own limit. The metrics of a long run can exceed `MAX_HEADER`, the limit for imported files."""

MAX_BYTES = 2**40


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the card of the model in a folder or, for an interrupted run, the values of its saved state.

    Loads neither torch nor the weights. Raises `CheckpointError` if the file is damaged.
    """
    is_unfinished = (folder / STATE).exists()
    file_name, key, most = (STATE, "state", MAX_STATE_HEADER) if is_unfinished else (FILE, "card", MAX_HEADER)
    with guarded(folder / file_name, MAX_BYTES, CheckpointError) as (file, size):
        length = file.read(8)
        start = length + file.read(min(most, int.from_bytes(length, "little")))
    value = strict_json(parse_header(start, most, size=size).metadata.get(key, "{}"), key)
    if not isinstance(value, dict):
        raise CheckpointError(f"The file's {key} must be a JSON object.")
    return value


TAG = "imported"


@dataclass(frozen=True)
class ImportResult:
    """The run and step that a file was imported as. `is_new` is False if the store already had these weights."""

    run: str
    name: str
    step: int
    is_new: bool


def to_file(store: RunStore, run: str, step: int | None = None) -> bytes:
    """Return a run at a step (default: the last) as the content of a file that `from_file` and `xformer.load` read.

    Raises `RunStoreError` or `CheckpointError` if there are no weights of that step.
    """
    from xformer.checkpoints import load, to_bytes

    entry, folder = store.entry(run), store.folder_of(run)
    steps = snapshot_steps(folder)
    if step is None:
        step = steps[-1] if steps else entry.step
    file = snapshot_file(folder, step)
    if not file.exists():
        file = folder / FILE
        if step != entry.step or not file.exists():
            raise RunStoreError(f"The run “{entry.name}” has no weights of step {step:,} yet.")
    return to_bytes(replace(load(file), card=card_of(entry, store.rows(run), step)))


def from_file(
    store: RunStore,
    content: bytes,
    *,
    owner: str,
    file_name: str = "",
    limits: Limits | None = None,
    private: bool = False,
    sees: Callable[[RunRecord], bool] = lambda entry: True,
) -> ImportResult:
    """Import an untrusted file as a finished run with the weights of one step.

    If the store already has these weights in a run that the owner can see (`sees`), that run is returned instead. Raises
    `CheckpointError` or `RunStoreError` if the file is rejected; nothing is stored then.
    """
    from xformer.checkpoints import Checkpoint, from_bytes, save, to_bytes

    checkpoint = from_bytes(content)
    if checkpoint.task is None:
        raise CheckpointError("The file names no task, so the app cannot tell what input its model reads.")
    n, card = n_parameters(checkpoint.config), read_card(checkpoint.card)
    limits = limits or Limits()
    if n > limits.parameters:
        raise RunStoreError(f"The file's model has {n:,} parameters, and this server allows {limits.parameters:,}.")
    clean = Checkpoint(checkpoint.model, checkpoint.task)
    if (existing := _existing(filter(sees, store.entries()), store, clean, to_bytes(clean), card.step)) is not None:
        return existing
    limits.check_disk(2 * len(content), "This model", store.entries(), store.folder)
    run, name = new_id(), card.name or one_line(Path(file_name).stem, 80) or "imported"
    folder = store.folder_of(run)
    kept = card.model_dump(include={"preset", "title", "about", "step", "seconds"})
    kept |= {"name": name, "seed": card.train.seed, "train": card.train.to_json(), "device": card.device or "cpu"}
    kept |= {"curve": fitting(card.rows)} | ({"figures": card.figures} if card.figures else {})
    columns = {"tags": json.dumps([TAG]), "message": card.left_out, "device": card.device}
    columns |= {"step": card.step, "seconds": card.seconds}
    settings = Preset(card.preset, card.title or name, card.about, clean.config, checkpoint.task.config, card.train)
    with store.removed_on_failure(run):  # write files and rows first, so that no entry exists without them
        save(clean, snapshot_file(folder, card.step))
        save(Checkpoint(clean.model, clean.task, kept), folder)
        store.put_rows(run, card.rows)
        how: dict[str, Any] = {"owner": owner, "name": name, "figures": card.figures, "private": private}
        store.add(settings, state="finished", run=run, columns=columns, **how)
    return ImportResult(run, name, card.step, is_new=True)


def _existing(
    entries: Iterable[RunRecord], store: RunStore, checkpoint: Checkpoint, weights: bytes, step: int
) -> ImportResult | None:
    """Return the run among `entries` with identical weights at this step, or None."""
    assert checkpoint.task is not None
    settings = checkpoint.config.to_json(), checkpoint.task.config.to_json()
    for entry in entries:
        file = snapshot_file(store.folder_of(entry.id), step)
        with suppress(OSError):  # the file does not exist or is being removed
            same_shape = (entry.model, entry.task) == settings and file.stat().st_size == len(weights)
            if same_shape and _numbers(file.read_bytes()) == _numbers(weights):
                return ImportResult(entry.id, entry.name, step, is_new=False)
    return None


def _numbers(file: bytes) -> bytes:
    """Return the tensor data of a safetensors file, without its header, in which the order of the metadata varies."""
    return file[8 + int.from_bytes(file[:8], "little") :]
