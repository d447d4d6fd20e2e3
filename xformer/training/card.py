"""The card of a file from anyone: what it says about the training, believed only where kind, size and order are right.

The weights are checked by `xformer.checkpoints`. A card is words and numbers that anybody can have typed, and both end up on
a screen; what is wrong in it is left out, and `ImportedCard.left_out` says so in one sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from xformer.config import TrainConfig
from xformer.config.base import limits
from xformer.errors import CheckpointError, ConfigError
from xformer.files import MAX_HEADER, guarded, parse_header, strict_json
from xformer.paths import FILE, STATE
from xformer.training.entry import Damage, Entry, or_else

MAX_STEPS = 10_000_000
MAX_ROWS = 2_000
MAX_SCORES = 4_096
"""Heads of one row that can have a score."""


def one_line(text: Any, most: int) -> str:
    """Text of at most so many characters on one line, without anything that cannot be printed; empty for what is no text."""
    if not isinstance(text, str):
        return ""
    text = text[: 4 * most].encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:most]


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
    """A part of a card, or nothing: what is unknown in it is left out, and what may be missing where it cannot be."""

    @classmethod
    def of(cls, told: Any) -> dict[str, Any]:
        """What of it is there, empty where a part of it that must be is not."""
        try:
            return cls.model_validate(told, context=Damage()).model_dump(exclude_none=True)
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
    best_head_score: Annotated[Share | None, or_else(None)] = None
    scores: Annotated[Annotated[dict[Site, list[Share]], AfterValidator(_few)] | None, or_else(None)] = None
    """Of every head: {"encoder.0.attn": [0.1, …]}."""
    note: Note = ""
    done: Annotated[bool, or_else(False)] = False


class EdgeCases(Part, frozen=True):
    """What a model scored on the edge cases of its task."""

    loss: Size
    token_accuracy: Share
    exact_match: Share
    samples: Size


class Figures(EdgeCases, frozen=True):
    """The figures of a finished run."""

    seed: Size
    edge_cases: Annotated[EdgeCases | None, or_else(None)] = None


class Score(Part, frozen=True):
    """What a screen says of a score, and what it may say besides."""

    loss: Size
    exact_match: Share
    samples: Size
    token_accuracy: Annotated[Share | None, or_else(None)] = None
    seed: Annotated[Annotated[int | float, Field(ge=0, le=2**63)] | None, or_else(None)] = None
    edge_cases: Annotated[Score | None, or_else(None)] = None
    at: Annotated[str | None, or_else(None)] = None


class Words(Part, frozen=True):
    """What a card says by itself, whatever else stands in it."""

    name: Name = ""
    title: Name = ""
    about: Story = ""
    preset: Name = ""
    step: Annotated[int, Field(ge=0, le=MAX_STEPS), or_else(0)] = 0
    seconds: Annotated[float, Field(ge=0, le=1e9), or_else(0.0)] = 0.0
    device: Annotated[Literal["cpu", "cuda"] | None, or_else(None)] = None


class ImportedCard(Words, frozen=True):
    """How a model was trained, as far as its card can be believed."""

    train: TrainConfig
    figures: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: str
    """What could not be believed, as one sentence; empty when everything could."""
    has_recipe: bool
    """Whether the training settings are those of the card."""


def read_card(card: dict[str, Any]) -> ImportedCard:
    """The checked contents of a card."""
    problems, has_recipe = [], True
    words = Words.model_validate(card, context=Damage())
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
    told: dict[str, Any] = words.model_dump()
    told["name"] = words.name or words.title
    return ImportedCard.model_construct(
        **told,
        train=train,
        figures=Figures.of(card.get("figures")),
        rows=rows,
        left_out=f"Left out of the imported file: {' and '.join(problems)}." if problems else "",
        has_recipe=has_recipe,
    )


def believed(card: dict[str, Any]) -> dict[str, Any]:
    """What a screen may say of a model from its card: only what is of the right kind and size, and nothing made up."""
    read = read_card({name: value for name, value in card.items() if name != "curve"})
    kept = read.model_dump(include=set(Words.model_fields)) | {"device": read.device or "cpu"}
    if read.has_recipe:
        kept |= {"train": read.train.to_json(), "seed": read.train.seed}
        if type(card.get("seed")) is int:
            kept["seed"] = card["seed"]
    scores = {name: Score.of(card.get(name)) for name in ("figures", "reported")}
    return kept | {name: score for name, score in scores.items() if score}


def checked_rows(curve: Any, last: int) -> list[dict[str, Any]]:
    """The rows of a curve that goes up to the step `last`, with nothing in them but what is known.

    Raises `CheckpointError` with one sentence at the first that is not as it must be.
    """
    if not isinstance(curve, list) or len(curve) > MAX_ROWS:
        raise CheckpointError(f"a curve is a list of at most {MAX_ROWS:,} rows.")
    rows: list[dict[str, Any]] = []
    for number, told in enumerate(curve, start=1):
        if not isinstance(told, dict):
            raise CheckpointError(f"row {number} is not a JSON object.")
        before = rows[-1]["step"] if rows else 0
        rules = {
            "step": f"the step of row {number} must be after {before} and up to {last}.",
            "steps": f"the number of steps in row {number} is none.",
        }
        try:
            row = Row.model_validate(told, context=Damage())
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            rule = f"{name} in row {number} must be a number {limits(Row.model_fields[name])}."
            raise CheckpointError(rules.get(name, rule)) from None
        if not before < row.step <= last:
            raise CheckpointError(rules["step"])
        rows.append(row.model_dump(exclude_none=True))
    return rows


def card_of(entry: Entry, rows: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """What the run store knows of a run up to a step, as the card of a file; the curve thinned until it fits."""
    rows = [row for row in rows if row["step"] <= step]
    latest = rows[-1] if rows else {}
    return {
        "name": entry.name,
        "preset": entry.preset,
        "title": entry.title,
        "about": entry.about,
        "seed": entry.train.get("seed"),
        "step": step,
        "train": entry.train,
        "device": (entry.device or "cpu").partition(":")[0],
        "seconds": round(entry.seconds if step == entry.step else latest.get("seconds", 0.0), 2),
        "curve": fitting(rows),
        **({"figures": entry.figures} if entry.figures and step == entry.step else {}),
    }


ROWS = 500
"""The most rows: more than a screen has pixels for."""

SHARE = 0.7
"""How much of a header a curve may take."""


def fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each so-manieth row, counted from the last, which is always among them."""
    every = max(1, -(-len(rows) // ROWS))
    # A card is text within the text of a header, in which each quotation mark takes a character more.
    while len(rows) > every and len(json.dumps(json.dumps(rows[::-every]))) > SHARE * MAX_HEADER:
        every *= 2
    return rows[::-every][::-1]


MAX_STATE_HEADER = 100_000_000
"""What safetensors itself reads: the metrics of a long run take more than a stranger's header may."""

MAX_BYTES = 2**40


def read_metadata(folder: Path) -> dict[str, Any]:
    """The card of the model in a folder, or the values of the state that it was interrupted in.

    Raises `CheckpointError` with one plain sentence where the file is not whole.
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
