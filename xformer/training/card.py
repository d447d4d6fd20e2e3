"""The card of a file from anyone: what it says about the training, believed only where kind, size and order are right.

The weights are checked by `xformer.checkpoints`. A card is words and numbers that anybody can have typed, and both end up on
a screen; what is wrong in it is left out, and `ImportedCard.left_out` says so in one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xformer.config import TrainConfig
from xformer.errors import CheckpointError, ConfigError

MAX_STEPS = 10_000_000
MAX_ROWS = 2_000
MAX_SCORES = 4_096
"""Heads of one row that can have a score."""
SHARE, SIZE = (0.0, 1.0), (0.0, 1e30)
NUMBERS = {
    "loss": SIZE,
    "held_out_loss": SIZE,
    "held_out_token_accuracy": SHARE,
    "held_out_exact_match": SHARE,
    "held_out_samples": SIZE,
    "learning_rate": SIZE,
    "gradient_norm": SIZE,
    "seconds": SIZE,
    "tokens_per_second": SIZE,
}
"""What every row of a curve must have, and from where to where."""
EXTRAS = {"best_head_score": SHARE}
"""What it may have besides."""
FIGURES = {"loss": SIZE, "token_accuracy": SHARE, "exact_match": SHARE, "samples": SIZE, "seed": SIZE}
EDGES = ("loss", "token_accuracy", "exact_match", "samples")


@dataclass(frozen=True)
class ImportedCard:
    """How a model was trained, as far as its card can be believed."""

    name: str
    title: str
    about: str
    preset: str
    step: int
    seconds: float
    device: str | None
    train: TrainConfig
    figures: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: str
    """What could not be believed, as one sentence; empty when everything could."""
    has_recipe: bool = True
    """Whether the training settings are those of the card."""


def read_card(card: dict[str, Any]) -> ImportedCard:
    """The checked contents of a card."""
    problems, has_recipe = [], True
    step = _whole(card.get("step"), MAX_STEPS)
    title = one_line(card.get("title"), 80)
    try:
        train = TrainConfig.from_json(card["train"])
    except (ConfigError, KeyError) as error:
        train, has_recipe = TrainConfig(steps=max(1, step)), False
        if not isinstance(error, KeyError):
            problems.append(f"its training settings ({one_line(str(error), 160).rstrip('.')})")
    try:
        rows = checked_rows(card.get("curve", []), step)
    except CheckpointError as error:
        rows = []
        problems.append(f"its curve ({str(error).rstrip('.')})")
    return ImportedCard(
        name=one_line(card.get("name"), 80) or title,
        title=title,
        about=one_line(card.get("about"), 400),
        preset=one_line(card.get("preset"), 80),
        step=step,
        seconds=float(card["seconds"]) if _is_within(card.get("seconds"), (0.0, 1e9)) else 0.0,
        device=card["device"] if card.get("device") in ("cpu", "cuda") else None,
        train=train,
        figures=checked_figures(card.get("figures")),
        rows=rows,
        left_out=f"Left out of the imported file: {' and '.join(problems)}." if problems else "",
        has_recipe=has_recipe,
    )


def believed(card: dict[str, Any]) -> dict[str, Any]:
    """What a screen may say of a model from its card: only what is of the right kind and size, and nothing made up."""
    read = read_card(card)
    words = {name: getattr(read, name) for name in ("name", "title", "about", "preset")}
    kept = words | {"step": read.step, "seconds": read.seconds, "device": read.device or "cpu"}
    if read.has_recipe:
        kept |= {"train": read.train.to_json(), "seed": read.train.seed}
        if type(card.get("seed")) is int:
            kept["seed"] = card["seed"]
    for name in ("figures", "reported"):
        if (figures := _scored(card.get(name))) is not None:
            kept[name] = figures
    return kept


def _scored(figures: Any) -> dict[str, Any] | None:
    """Figures with all that a screen says of a score; None where one of it is missing or cannot be."""
    most = FIGURES | {"seed": (0, 2**63)}
    needed = ("loss", "exact_match", "samples")
    if not isinstance(figures, dict) or not all(_is_within(figures.get(name), most[name]) for name in needed):
        return None
    kept = {name: value for name, value in figures.items() if name in most and _is_within(value, most[name])}
    edges = figures.get("edge_cases")
    if isinstance(edges, dict) and all(_is_within(edges.get(name), most[name]) for name in needed):
        kept["edge_cases"] = edges
    at = figures.get("at")
    return kept | ({"at": at} if isinstance(at, str) else {})


def checked_rows(curve: Any, last: int) -> list[dict[str, Any]]:
    """The rows of a curve that goes up to the step `last`, with nothing in them but what is known.

    Raises `CheckpointError` with one sentence at the first that is not as it must be.
    """
    if not isinstance(curve, list) or len(curve) > MAX_ROWS:
        raise CheckpointError(f"a curve is a list of at most {MAX_ROWS:,} rows.")
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(curve, start=1):
        if not isinstance(row, dict):
            raise CheckpointError(f"row {number} is not a JSON object.")
        step = row.get("step")
        before = rows[-1]["step"] if rows else 0
        if type(step) is not int or not before < step <= last:
            raise CheckpointError(f"the step of row {number} must be after {before} and up to {last}.")
        if type(row.get("steps")) is not int or not 1 <= row["steps"] <= MAX_STEPS:
            raise CheckpointError(f"the number of steps in row {number} is none.")
        for name, bounds in NUMBERS.items():
            if not _is_within(row.get(name), bounds):
                raise CheckpointError(f"{name} in row {number} must be a number from {bounds[0]:g} to {bounds[1]:g}.")
        kept = {name: row[name] for name in ("step", "steps", *NUMBERS)}
        kept |= {name: row[name] for name, bounds in EXTRAS.items() if _is_within(row.get(name), bounds)}
        kept |= _scores(row)
        rows.append(kept | {"note": one_line(row.get("note"), 300), "done": row.get("done") is True})
    return rows


def checked_figures(figures: Any) -> dict[str, Any]:
    """The figures of a finished run, or none where one of them is missing or cannot be."""
    if not isinstance(figures, dict) or not all(_is_within(figures.get(name), FIGURES[name]) for name in FIGURES):
        return {}
    edges = figures.get("edge_cases")
    kept = {name: figures[name] for name in FIGURES}
    if not isinstance(edges, dict) or not all(_is_within(edges.get(name), FIGURES[name]) for name in EDGES):
        return kept
    return kept | {"edge_cases": {name: edges[name] for name in EDGES}}


def one_line(text: Any, most: int) -> str:
    """Text of at most so many characters on one line, without anything that cannot be printed; empty for what is no text."""
    if not isinstance(text, str):
        return ""
    text = text[: 4 * most].encode("utf-8", "replace").decode()  # a lone surrogate cannot be stored
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:most]


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    """The score of every head, {"encoder.0.attn": [0.1, …]}; nothing where it cannot be."""
    scores = row.get("scores")
    if not isinstance(scores, dict) or not all(isinstance(heads, list) for heads in scores.values()):
        return {}
    if len(scores) + sum(map(len, scores.values())) > MAX_SCORES:
        return {}
    if not all(_is_within(score, SHARE) for heads in scores.values() for score in heads):
        return {}
    return {"scores": {one_line(site, 60): heads for site, heads in scores.items()}}


def _is_within(value: Any, bounds: tuple[float, float]) -> bool:
    """Whether it is a number between two others; false for NaN, and for true."""
    return type(value) in (int, float) and bounds[0] <= value <= bounds[1]


def _whole(value: Any, most: int) -> int:
    return value if type(value) is int and 0 <= value <= most else 0
