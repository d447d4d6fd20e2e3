"""Functions of `analysis` and `viz`, on every kind of reading, with valid and wrong arguments, raise only `XformerError`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from tests.readings import READINGS
from xformer import analysis, viz
from xformer.errors import XformerError
from xformer.reading import Reading
from xformer.viz.charts import OF_THE_MODEL

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing"),  # from PEFT's use of Transformers
    pytest.mark.filterwarnings("ignore:.*enable_nested_tensor is True"),
]
NAN = math.nan
WRONG = {
    r"Sequence\[(int|Head|Token)\]": ([], [-1], [10**6], [NAN], [1.5], [(0, 99)]),
    r"Sequence\[float\]": ([], [NAN], [math.inf]),
    r"Sequence\[str\]": ([], [""]),
    r"tuple\[int, int\]": ((-1, 0), (0, 10**6), (0,), (0.5, 0)),
    r"^(int|Count|Seed)": (0, -1, 10**6, 1.5, NAN),
    r"^(float|Size)": (NAN, math.inf, -1.0, 0.0),
    r"^str|Literal|PartKind|Pooling": ("no such name", ""),
}
"""Values that may be wrong, by a pattern of the annotation of the argument."""
VALID = {
    "frequency": 1,
    "dimensions": [0],
    "heads": [0],
    "scales": [0.0, 1.0],
    "texts": ["3 7 12 9", "1 2 3"],
    "name": "other",
}
"""Values of arguments that 0 does not fit."""
LEFT_OUT = {"dark", "legend", "title", "table", "tokenizer", "survey", "unit", "height", "lengths"}
"""Arguments that only change the look, or take tables of the same call."""
SLOW = {
    "accuracy_by_length", "head_effects", "heads_worth_seeing", "mistakes", "model_diagram", "projection",
    "score_attribution", "spectrum",
}  # fmt: skip
"""Functions tried only on the readings of `SEVERAL`."""
SEVERAL = ("own decoder", "task of a pair", "digits", "Mixtral", "hand-written")
"""Readings of which each has something that the others lack."""
DRAWN = ("task of a pair", "digits")
"""Readings of which every chart is drawn, and wrong arguments of tables are tried with one input."""


def functions(module: ModuleType) -> Iterator[str]:
    """The names of the public functions of a module whose first argument is one or several readings."""
    for name in module.__all__:
        function = getattr(module, name)
        takes = list(inspect.signature(function).parameters.values()) if inspect.isfunction(function) else []
        if takes and "Reading" in str(takes[0].annotation) and takes[0].name != "snapshots":
            yield name


def arguments(function: Any, reading: Reading) -> dict[str, Any]:
    """Valid arguments, if the reading has what the function shows."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = str(parameter.annotation)
        if kind == "Sequence[Reading]":
            found[name] = [reading, reading]
        elif "Reading" in kind and parameter.default is parameter.empty:
            found[name] = reading
        elif name == "samples":
            found[name] = 2
        elif parameter.default is parameter.empty or name in ("exact", "lengths"):
            found[name] = VALID.get(name, 1.0 if kind == "float" else 0)
    return found


def wrong_arguments(module: ModuleType, function: Any, reading: Reading, other: Reading) -> Iterator[dict[str, Any]]:
    """One argument at a time, replaced by each value that may be wrong; of a chart, only those that its table lacks."""
    table = getattr(analysis, function.__name__, None) if module is viz else None
    known = inspect.signature(table).parameters if inspect.isfunction(table) else {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in known:
            continue
        kind, values = str(parameter.annotation), []
        if kind == "Sequence[Reading]":
            values = [[], [reading], [reading, other], [reading] * 3]
        elif "Reading" in kind and name not in ("reading", "of", "model"):
            values = [reading, other]
        elif name not in LEFT_OUT | {"samples"}:
            values = [value for pattern, values in WRONG.items() if re.search(pattern, kind) for value in values]
        yield from ({name: value} for value in values)


@cache
def reading_of(name: str, n_batch: int) -> Reading:
    """A reading, shared by the tests."""
    return READINGS[name](n_batch)


def call(module: ModuleType, name: str, given: dict[str, Any]) -> Any:
    """Call a public function; None if it refuses in a sentence."""
    try:
        return getattr(module, name)(**given)
    except XformerError as refusal:
        sentence = str(refusal)
    except Exception as error:
        shown = {key: value if not isinstance(value, Reading) else value.adapter.name for key, value in given.items()}
        raise AssertionError(f"{module.__name__}.{name}({shown}) raised {type(error).__name__}: {error}") from error
    assert 10 < len(sentence) < 500, f"{name}: {sentence}"
    return None


def try_wrong_arguments(module: ModuleType, name: str, run: Reading) -> bool:
    """Call a function once per wrong argument, and return True, if it accepts the reading with valid ones."""
    given = arguments(getattr(module, name), run)
    if call(module, name, given) is None:
        return False
    for wrong in wrong_arguments(module, getattr(module, name), run, reading_of("own encoder", 1)):
        call(module, name, {**given, **wrong})
    return True


@pytest.mark.parametrize("reading", READINGS)
def test_every_table_of_every_reading_is_computed_or_refused_in_one_sentence(reading: str) -> None:
    run, found = reading_of(reading, 3), 0
    for name in functions(analysis):
        if name not in SLOW or reading in SEVERAL:
            found += call(analysis, name, arguments(getattr(analysis, name), run)) is not None
    assert found > 3


@pytest.mark.parametrize("reading", DRAWN)
def test_every_chart_of_a_reading_is_drawn_or_refused_in_one_sentence(reading: str) -> None:
    for name in functions(viz):
        chart = call(viz, name, arguments(getattr(viz, name), reading_of(reading, 3)))
        if chart is not None and name not in OF_THE_MODEL:
            assert "input 1 of 3" in str(chart.title)


@pytest.mark.parametrize("reading", DRAWN)
def test_every_wrong_argument_of_a_table_is_refused_in_one_sentence(reading: str) -> None:
    for name in functions(analysis):
        if name not in SLOW:
            try_wrong_arguments(analysis, name, reading_of(reading, 1))


def test_every_wrong_argument_of_a_chart_is_refused_in_one_sentence() -> None:
    for name in functions(viz):
        if name not in SLOW:  # the first reading that has a chart does: what the table lacks is checked alike for all
            any(try_wrong_arguments(viz, name, reading_of(reading, 1)) for reading in SEVERAL)
