"""The card of a checkpoint: how the model was trained, and how well it does. Runs are exported and imported with their card.

    content = to_file(store, run)                        # weights, settings, curve and figures as one safetensors file
    imported = from_file(store, content, owner="me")     # a finished run with the tag “imported”

A card from an imported file is untrusted. Values of a wrong type, size or order are left out, and `ImportedCard.left_out`
names them in one sentence. The weights are checked by `xformer.checkpoints`.
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
from xformer.disk_quota import Room
from xformer.errors import CheckpointError, ConfigError, RunStoreError
from xformer.files import FILE, MAX_HEADER, STATE, guarded, parse_header, snapshot_file, snapshot_steps, strict_json
from xformer.presets import Preset
from xformer.training.entry import Entry, without_damage
from xformer.training.limits import Limits, promised
from xformer.training.run_store import RunStore, new_id, one_line

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint

MAX_STEPS = 10_000_000
MAX_ROWS = 2_000
MAX_SCORES = 4_096
"""The most heads with a score in one row."""


def _few(scores: dict[str, list[float]]) -> dict[str, list[float]]:
    if len(scores) + sum(map(len, scores.values())) > MAX_SCORES:
        raise ValueError("there are too many heads")
    return scores


Share = Annotated[int | float, Field(ge=0, le=1)]
Size = Annotated[int | float, Field(ge=0, le=1e30)]
Site = Annotated[str, BeforeValidator(lambda text: one_line(text, 60))]
Name = Annotated[str, BeforeValidator(lambda text: one_line(text, 80))]
Note = Annotated[str, BeforeValidator(lambda text: one_line(text, 300))]
Story = Annotated[str, BeforeValidator(lambda text: one_line(text, 400))]


class Part(BaseModel, frozen=True, strict=True, extra="ignore"):
    """A part of a card. Unknown and damaged optional fields are left out."""

    @classmethod
    def of(cls, values: Any) -> dict[str, Any]:
        """Return the valid fields, or an empty dictionary when a required field is missing or damaged."""
        try:
            return without_damage(cls, values)[0].model_dump(exclude_none=True)
        except ValidationError:
            return {}


class Row(Part, frozen=True):
    """A row of a curve."""

    step: int
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    loss: Size
    held_out_loss: Size
    held_out_token_accuracy: Share
    held_out_exact_match: Share
    held_out_samples: Size
    learning_rate: Size
    gradient_norm: Size
    seconds: Size
    tokens_per_second: Size
    best_head_score: Share | None = None
    scores: Annotated[dict[Site, list[Share]], AfterValidator(_few)] | None = None
    """The score of each head, as {"encoder.0.attn": [0.1, …]}."""
    note: Note = ""
    done: bool = False


class Score(Part, frozen=True):
    """The score of a finished run."""

    loss: Size
    exact_match: Share
    samples: Size
    token_accuracy: Share | None = None
    seed: Annotated[int | float, Field(ge=0, le=2**63)] | None = None
    edge_cases: Annotated[Score | None, BeforeValidator(lambda values: Score.of(values) or None)] = None
    at: str | None = None


class Words(Part, frozen=True):
    """The simple fields of a card."""

    name: Name = ""
    title: Name = ""
    about: Story = ""
    preset: Name = ""
    step: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    seconds: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    device: Literal["cpu", "cuda"] | None = None


class ImportedCard(Words, frozen=True):
    """The valid content of an imported card."""

    train: TrainConfig
    figures: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: str
    """The fields that are not valid, as one sentence; empty when all are."""
    has_recipe: bool
    """Whether the card has valid training settings."""


def read_card(card: dict[str, Any]) -> ImportedCard:
    """Check a card and return its valid content."""
    problems, has_recipe = [], True
    words = without_damage(Words, card)[0]
    try:
        train = TrainConfig.from_json(card["train"])
    except (ConfigError, KeyError) as error:
        train, has_recipe = TrainConfig(steps=max(1, words.step)), False
        if not isinstance(error, KeyError):
            problems.append(f"its training settings ({one_line(str(error), 160).rstrip('.')})")
    try:
        rows = checked_rows(card.get("curve", []), words.step)
    except CheckpointError as error:
        rows = []
        problems.append(f"its curve ({str(error).rstrip('.')})")
    values: dict[str, Any] = words.model_dump()
    values["name"] = words.name or words.title
    return ImportedCard.model_construct(
        **values,
        train=train,
        figures=Score.of(card.get("figures")),
        rows=rows,
        left_out=f"Left out of the imported file: {' and '.join(problems)}." if problems else "",
        has_recipe=has_recipe,
    )


def believed(card: dict[str, Any]) -> dict[str, Any]:
    """Return the valid fields of a card for a screen."""
    read = read_card({name: value for name, value in card.items() if name != "curve"})
    kept = read.model_dump(include=set(Words.model_fields)) | {"device": read.device or "cpu"}
    if read.has_recipe:
        kept |= {"train": read.train.to_json(), "seed": read.train.seed}
        if type(card.get("seed")) is int:
            kept["seed"] = card["seed"]
    scores = {name: Score.of(card.get(name)) for name in ("figures", "reported")}
    return kept | {name: score for name, score in scores.items() if score}


def checked_rows(curve: Any, last: int) -> list[dict[str, Any]]:
    """Return the rows of a curve up to the step `last`, with their known fields.

    Raises `CheckpointError` for the first row that is not valid.
    """
    if not isinstance(curve, list) or len(curve) > MAX_ROWS:
        raise CheckpointError(f"a curve is a list of at most {MAX_ROWS:,} rows.")
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
    """Return where and why values are not valid: " at train.steps: Input should be a valid integer"."""
    first = error.errors()[0]
    place = " at " + ".".join(map(str, first["loc"])) if first["loc"] else ""
    return f"{place}: {first['msg']:.200}"


def card_of(entry: Entry, rows: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """Return the card of a run of the run store up to a step, with a curve that fits into a file."""
    rows = [row for row in rows if row["step"] <= step]
    latest = rows[-1] if rows else {}
    is_last = step == entry.step
    card = {"name": entry.name, "preset": entry.preset, "title": entry.title, "about": entry.about}
    card |= {"seed": entry.train.get("seed"), "step": step, "train": entry.train}
    card |= {"device": (entry.device or "cpu").partition(":")[0]}
    card |= {"seconds": round(entry.seconds if is_last else latest.get("seconds", 0.0), 2), "curve": fitting(rows)}
    return card | ({"figures": entry.figures} if entry.figures and is_last else {})


ROWS = 500
"""The most rows of a curve in a card."""

SHARE = 0.7
"""The share of a file's header that a curve may take."""


def fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thin a curve evenly until it fits into the header of a file. The last row is always kept."""
    every = max(1, -(-len(rows) // ROWS))
    # A card is JSON inside JSON, where each quotation mark takes one more character.
    while len(rows) > every and len(json.dumps(json.dumps(rows[::-every]))) > SHARE * MAX_HEADER:
        every *= 2
    return rows[::-every][::-1]


MAX_STATE_HEADER = 100_000_000
"""The limit of safetensors itself: the metrics of a long run exceed the limit for imported files."""

MAX_BYTES = 2**40


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the card of the model in a folder, or the values of the saved state of an interrupted run.

    Neither torch nor the weights are loaded. Raises `CheckpointError` when the file is damaged.
    """
    if (folder / STATE).exists():
        return _said(folder / STATE, "state", MAX_STATE_HEADER)
    return _said(folder / FILE, "card", MAX_HEADER)


def _said(path: Path, key: str, most: int) -> dict[str, Any]:
    with guarded(path, MAX_BYTES, CheckpointError) as (file, size):
        length = file.read(8)
        start = length + file.read(min(most, int.from_bytes(length, "little")))
    value = strict_json(parse_header(start, most, size=size).metadata.get(key, "{}"), key)
    if not isinstance(value, dict):
        raise CheckpointError(f"The file's {key} must be a JSON object.")
    return value


