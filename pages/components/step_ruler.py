"""Step through what players say to one input: lanes, ruler, entropy, KL and likeliest tokens, all drawn in the browser.

    at = step_ruler(ruler_data(plays), order="what is compared", told=3, key="ruler")     # the step where the ruler rests

The browser has all steps, so that stepping asks the server nothing; the server hears of a step when the ruler rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v2 import component

from xformer.analysis.parting import payload
from xformer.analysis.players import Play
from xformer.viz.theme import HEAD_HUES, PLAYER_HUES

_HERE = Path(__file__).parent
_EVENT = "rest"
# A component's script cannot import, so its parts are joined into one.
_PARTS = ("ruler", "timeline", "tracks", "now", "controls", "entry")
_component = component(
    "xformer_step_ruler",
    css=(_HERE / "step_ruler.css").read_text(encoding="utf-8"),
    js="\n".join((_HERE / "step_ruler_js" / f"{part}.js").read_text(encoding="utf-8") for part in _PARTS),
)


def ruler_data(plays: Sequence[Play]) -> dict[str, Any]:
    """All that the ruler draws: `payload`, what each player reads, and the chance that what it said was drawn."""
    data = payload(plays)
    source = plays[0].example.source
    for player, play in zip(data["players"], plays, strict=True):
        said = zip(range(len(play)), play.said, strict=True)
        player["drawn"] = [round(play.drawn_from[step, token].item(), 6) for step, token in said]
    labels = plays[0].labels
    return data | {
        "reads": [labels[token] for token in source],
        "hues": PLAYER_HUES,
        "pair_hues": HEAD_HUES[4:],
        "is_sampled": any(play.player.sampling.temperature for play in plays),
        "is_decoder": any(play.player.model.config.architecture != "encoder" for play in plays),
    }


def step_ruler(data: dict[str, Any], *, order: str, told: int, key: str, detail: bool = True) -> int:
    """Draw the ruler and return the step where it rests; with `detail` also how sure and how far apart all are, in numbers.

    `order` names what is compared: whenever it changes, and when the ruler is new to the browser, it goes to `told`.
    """
    memory, last = f"{key}:rest", max(len(player["said"]) for player in data["players"]) - 1

    def remember() -> None:
        sent = st.session_state[key].get(_EVENT)
        step = sent.get("step") if isinstance(sent, dict) else None
        if isinstance(step, int) and not isinstance(step, bool) and sent.get("order") == order:
            st.session_state[memory] = (order, step)

    _component(key=key, data=data | {"order": order, "told": told, "detail": detail}, on_rest_change=remember)
    resting = st.session_state.get(memory)
    step = resting[1] if isinstance(resting, tuple) and resting[0] == order else told
    return min(max(step, 0), last)


def resting_step(key: str, order: str) -> int | None:
    """Where the ruler `key` rests; None before it has told, or when it told of another comparison."""
    resting = st.session_state.get(f"{key}:rest")
    return resting[1] if isinstance(resting, tuple) and resting[0] == order else None
