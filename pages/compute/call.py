"""One call of `xformer.viz` or `xformer.analysis` made by a screen: its figure, its table, and the call as code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import altair as alt
import pandas as pd
import streamlit as st

from pages.compute.models import RUNS
from pages.state.view import ORIGINAL
from xformer import analysis
from xformer.reading import ReadCall, Reading
from xformer.viz.export import themed

Draw = Callable[..., Any]
"""A function of `xformer.viz`: readings and plain values in, a figure out."""


class Source(Protocol):
    """The subject of a picture, such as a reading or a survey; its code is the call that recreates it."""

    @property
    def code(self) -> Any: ...


class HasModel(Protocol):
    """The context in which a picture is shown; its files are named after the model."""

    @property
    def model(self) -> str: ...


@dataclass(frozen=True)
class PictureContext:
    """The context of pictures on a screen without a `View`."""

    model: str
    """Prefix of the names of downloaded files."""
    unit: str = "position"
    """The word for one step of a comparison."""


@dataclass(frozen=True, eq=False)
class PictureCall:
    """One call of `xformer.viz`, or of `xformer.analysis` for a table on screen."""

    draw: Draw
    readings: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.draw.__name__

    @property
    def is_chart(self) -> bool:
        """Whether it draws a chart of vectors, not a 3-D figure or a table."""
        drawn = str(inspect.signature(self.draw).return_annotation)
        return self.draw.__module__.startswith("xformer.viz") and drawn != "Any"

    def make(self) -> Any:
        """Make the call and return the figure or the table."""
        return self.draw(*self.readings, **self.options)

    def table(self) -> pd.DataFrame | None:
        """Return the numbers of the picture, with heads counted from 1; None if `xformer.analysis` has no such table."""
        tabulate = getattr(analysis, self.name, None)
        if tabulate is None:
            return None
        known = inspect.signature(tabulate).parameters
        options = {name: value for name, value in self.options.items() if name in known and name != "before"}
        before = self.options.get("before")
        if before is None or "before" in known:
            more = {} if before is None else {"before": before}
            return _for_a_file(tabulate(*self.readings, **options, **more))
        both = {ORIGINAL: before, "changed": self.readings[0]}
        return _for_a_file(pd.concat([tabulate(run, **options).assign(run=name) for name, run in both.items()]))

    def written(self, names: Mapping[int, str]) -> str:
        """Return the call as code; `names` maps the `id` of each reading to its variable name."""

        def source(value: Any) -> str:
            if isinstance(value, list | tuple) and _known(value):
                return f"[{', '.join(source(item) for item in value)}]"
            return names.get(id(value)) or repr(value)

        arguments = [source(reading) for reading in self.readings]
        arguments += [
            f"{name}={source(value)}"
            for name, value in self.options.items()
            if not (isinstance(value, pd.DataFrame) or _is_default(self.draw, name, value))
        ]
        module = "analysis" if self.draw.__module__.startswith("xformer.analysis") else "viz"
        return f"xformer.{module}.{self.name}({', '.join(arguments)})"

    def all_readings(self) -> list[Source]:
        return _known([*self.readings, *self.options.values()])

    def key(self, view: HasModel) -> tuple:
        """Return a cache key of plain values. A growing table is represented by its number of rows."""
        plain = {
            name: len(value) if isinstance(value, pd.DataFrame) else value
            for name, value in self.options.items()
            if not _known([value])
        }
        return view.model, self.name, *(str(reading.code) for reading in self.all_readings()), repr(plain)


def picture_call(draw: Draw, *readings: Any, **options: Any) -> PictureCall:
    """Return the call `draw(*readings, **options)`."""
    return PictureCall(draw, readings, options)


def tables(calls: Sequence[PictureCall]) -> pd.DataFrame:
    """Return the tables of all calls, concatenated. The table of a call with `before` already holds both runs."""
    last = calls[-1].table()
    if len(calls) == 1 or "before" in calls[-1].options:
        return pd.DataFrame() if last is None else last
    return pd.concat([table.assign(picture=at) for at, call in enumerate(calls) if (table := call.table()) is not None])


def _known(values: Sequence[Any]) -> list[Source]:
    """Return the values that have a code, including those in nested lists."""
    nested = [_known(value) if isinstance(value, list | tuple) else [value] for value in values]
    return [value for values in nested for value in values if hasattr(value, "code")]


def _is_default(draw: Draw, name: str, value: Any) -> bool:
    """Whether an argument equals its default."""
    default = inspect.signature(draw).parameters[name].default
    return type(default) is type(value) and default == value


def _for_a_file(table: pd.DataFrame) -> pd.DataFrame:
    return heads_from_1(table) if "head" in table else table


def code(calls: Sequence[PictureCall]) -> list[str]:
    """Return lines of Python that recreate the readings and draw the pictures."""
    readings = {id(reading): reading for call in calls for reading in call.all_readings()}
    names = dict(zip(readings, _names(list(readings.values())), strict=True))
    lines = ["import xformer"]
    lines += [f"{names[number]} = {reading.code}" for number, reading in readings.items()]
    written = [call.written(names) for call in calls]
    return [*lines, written[0] if len(written) == 1 else f"[{', '.join(written)}]"]


def _names(readings: list[Source]) -> list[str]:
    """Return a variable name for each reading; a model's own run and a changed one are `original` and `changed`."""
    if len(readings) == 1:
        return ["r" if isinstance(readings[0], Reading) else type(readings[0]).__name__.lower()]
    codes = [reading.code for reading in readings]
    own = [isinstance(code, ReadCall) and not code.edits and code.causal is None for code in codes]
    if len(readings) == 2 and sum(own) == 1:
        return ["original" if is_own else "changed" for is_own in own]
    return [f"r{index}" for index in range(1, len(readings) + 1)]


