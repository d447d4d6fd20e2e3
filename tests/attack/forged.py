"""What no browser sends: values of the right kind for a widget that does not offer them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from streamlit.proto.WidgetStates_pb2 import WidgetState

from tests.attack.links import SCREENS
from tests.attack.visitor import FindingError, Visitor

ODD_JSON = ("null", "[]", "{}", '"\\ud800"', "1e999", '{"number": "\\ud800", "step": -1, "layer": 99, "head": [], "heads": {}}',
            '{"value": {"pixels": "zz", "order": {}, "own": 3}}')  # fmt: skip
ODD_TEXT = ("", "no such option", "a" * 3000, "=1", "$x$ \x00 \x1b", "0123abcd", "😀")


def attempts(base: str, n: int, draw: random.Random) -> Iterator[str]:
    """Send n such values: the screens have to bear them. Streamlit itself refuses values of a wrong kind."""
    number = tried = 0
    while tried < n:
        with Visitor(base) as visitor:
            visitor.open(SCREENS[number % len(SCREENS)])
            number += 1
            for _ in range(4):
                name = draw.choice(list(visitor.screen.widgets))
                if (state := _fitting(name, visitor.screen.widgets[name], draw)) is None:
                    continue
                try:
                    visitor.run(state)
                except FindingError as error:
                    raise FindingError(f"{visitor.page or 'home'}, {name}: {state!r:.300}: {error}") from error
                tried += 1
                yield "survived"


def _fitting(name: str, widget: object, draw: random.Random) -> WidgetState | None:
    state, kind = WidgetState(id=name), type(widget).__name__
    if kind in ("TextInput", "Selectbox"):
        state.string_value = draw.choice(ODD_TEXT)
    elif kind in ("Button", "DownloadButton"):
        state.trigger_value = True
    elif kind == "Checkbox":
        state.bool_value = draw.random() < 0.5
    elif kind == "BidiComponent":
        state.json_value = draw.choice(ODD_JSON)
    else:  # Streamlit refuses what is none of the options, by breaking off the run
        return None
    return state
