"""A chart of the library whose data grow while one looks on: the data are sent beside it, so that new ones change nothing else.

Altair names data by their contents, and a chart in which a name changes is built anew in the browser, which flickers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared.call import Call
from pages.shared.layout import chart_spec


def live_chart(
    call: Call, state: tuple, key: str, *, legend: bool = True, on_select: Callable[[], None] | None = None
) -> None:
    """Show a call that draws a chart of Altair; it is drawn anew only where its `state`, plain values, is another one.

    `on_select` is called when something in it was clicked; `st.session_state[key]` then says what.
    """
    spec = dict(chart_spec((call.name, *state, repr(call.arguments), key), call.make))
    found = spec.pop("datasets", {})
    text = json.dumps(spec if legend else _without_legends(spec))
    for number, name in enumerate(found):
        text = text.replace(f'"{name}"', f'"table_{number}"')
    spec = json.loads(text)
    spec["datasets"] = {f"table_{number}": pd.DataFrame(rows) for number, rows in enumerate(found.values())}
    width = "stretch"
    if isinstance(spec.get("width"), int | float):  # of its own size, its legend beside
        width, spec["autosize"] = "content", {"type": "pad"}
    st.vega_lite_chart(spec=spec, theme="streamlit", width=width, key=key, on_select=on_select or "ignore")


def _without_legends(spec: Any) -> Any:
    """The same chart where the numbers stand in it, or beside it."""
    if isinstance(spec, list):
        return [_without_legends(one) for one in spec]
    if not isinstance(spec, dict):
        return spec
    return {name: None if name == "legend" else _without_legends(of) for name, of in spec.items()}
