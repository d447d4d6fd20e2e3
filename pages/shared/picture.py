"""One picture on a screen: a call of `xformer.viz`, shown, with that very call as its code and its table as a file.

    picture(view, "norms", viz.norms, reading, before=original, what="added")

The call's arguments are readings (or what else knows its `recipe`, a survey, a rollout), alone or in lists, and plain values.
The table is that of `xformer.analysis` under the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import altair as alt
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.shared.byte_cache import shared
from pages.shared.layout import is_dark, run_title
from pages.shared.notebook import Table, code_and_data, heads_from_1
from pages.shared.view import ORIGINAL, View
from xformer import analysis
from xformer.reading import Reading, Recipe

Draw = Callable[..., Any]
"""A function of `xformer.viz`: readings and plain values in, a figure out."""


class Source(Protocol):
    """What a picture is of: a reading, or a survey. It knows the call that makes it again."""

    @property
    def recipe(self) -> Any: ...


class Shown(Protocol):
    """What is looked at: the files of its pictures are named after the model."""

    @property
    def model(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Call:
    """One call of `xformer.viz`, or of `xformer.analysis` for what is a table on the screen."""

    draw: Draw
    readings: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it draws, as the library calls it."""
        return self.draw.__name__

    @property
    def arguments(self) -> dict[str, Any]:
        """The options with the theme that the visitor sees, where the picture has one."""
        return {**self.options, **({"dark": is_dark()} if "dark" in inspect.signature(self.draw).parameters else {})}

    def make(self) -> Any:
        """The figure, or the table."""
        return self.draw(*self.readings, **self.arguments)

    def table(self) -> pd.DataFrame | None:
        """The numbers of the picture, heads counted from 1; None where the library knows no table of that name."""
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
        return _for_a_file(pd.concat([tabulate(one, **options).assign(run=name) for name, one in both.items()]))

    def written(self, names: Mapping[int, str]) -> str:
        """The call as code; `names` are those of its readings."""

        def value(of: Any) -> str:
            if isinstance(of, list | tuple) and _known(of):
                return f"[{', '.join(value(one) for one in of)}]"
            return names.get(id(of)) or repr(of)

        said = [value(reading) for reading in self.readings]
        said += [
            f"{name}={value(of)}"
            for name, of in self.arguments.items()
            if not (isinstance(of, pd.DataFrame) or _is_usual(self.draw, name, of))
        ]
        module = "analysis" if self.draw.__module__.startswith("xformer.analysis") else "viz"
        return f"xformer.{module}.{self.name}({', '.join(said)})"

    def all_readings(self) -> list[Source]:
        return _known([*self.readings, *self.options.values()])

    def key(self, view: Shown) -> tuple:
        """Plain values by which a cache knows it; a table that was made before follows from them."""
        plain = {name: of for name, of in self.arguments.items() if not (_known([of]) or isinstance(of, pd.DataFrame))}
        return view.model, self.name, *(str(reading.recipe) for reading in self.all_readings()), repr(plain)


def picture(view: Shown, name: str, draw: Draw, *readings: Source, key: str = "", **options: Any) -> Any:
    """Show one picture with its “⋯”; `name` ends its file's name. What comes back is what was clicked, see `shown`."""
    call = Call(draw, readings, options)
    event = shown(view, call, key or name)
    footer(view, name, [call])
    return event


def of_each_run(
    view: View,
    name: str,
    draw: Draw,
    *,
    places: Sequence[DeltaGenerator] = (),
    look: Callable[[int], Mapping[str, Any]] = lambda index: {},
    **options: Any,
) -> None:
    """Show the picture of the original and, where there is one, of the changed run, with one “⋯” for both.

    A changed run is drawn with `before=` the original where the picture knows that. `places` are containers for them,
    `look` gives what each of them has of its own.
    """
    original, changed = view.original(), view.changed()
    calls = [Call(draw, (original,), {**options, **look(0), **_title(draw, view, ORIGINAL)})]
    if changed is not None:
        before = {"before": original} if "before" in inspect.signature(draw).parameters else {}
        calls.append(Call(draw, (changed,), {**options, **look(1), **before, **_title(draw, view, view.shown)}))
    for index, call in enumerate(calls):
        with places[index] if places else st.container():
            if changed is not None and "title" not in call.options:
                st.markdown(f"**{run_title(view.shown if index else ORIGINAL)}**")
            shown(view, call, f"{name}_{index}")
    footer(view, name, calls)


