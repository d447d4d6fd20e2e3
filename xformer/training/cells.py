"""The kinds of cells in the run store, each read as what it must be, whatever has happened to the file.

A disk may have failed, or a hand edited it. A cell that cannot be read is replaced by a value that says nothing, and named in
the `Damage` of its row: so one damaged cell costs the others nothing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic.functional_validators import WrapValidator

from xformer.config import Config
from xformer.errors import ConfigError

LARGEST = 2**53
LATEST = 9e9
"""The last moment that a calendar of 64-bit nanoseconds has room for."""
SCORING = "scoring"
"""What of the live figures of a run is a list: the examples that are scored, those asked for, and seconds."""


@dataclass
class Damage:
    """What was wrong with a row."""

    columns: list[str] = field(default_factory=list)
    why: str = ""
    """The rule that its settings break."""


def or_else(nothing: Any) -> WrapValidator:
    """What stands for a cell that cannot be read; where nobody keeps a `Damage`, it is an error like any other."""

    def read(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            damage = info.context
            if damage is None:
                raise
            damage.columns.append(info.field_name)
            rule = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(rule, ConfigError):
                damage.why = damage.why or str(rule)[:300]
            return nothing

    return WrapValidator(read)


def from_json(value: Any) -> Any:
    """What a cell of JSON holds; what is no text is taken as it is. Raises `ValueError`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_number(value: Any) -> bool:
    """Whether it is a number that everything here can reckon with; NaN and infinity are, true is not."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def are_numbers(value: Any) -> bool:
    """Whether it is a list of such numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def _sweep(value: Any) -> Any:
    """What differs in the models of a sweep, and their ids: {"settings": {"seed": [0, 1]}, "ids": ["1f3c5a70", "9b2d4e61"]}."""
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
        raise ValueError("a sweep is one or two settings with numbers, and an id for each model")
    return value


def settings_of(kind: type[Config]) -> BeforeValidator:
    """Reads a cell with a configuration, as plain JSON values: all its rules hold."""

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
    """Why settings cannot be read; empty where they can. Kept: the run store is read every second, and they seldom change."""
    try:
        kind.from_json(from_json(text))
    except ConfigError as error:
        return str(error)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return f"{kind.__name__} holds a value that is none."
    return ""


def _one_line(value: str) -> str:
    if not value[:800].isprintable():
        raise ValueError("a line must be printable")
    return " ".join(value[:800].split())


def _step_figures(value: dict[str, Any]) -> dict[str, Any]:
    """An object of numbers, and of lists of numbers: {"loss": 0.1, "scoring": [10, 20, 0.5]}."""
    return {name: one for name, one in value.items() if is_number(one) or (name == SCORING and are_numbers(one))}


def _score_figures(value: dict[str, Any]) -> dict[str, Any]:
    """An object of numbers, in which those of the edge cases are another one: {"loss": 0.1, "edge_cases": {"loss": 0.2}}."""
    kept = {name: one for name, one in value.items() if is_number(one)}
    edges = value.get("edge_cases")
    if isinstance(edges, dict) and all(is_number(edges.get(name)) for name in ("exact_match", "samples")):
        kept["edge_cases"] = {name: one for name, one in edges.items() if is_number(one)}
    return kept


def _tags(value: Any) -> tuple[str, ...]:
    found = from_json(value)
    if not isinstance(found, list | tuple) or not all(isinstance(tag, str) and tag.isprintable() for tag in found):
        raise ValueError("tags are a list of printable texts")
    return tuple(tag[:80] for tag in found[:12])


NUMBERED = re.compile(r"number-(\d{1,18})", re.ASCII)
"""What a run is called whose id cannot be read."""
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\z")]
"""An id is a folder too, so it cannot lead out of the folder of runs."""
Text = Annotated[str, AfterValidator(lambda value: value[:10_000])]
Line = Annotated[str, AfterValidator(_one_line)]
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]
Tags = Annotated[tuple[str, ...], BeforeValidator(_tags)]
StepFigures = Annotated[dict[str, Any], AfterValidator(_step_figures), BeforeValidator(from_json)]
ScoreFigures = Annotated[dict[str, Any], AfterValidator(_score_figures), BeforeValidator(from_json)]
Sweep = Annotated[dict[str, Any] | None, BeforeValidator(_sweep)]