def script(lines: Sequence[str]) -> str:
    """Return the lines as a script that prints the table or writes a page with the picture.

    Code whose last expression is already a call of `print` or `show` is left unchanged.
    """
    code = "\n".join(lines)
    note = f"# {RUNS}/ stands for the runs folder of the server that drew this\n"
    note = note if re.search(f"[\"']{RUNS}/", code) else ""
    *_, last = ast.parse(code).body
    if isinstance(last, ast.Expr) and not re.match(r"(print|show)\(", ast.unparse(last)):
        rows = code.split("\n")
        start = last.lineno - 1
        rows[start] = f"picture = {rows[start]}"
        code = "\n".join([*rows[:start], "from xformer.viz.export import show", *rows[start:], "show(picture)"])
    return note + code


def is_dark() -> bool:
    """Whether the visitor uses the dark theme."""
    return st.context.theme.type == "dark"


@st.cache_data(max_entries=256, show_spinner=False)
def chart_spec(picture: tuple, _draw: Callable[[], Any]) -> Any:
    """Return a chart as a Vega-Lite specification, cached by the plain values in `picture`; a Plotly figure unchanged."""
    chart = _draw()
    if not isinstance(chart, alt.TopLevelMixin):
        return chart
    spec = chart.to_dict(validate=False)  # validation takes longer than drawing, and the tests validate every chart
    del spec["config"]  # Altair's default size; the page sets its own
    return spec


def themed_spec(picture: tuple, draw: Callable[[], Any]) -> Any:
    """Return `chart_spec` in the theme of the visitor."""
    return themed(chart_spec(picture, draw), is_dark())


HEAD = "head (from 1)"


def heads_from_1(table: pd.DataFrame, first: int = 0, no_head: str = "") -> pd.DataFrame:
    """Return a table for a file, with heads counted from 1 as on screen, in a column whose name states this.

    Args:
        table: A table with the column "head".
        first: The number of the first head in that column. Rows with a smaller number are about no single head.
        no_head: The value for such rows.
    """
    heads = [number + 1 - first if number >= first else no_head for number in table["head"]]
    return table.assign(head=heads).rename(columns={"head": HEAD})