def shown(view: Shown, call: Call, key: str, **more: Any) -> Any:
    """Show a picture, Altair's or Plotly's, drawn once for all that see the same; `more` goes to Streamlit's chart."""
    spec = _spec(call.key(view), call)
    if not isinstance(spec, dict):
        bar = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
        return st.plotly_chart(spec, **{"theme": "streamlit", "key": key, "config": bar, **more})
    width = (
        "content" if isinstance(spec.get("width"), int | float) or "facet" in spec or "hconcat" in spec else "stretch"
    )
    return st.vega_lite_chart(spec, **{"theme": "streamlit", "width": width, "key": key, **more})


def footer(
    view: Shown, name: str, calls: Sequence[Call], table: Table | None = None, *, remark: Sequence[str] = ()
) -> None:
    """The “⋯” of pictures that belong together: the lines that draw them after a remark, and the table of them all."""
    code_and_data([*remark, *code(calls)], (lambda: tables(calls)) if table is None else table, name, view.model)


def code(calls: Sequence[Call]) -> list[str]:
    """The lines that read what is needed and make the pictures."""
    readings = {id(reading): reading for call in calls for reading in call.all_readings()}
    names = dict(zip(readings, _names(list(readings.values())), strict=True))
    lines = ["import xformer"]
    lines += [f"{names[number]} = {reading.recipe}" for number, reading in readings.items()]
    written = [call.written(names) for call in calls]
    return [*lines, written[0] if len(written) == 1 else f"[{', '.join(written)}]"]


def table(view: Shown, tabulate: Callable[..., pd.DataFrame], *readings: Any, **options: Any) -> pd.DataFrame:
    """A table of `xformer.analysis`, made once for all that ask for the same; nobody may change it."""
    call = Call(tabulate, readings, options)
    return shared.get(("table", *call.key(view)), call.make)


def tables(calls: Sequence[Call]) -> pd.DataFrame:
    """The tables of all calls below each other; where one compares with the run before, it has them all."""
    last = calls[-1].table()
    if len(calls) == 1 or "before" in calls[-1].options:
        return pd.DataFrame() if last is None else last
    return pd.concat(
        [table.assign(picture=index) for index, call in enumerate(calls) if (table := call.table()) is not None]
    )


@st.cache_data(max_entries=256, show_spinner=False)
def _spec(what: tuple, _call: Call) -> Any:
    """A chart as Vega-Lite, since describing one takes longer than a run; a figure of Plotly as it is."""
    figure = _call.make()
    if not isinstance(figure, alt.TopLevelMixin):
        return figure
    spec = figure.to_dict()
    del spec["config"]  # the size of an empty chart outside a page
    return spec


def _known(values: Sequence[Any]) -> list[Source]:
    """What knows its recipe, among values and in lists among them."""
    nested = [_known(value) if isinstance(value, list | tuple) else [value] for value in values]
    return [one for values in nested for one in values if hasattr(one, "recipe")]


def _names(readings: list[Source]) -> list[str]:
    """What the code calls them: a model's own run beside a changed one is the original."""
    if len(readings) == 1:
        return ["r" if isinstance(readings[0], Reading) else type(readings[0]).__name__.lower()]
    recipes = [reading.recipe for reading in readings]
    own = [isinstance(one, Recipe) and not one.changes and one.causal is None for one in recipes]
    if len(readings) == 2 and sum(own) == 1:
        return ["original" if is_own else "changed" for is_own in own]
    return [f"r{index}" for index in range(1, len(readings) + 1)]


def _is_usual(draw: Draw, name: str, value: Any) -> bool:
    """Whether an argument says no more than its default."""
    usual = inspect.signature(draw).parameters[name].default
    return type(usual) is type(value) and usual == value


def _title(draw: Draw, view: View, name: str) -> dict[str, str]:
    return {"title": run_title(name)} if view.is_changed and "title" in inspect.signature(draw).parameters else {}


def _for_a_file(table: pd.DataFrame) -> pd.DataFrame:
    return heads_from_1(table) if "head" in table else table