TAG = "imported"


@dataclass(frozen=True)
class ImportResult:
    """The step of a run that a file was imported as. `is_new` is False when the store had the weights before."""

    run: str
    name: str
    step: int
    is_new: bool


def to_file(store: RunStore, run: str, step: int | None = None) -> bytes:
    """Return a run at a step, by default the last, as a file that `from_file` and `xformer.load` read.

    Raises `RunStoreError` or `CheckpointError` when there are no weights of that step.
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
    sees: Callable[[Entry], bool] = lambda entry: True,
) -> ImportResult:
    """Import an untrusted file as a finished run with the weights of one step.

    Weights that are in the store already, in a run that the owner `sees`, are not imported again. Raises `CheckpointError` or
    `RunStoreError` when the file is refused; then nothing is kept.
    """
    from xformer.checkpoints import Checkpoint, from_bytes, save, to_bytes

    checkpoint = from_bytes(content)
    if checkpoint.task is None:
        raise CheckpointError("The file names no task, so no screen would know what to let its model read.")
    n, card = n_parameters(checkpoint.config), read_card(checkpoint.card)
    limits = limits or Limits()
    if n > limits.parameters:
        raise RunStoreError(
            f"The model in the file has {n:,} parameters, and this server allows {limits.parameters:,}."
        )
    clean = Checkpoint(checkpoint.model, checkpoint.task)
    weights = to_bytes(clean)
    if (there := _same(filter(sees, store.entries()), store, clean, weights, card.step)) is not None:
        return there
    Room(store.folder, limits.disk).check(
        2 * len(content), "This model", promised=promised(store.entries(), store.folder)
    )
    run, name = new_id(), card.name or one_line(Path(file_name).stem, 80) or "imported"
    folder = store.folder_of(run)
    kept = card.model_dump(include={"preset", "title", "about", "step", "seconds"})
    kept |= {"name": name, "seed": card.train.seed, "train": card.train.to_json(), "device": card.device or "cpu"}
    kept |= {"curve": fitting(card.rows)} | ({"figures": card.figures} if card.figures else {})
    columns = {"tags": json.dumps([TAG]), "message": card.left_out, "device": card.device}
    columns |= {"step": card.step, "seconds": card.seconds}
    settings = Preset(card.preset, card.title or name, card.about, clean.config, checkpoint.task.config, card.train)
    with store.making(run):  # the files and rows first, so that an entry never lacks them
        save(clean, snapshot_file(folder, card.step))
        save(Checkpoint(clean.model, clean.task, kept), folder)
        store.put_rows(run, card.rows)
        how: dict[str, Any] = {"owner": owner, "name": name, "figures": card.figures, "private": private}
        store.add(settings, state="finished", run=run, columns=columns, **how)
    return ImportResult(run, name, card.step, is_new=True)


def _same(
    entries: Iterable[Entry], store: RunStore, checkpoint: Checkpoint, weights: bytes, step: int
) -> ImportResult | None:
    """Return the run among `entries` with equal weights at this step, or None."""
    assert checkpoint.task is not None
    settings = checkpoint.config.to_json(), checkpoint.task.config.to_json()
    for entry in entries:
        file = snapshot_file(store.folder_of(entry.id), step)
        with suppress(OSError):  # no such file, or it is being removed
            same_shape = (entry.model, entry.task) == settings and file.stat().st_size == len(weights)
            if same_shape and _numbers(file.read_bytes()) == _numbers(weights):
                return ImportResult(entry.id, entry.name, step, is_new=False)
    return None


def _numbers(file: bytes) -> bytes:
    """Return the tensors of a safetensors file as bytes. The order of metadata in its header varies."""
    return file[8 + int.from_bytes(file[:8], "little") :]
