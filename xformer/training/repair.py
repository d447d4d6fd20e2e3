"""Reading what is written in the run store after anything may have happened to it: a disk that failed, a hand that edited it.

Each cell is read as what it must be. One that is not is replaced by a value that says nothing, and named: `mended` gives the
cells of a run and a sentence on what was wrong with them. Where too little is left to train it, or to tell how it was trained,
the state of the run is `DAMAGED`, which is none that anything starts from. So one damaged run costs the others nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError

DAMAGED = "damaged"
AT_WORK = ("running", "paused")
"""In which states a run can have a process."""
LARGEST = 2**53
LATEST = 9e9
"""The last moment that a calendar of 64-bit nanoseconds has room for."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
"""An id is a folder too, so it cannot lead out of the folder of runs."""
_NUMBERED = re.compile(r"number-(\d{1,18})", re.ASCII)
"""What a run is called whose id cannot be read."""
SCORING = "scoring"
"""What of the figures of a step is a list: how far the scoring is."""
SETTINGS: dict[str, type[Config]] = {"model": ModelConfig, "task": TaskConfig, "train": TrainConfig}
FIGURES = ("step", "steps", "loss", "learning_rate", "gradient_norm", "seconds", "tokens_per_second", "best_head_score",
           "held_out_loss", "held_out_token_accuracy", "held_out_exact_match", "held_out_samples")  # fmt: skip
"""What must be a number in a row of metrics, where it is there."""


def repaired(cells: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a run, each of which is what it must be; what was wrong stands at the end of its message."""
    wrong: list[str] = []
    values = {name: _cell(name, value, wrong) for name, value in cells.items()}
    number = values.get("number", 0)
    if not (isinstance(values.get("id"), str) and _ID.fullmatch(values["id"])):
        values["id"] = f"number-{number}"
        wrong.append("id")
    if not (isinstance(values.get("state"), str) and values["state"] in states):
        wrong.append("state")
    why = ""
    for name, kind in SETTINGS.items():
        if problem := _problem(kind, cells.get(name)):
            values[name] = {}
            wrong.append(name)
            why = why or problem
    if values.get("worker") is not None and values.get("state") not in AT_WORK:
        values |= {"worker": None, "pid": None}
        wrong.append("worker")
    if not {"id", "state", *SETTINGS}.isdisjoint(wrong):
        values |= {"state": DAMAGED, "worker": None, "pid": None}
    if wrong:
        said = f"Its entry in the book of runs is damaged ({', '.join(wrong)}). {why}".rstrip()
        values["message"] = f"{values.get('message', '')} {said}".lstrip()
    return values


def where(run: str) -> tuple[str, str | int]:
    """The condition that finds a run in the table, by its id, or by its number where the id cannot be read."""
    numbered = _NUMBERED.fullmatch(run)
    return ("number = ?", int(numbered[1])) if numbered else ("id = ?", run)


def json_object(text: Any) -> dict[str, Any] | None:
    """The JSON object in a cell; None where it is none."""
    value = _json(text)
    return value if isinstance(value, dict) else None


def metrics_row(step: Any, text: Any) -> dict[str, Any] | None:
    """A row of metrics without what is garbled in it; None where it is none of that step."""
    row = json_object(text)
    if row is None or type(step) is not int or not 0 <= step <= LARGEST or row.get("step") != step:
        return None
    kept = {name: value for name, value in row.items() if name not in FIGURES or value is None or is_number(value)}
    if "scores" in kept and not _are_scores(kept["scores"]):
        del kept["scores"]
    if not isinstance(kept.get("note", ""), str):
        del kept["note"]
    return kept


def is_number(value: Any) -> bool:
    """Whether it is a number that everything here can reckon with; NaN and infinity are, true is not."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def _cell(name: str, value: Any, wrong: list[str]) -> Any:
    if name not in _KINDS:
        return value
    read, nothing = _KINDS[name]
    found = read(value)
    if found is None:
        wrong.append(name)
        return nothing
    return found[0]


Read = Callable[[Any], tuple[Any] | None]
"""What a cell holds, in a tuple of one; None where it is damaged."""


def _text(value: Any) -> tuple[str] | None:
    return (value[:10_000],) if isinstance(value, str) else None


def _line(value: Any) -> tuple[str] | None:
    return (" ".join(value[:800].split()),) if isinstance(value, str) and value[:800].isprintable() else None


def _whole(value: Any) -> tuple[int] | None:
    return (value,) if type(value) is int and 0 <= value <= LARGEST else None


def _number(value: Any) -> tuple[float] | None:
    return (float(value),) if type(value) in (int, float) and 0 <= value <= LATEST else None


def _optional(read: Read) -> Read:
    return lambda value: (None,) if value is None else read(value)


def _live(value: Any) -> tuple[dict[str, Any]] | None:
    """An object of numbers, and of lists of numbers: {"loss": 0.1, "scoring": [10, 20, 0.5]}."""
    found = json_object(value)
    if found is None:
        return None
    return ({name: one for name, one in found.items() if is_number(one) or (name == SCORING and _are_numbers(one))},)


def _figures(value: Any) -> tuple[dict[str, Any]] | None:
    """An object of numbers, in which those of the edge cases are another one: {"loss": 0.1, "edge_cases": {"loss": 0.2}}."""
    found = json_object(value)
    if found is None:
        return None
    kept = {name: one for name, one in found.items() if is_number(one)}
    edges = found.get("edge_cases")
    if isinstance(edges, dict) and all(is_number(edges.get(name)) for name in ("exact_match", "samples")):
        kept["edge_cases"] = {name: one for name, one in edges.items() if is_number(one)}
    return (kept,)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def _tags(value: Any) -> tuple[tuple[str, ...]] | None:
    found = _json(value)
    if not isinstance(found, list) or not all(isinstance(tag, str) and tag.isprintable() for tag in found):
        return None
    return (tuple(tag[:80] for tag in found[:12]),)


_KINDS: dict[str, tuple[Read, Any]] = {
    "number": (_whole, 0),
    "name": (_line, "?"),
    "owner": (_text, ""),
    "tags": (_tags, ()),
    "preset": (_line, ""),
    "title": (_line, ""),
    "about": (_text, ""),
    **dict.fromkeys(SETTINGS, (lambda value: (json_object(value) or {},), {})),
    "wanted": (_line, "auto"),
    "parent": (_optional(_line), None),
    "device": (_optional(_line), None),
    "turn": (_whole, 0),
    "worker": (_optional(_text), None),
    "pid": (_optional(_whole), None),
    "step": (_whole, 0),
    "seconds": (_number, 0.0),
    "live": (_live, {}),
    "message": (_text, ""),
    "figures": (_figures, {}),
    "created": (_number, 0.0),
    "deleted": (_optional(_number), 0.0),
    "private": (lambda value: (value,) if value in (0, 1) else None, 1),
}
"""How each column is read, and what stands for it where it cannot be."""


def _problem(kind: type[Config], text: Any) -> str:
    return _problem_of(kind, text) if isinstance(text, str) else f"{kind.__name__} must be a JSON object."


@lru_cache(maxsize=4096)
def _problem_of(kind: type[Config], text: str) -> str:
    """Why settings cannot be read; empty where they can. Kept: the run store is read every second, and they seldom change."""
    try:
        kind.from_json(_json(text))
    except ConfigError as error:
        return str(error)[:300]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return f"{kind.__name__} holds a value that is none."
    return ""


def _are_scores(scores: Any) -> bool:
    return isinstance(scores, dict) and all(_are_numbers(heads) for heads in scores.values())


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
