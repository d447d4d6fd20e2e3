"""One model twice: as it is, and with the difference of two texts’ streams added at a layer while it goes on."""

from __future__ import annotations

from functools import partial

import streamlit as st

from pages.compare.minimal_pairs import PairView, one_model
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import resources
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.input_kinds.kind import MOST_TYPED
from pages.shared.link import asked, carry
from pages.shared.patience import Step, patience
from pages.shared.picture import footer
from pages.shared.session import LookedAt
from pages.shared.widgets import not_here, typed
from xformer import analysis
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.differences import SaidText, parting
from xformer.analysis.generation import steering_steps
from xformer.errors import InputError
from xformer.reading import Reading

N = 16
"""Tokens that both go on with: steered, each takes a whole run."""
MOST_SCALE, USUAL_DEPTH = 5.0, 0.7
TEXTS = {"towards": "It was terrible", "away": "It was wonderful"}
_OF_CHARACTERS = {"towards": "THE CLASS OF", "away": "the class of"}
_WORDS = {"towards": "Towards", "away": "Away from"}
Said = tuple[tuple[int, float], ...]


def steering_panel(looked: LookedAt) -> None:
    """Ask for the text, the two that give the direction, layer and scale; show both continuations."""
    one_model(looked, ":material/edit:", _steered)


def _steered(subject: ModelAdapter, model: str, link: dict[str, str]) -> None:
    if not subject.input.goes_on or subject.shape.is_pair:
        st.info("This model does not go on with a text; choose one that does, like characters.", icon=":material/info:")
        return
    readings, found = [], dict[str, str]()
    for place, name in zip(st.columns(3, gap="small"), ("input", *TEXTS), strict=True):
        text = _ask_text(subject, name, place.text_input)
        found[name] = text
        readings.append(resources.run(model, subject.input.read(typed(text, MOST_TYPED))))
    layer, scale = _ask_strength(subject)
    found |= {"layer": str(layer), "scale": f"{scale:g}"}
    with patience("It goes on, steered") as step:
        own = resources.decoded(model, tuple(readings[0].example.source))[:N]
        key = ("steered", model, repr(found))
        other: Said = shared.get(key, partial(_go_on, *readings, layer=layer - 1, scale=scale, step=step))
    label = subject.labels
    prediction_strip(
        [
            Lane(name, tuple(label[token] for token, _ in said), probability=tuple(p for _, p in said))
            for name, said in (("as it is", own), ("steered", other))
        ],
        key="compare_steered",
    )
    one, two = (SaidText.of(subject.input.plain, said) for said in (own, other))
    st.markdown(_says(one, two, layer, scale))
    call = Call(analysis.steered, tuple(readings), {"layer": layer - 1, "scale": scale, "n": N})
    footer(PairView(model), "steered", [call])
    st.caption(
        "What is added after that layer, at every position and each step, is the scale times the stream after the last token "
        "of one text less that of the other (Turner et al. 2023; Rimsky et al. 2024). The likeliest token is taken each time."
    )
    link |= found


def _ask_text(subject: ModelAdapter, name: str, widget: object) -> str:
    assert callable(widget)
    key = name if name == "input" else f"steering_{name}"
    usual = (
        subject.input.default
        if name == "input"
        else (_OF_CHARACTERS if isinstance(subject, TaskModel) else TEXTS)[name]
    )
    wanted = None if name == "input" else asked(name)
    if wanted is not None or not st.session_state.get(key):
        st.session_state[key] = wanted or usual
    carry(key)
    widget(_WORDS.get(name, "Text"), key=key, persist_state="session")
    return str(st.session_state[key])


def _ask_strength(subject: ModelAdapter) -> tuple[int, float]:
    """The layer, from 1, and the scale."""
    n, (left, right) = subject.shape.n_layers, st.columns(2, gap="small")
    layer, scale = asked("layer"), asked("scale")
    if layer is not None and layer.isdecimal() and 1 <= int(layer) <= n:
        st.session_state["steering_layer"] = int(layer)
    elif layer is not None:
        not_here("layer")
    if not 1 <= st.session_state.get("steering_layer", 0) <= n:
        st.session_state["steering_layer"] = max(1, round(USUAL_DEPTH * n))
    st.session_state.setdefault("steering_scale", 1.0)
    if scale is not None:
        st.session_state["steering_scale"] = _number(scale)
    at = left.slider("After layer", 1, n, key="steering_layer", disabled=n == 1) if n > 1 else 1
    strength = right.slider("Scale", -MOST_SCALE, MOST_SCALE, step=0.25, key="steering_scale")
    return int(at), float(strength)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise InputError(f"A scale is a number from {-MOST_SCALE:g} to {MOST_SCALE:g}, got {text[:20]!r}.") from None
    return min(MOST_SCALE, max(-MOST_SCALE, found)) if found == found else 1.0


def _go_on(reading: Reading, towards: Reading, away: Reading, *, layer: int, scale: float, step: Step) -> Said:
    said = []
    for one in steering_steps(reading, towards, away, layer=layer, scale=scale, n=N):
        said.append((one.token, one.probabilities[one.token].item()))
        step(len(said), N)
    return tuple(said)


def _says(one: SaidText, other: SaidText, layer: int, scale: float) -> str:
    """Where the two part."""
    at = parting(one, other)
    if at is None:
        return f"Steered after layer {layer} at scale {scale:g} it says the same."
    return f"Steered after layer {layer} at scale {scale:g} it says something else from character {at + 1} on."
