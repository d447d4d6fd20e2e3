"""Steering: a model's continuation of a text, with and without the difference of two texts' residual streams added."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from pages.compare.comparison import PictureContext
from pages.compare.minimal_pairs import one_model
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import resources
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.inputs import MOST_TYPED
from pages.shared.layout import headline
from pages.shared.link import asked, carry
from pages.shared.patience import Step, patience
from pages.shared.picture import footer, toolbar
from pages.shared.session import LookedAt
from pages.shared.widgets import not_here, typed
from xformer import analysis
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.differences import GeneratedText, first_difference
from xformer.analysis.generation import steering_steps
from xformer.errors import InputError
from xformer.reading import Reading

N = 16
"""Tokens of each continuation: steered, each takes a whole run."""
MOST_SCALE, DEFAULT_DEPTH = 5.0, 0.7
TEXTS = {"towards": "It was terrible", "away": "It was wonderful"}
TEXTS_OF_CHARACTERS = {"towards": "THE CLASS OF", "away": "the class of"}
LABELS = {"input": "Text", "towards": "Towards", "away": "Away from"}
Continuation = tuple[tuple[int, float], ...]
"""Tokens with their probabilities."""


def steering_panel(looked: LookedAt) -> None:
    """Ask for the text, the two texts of the direction, layer and scale; show both continuations."""
    one_model(looked, ":material/edit:", _steered)


def _steered(subject: ModelAdapter, model: str, link: dict[str, str]) -> None:
    if not subject.input.goes_on or subject.shape.is_pair:
        st.info("This model does not continue texts; choose one that does, like characters.", icon=":material/info:")
        return
    readings, asked_for = [], dict[str, str]()
    for name in LABELS:
        asked_for[name] = _ask_text(subject, name)
        readings.append(resources.run(model, subject.input.read(typed(asked_for[name], MOST_TYPED))))
    finding = st.container()
    with toolbar():
        layer, scale = _ask_strength(subject)
    asked_for |= {"layer": str(layer), "scale": f"{scale:g}"}
    with patience("Decoding with steering") as step:
        own = resources.decoded(model, tuple(readings[0].example.source))[:N]
        key = ("steered", model, repr(asked_for))
        steered: Continuation = shared.get(key, partial(_decode, *readings, layer=layer - 1, scale=scale, step=step))
    runs = {"as it is": own, "steered": steered}
    at = first_difference(*(GeneratedText.of(subject.input.plain, run) for run in runs.values()))
    what = "the continuation is the same" if at is None else f"the continuation differs from character **{at + 1}** on"
    with finding:
        headline(f"Steered after layer {layer} at scale {scale:g}, {what}.")
    prediction_strip([lane_of(subject, name, run) for name, run in runs.items()], key="compare_steered")
    call = Call(analysis.steered, tuple(readings), {"layer": layer - 1, "scale": scale, "n": N})
    footer(PictureContext(model), "steered", [call])
    with st.expander("How it is steered", key="steering_details"):
        st.markdown(
            "After that layer, at every position and each step, scale × (stream after the last token of “Towards” − that of "
            "“Away from”) is added to the residual stream (Turner et al. 2023; Rimsky et al. 2024). Decoding is greedy."
        )
    link |= asked_for


def lane_of(subject: ModelAdapter, name: str, run: Continuation) -> Lane:
    """A lane of predicted tokens with their probabilities."""
    return Lane(name, tuple(subject.labels[token] for token, _ in run), probability=tuple(p for _, p in run))


def _ask_text(subject: ModelAdapter, name: str) -> str:
    key, wanted = (name, None) if name == "input" else (f"steering_{name}", asked(name))
    texts = TEXTS_OF_CHARACTERS if isinstance(subject, TaskModel) else TEXTS
    if wanted is not None or not st.session_state.get(key):
        st.session_state[key] = wanted or texts.get(name, subject.input.default)
    carry(key)
    return str(st.sidebar.text_input(LABELS[name], key=key, persist_state="session"))


def _ask_strength(subject: ModelAdapter) -> tuple[int, float]:
    """The layer, counted from 1, and the scale."""
    visit, n = st.session_state, subject.shape.n_layers
    layer, scale = asked("layer"), asked("scale")
    if layer is not None and layer.isdecimal() and 1 <= int(layer) <= n:
        visit["steering_layer"] = int(layer)
    elif layer is not None:
        not_here("layer")
    if not 1 <= visit.get("steering_layer", 0) <= n:
        visit["steering_layer"] = max(1, round(DEFAULT_DEPTH * n))
    visit.setdefault("steering_scale", 1.0)
    if scale is not None:
        visit["steering_scale"] = _number(scale)
    at = st.slider("After layer", 1, n, key="steering_layer", width=320) if n > 1 else 1
    strength = st.slider("Scale", -MOST_SCALE, MOST_SCALE, step=0.25, key="steering_scale", width=320)
    return int(at), float(strength)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise InputError(f"A scale is a number from {-MOST_SCALE:g} to {MOST_SCALE:g}, got {text[:20]!r}.") from None
    return min(MOST_SCALE, max(-MOST_SCALE, found)) if found == found else 1.0


def _decode(reading: Reading, towards: Reading, away: Reading, *, step: Step, **how: Any) -> Continuation:
    tokens = []
    for one in steering_steps(reading, towards, away, n=N, **how):
        tokens.append((one.token, one.probabilities[one.token].item()))
        step(len(tokens), N)
    return tuple(tokens)
