"""The cards of the compared models: each one's model, training step, changes and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from pages.compare.comparison import (
    LARGEST_NUMBER,
    LETTERS,
    ModelSettings,
    contrast_to,
    default_variants,
    first_variant,
    incomparable_reason,
    incompatibility_reason,
    read_variant,
    show,
    state,
)
from pages.shared import models, run_weights
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import is_dark
from pages.shared.link import asked
from pages.shared.resources import MASKS
from pages.shared.session import LookedAt
from xformer.decoding import Sampling
from xformer.errors import InputError, XformerError
from xformer.interventions import parse
from xformer.model_shape import ModelShape
from xformer.site import layer_title
from xformer.viz.theme import MODEL_HUES

POSITIONS_OFF = "positions:off"
OTHER_CHANGES = {
    "solo": "ablate all other heads of a layer",
    "cut": "cut an edge",
    "open": "open an edge",
    "neuron": "ablate a neuron",
    "token": "replace a token",
}
"""Changes for which there are too many places to list."""


def ask_variants(looked: LookedAt) -> tuple[ModelSettings, ...]:
    """Draw the cards; the variants are those of the link, else those chosen here, else the model of the other screens."""
    ours = state()
    ours.variants = _begin(looked)
    ours.looked_at = looked
    _paint()
    n = len(ours.variants)
    if ours.refused:
        st.warning(escape_markdown(ours.refused), icon=":material/block:")
        ours.refused = ""
    for index, variant in enumerate(ours.variants):
        _card(index, variant, n)
    if n < len(LETTERS):
        st.button("Add a model", icon=":material/add:", on_click=_add, key="compare_add", width="stretch")
    return tuple(ours.variants)


def variants_in_link(variants: Sequence[ModelSettings]) -> dict[str, str]:
    """The variants as parameters of a link: a=…&b=…"""
    return {letter.lower(): variant.text for letter, variant in zip(LETTERS, variants, strict=False)}


def _begin(looked: LookedAt) -> list[ModelSettings]:
    ours = state()
    wanted = [text for letter in LETTERS if (text := asked(letter.lower())) is not None]
    before = [] if wanted else [variant.text for variant in ours.variants]
    if wanted:
        ours.is_chosen = True
    elif not before or replace(looked, input="") != replace(ours.looked_at or looked, input=""):
        return _anew(looked, before)
    return _read(wanted or before) or _anew(looked, [])


def _anew(looked: LookedAt, before: list[str]) -> list[ModelSettings]:
    """Start with the model of the other screens; keep the other variants where the visitor chose them and they fit."""
    ours, own = state(), first_variant(looked)
    others = _read(before)[1:] if ours.is_chosen else []
    if own is not None and others and incompatibility_reason([own, *others]) is None:
        return [own, *others]
    ours.is_chosen = False
    return default_variants() if own is None else [own, contrast_to(own)]


def _read(texts: Sequence[str]) -> list[ModelSettings]:
    """Parse variants; one alone gets a contrast, and an invalid one is left out with a warning."""
    found = []
    for text in texts:
        try:
            found.append(read_variant(text))
        except InputError as error:
            st.warning(
                f"The model {escape_markdown(text[:80])} was left out. {escape_markdown(str(error))}",
                icon=":material/link_off:",
            )
    return [found[0], contrast_to(found[0])] if len(found) == 1 else found


def _add() -> None:
    """Add the first variant's model as it was trained."""
    state().variants.append(ModelSettings(state().variants[0].model))
    state().is_chosen = True


def _paint() -> None:
    """Give each card the hue of its variant."""
    rules = [
        f".st-key-compare_seat_{index} "
        f"{{ border-left: 6px solid {hue[is_dark()]} !important; padding: 0.35rem 0.6rem !important; }}"
        for index, hue in enumerate(MODEL_HUES)
    ]
    rules.append(".st-key-compare_search_status:empty { display: none; }")
    st.html(f"<style>{' '.join(rules)}</style>")


def _card(index: int, variant: ModelSettings, n: int) -> None:
    """Draw the card of one of n variants."""
    runs, of_run = run_weights.trained(), models.run_and_step(variant.model)
    chosen = variant.model if of_run is None else of_run[0]
    shipped = [name for name in models.shipped() if incomparable_reason(name) is None]
    line: dict[str, Any] = {"horizontal": True, "wrap": False, "gap": "xsmall", "vertical_alignment": "center"}
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = st.container(**line)
        row.markdown(f"**{LETTERS[index]}**", width="content")
        show(f"compare_model_{index}", chosen)
        row.selectbox(
            f"Model {LETTERS[index]}",
            list(dict.fromkeys([*shipped, *runs, chosen])),
            format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
            key=f"compare_model_{index}",
            on_change=_choose_model,
            args=(index,),
            label_visibility="collapsed",
        )
        second = st.container(**line)
        if of_run is not None:
            with second:
                _ask_step(index, *of_run)
        # The widgets inside are drawn only while it is open: a hidden widget would keep an outdated value.
        drawer = second.popover(
            escape_markdown(", ".join(variant.settings())) or "as trained",
            width="stretch",
            key=f"compare_settings_{index}",
            on_change="rerun",
        )
        if drawer.open:
            with drawer:
                changes_at, sampling_at = st.tabs(["Changes", "Sampling"])
                with changes_at:
                    _changes(index, variant)
                with sampling_at:
                    _sampling(index, variant)
        if n > 2:
            look: dict[str, Any] = {"icon": ":material/close:", "type": "tertiary", "width": 36}
            help = f"Remove model {LETTERS[index]}"
            row.button("", key=f"compare_remove_{index}", help=help, on_click=_remove, args=(index,), **look)


def _ask_step(index: int, run: str, step: int | None) -> None:
    show(f"compare_step_{index}", step)
    st.selectbox(
        f"Step of model {LETTERS[index]}",
        list(dict.fromkeys([*run_weights.steps_of(run), step])),
        format_func="step {:,}".format,
        key=f"compare_step_{index}",
        on_change=_choose_step,
        args=(index, run),
        label_visibility="collapsed",
        width=116,
    )


def _choose_model(index: int) -> None:
    """Change the model and keep the changes that fit it."""
    model, before = models.resolved(st.session_state[f"compare_model_{index}"]), state().variants[index]
    reason = "This run has no weights yet." if model is None else incomparable_reason(model)
    if model is None or reason:
        state().refused = reason or ""
        return
    variant = replace(before, model=model, changes=())
    for text in before.changes:
        more = replace(variant, changes=(*variant.changes, text))
        try:
            more.interventions()
        except XformerError:
            continue
        variant = more
    state().put(index, variant)


def _choose_step(index: int, run: str) -> None:
    step = st.session_state[f"compare_step_{index}"]
    state().put(index, replace(state().variants[index], model=f"{run}@{step}"))


def _remove(index: int) -> None:
    del state().variants[index]
    state().is_chosen = True


def _changes(index: int, variant: ModelSettings) -> None:
    shape, key = variant.shape, f"compare_{index}"
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        show(f"{key}_mask", variant.mask)
        st.segmented_control(
            "Attention mask",
            MASKS,
            required=True,
            key=f"{key}_mask",
            width="content",
            disabled=shape.is_read_only,
            on_change=lambda: state().put(index, replace(variant, mask=st.session_state[f"{key}_mask"])),
        )
        if shape.can_drop_positions:
            show(f"{key}_positions", POSITIONS_OFF in variant.changes)
            kept = [POSITIONS_OFF]
            st.toggle(
                "Positions off",
                key=f"{key}_positions",
                help="The model gets no positional information.",
                on_change=lambda: _keep(index, variant, kept, kept * st.session_state[f"{key}_positions"]),
            )
    heads = [f"ablate:{path}.{head}" for path, n in shape.heads.items() for head in range(n) if not shape.is_read_only]
    layers = [f"ablate:{site.path}" for site in shape.feed_forward]
    for name, title, texts in (
        ("heads", "Ablated heads (set to zero)", heads),
        ("ffn", "Ablated feed-forward layers (set to zero)", layers),
    ):
        if texts:
            _ask_several(f"{key}_{name}", title, texts, index, variant)
    for text in variant.changes:
        if text not in {*heads, *layers, POSITIONS_OFF}:
            st.button(
                escape_markdown(_label(text, variant)),
                icon=":material/close:",
                key=f"compare_{index}_undo_{text}",
                on_click=_keep,
                args=(index, variant, [text], []),
            )
    _ask_other(index, variant)


def _ask_several(key: str, title: str, texts: list[str], index: int, variant: ModelSettings) -> None:
    """A list from which the changes among `texts` are ticked and unticked."""
    show(key, [text for text in texts if text in variant.changes])
    st.multiselect(
        title,
        texts,
        format_func=lambda text: _label(text, variant),
        key=key,
        on_change=lambda: _keep(index, variant, texts, st.session_state[key]),
        placeholder="as trained",
    )


def _keep(index: int, variant: ModelSettings, among: Sequence[str], kept: Sequence[str]) -> None:
    """Of the changes `among` keep only those `kept`, behind all other changes."""
    others = [text for text in variant.changes if text not in among]
    state().put(index, replace(variant, changes=(*others, *kept)))


def _label(text: str, variant: ModelSettings) -> str:
    return variant.label(parse(text, variant.shape)[0])


def _sampling(index: int, variant: ModelSettings) -> None:
    key, n_tokens, numbers = f"compare_{index}_dice", variant.shape.vocab_size, variant.numbers
    st.caption(
        "At temperature 0 the likeliest token is taken; above 0 it is sampled, and a seed gives the same sample."
    )
    numbers |= {"top_k": min(variant.sampling.top_k, n_tokens), "top_p": max(variant.sampling.top_p, 0.01)}
    for name, value in numbers.items():
        show(f"{key}_{name}", value)

    def changed() -> None:
        found = {name: st.session_state[f"{key}_{name}"] or 0 for name in numbers}
        temperature = found["temperature"] if found["temperature"] >= 0.001 else 0.0
        sampling = Sampling(temperature=temperature, top_k=int(found["top_k"]), top_p=found["top_p"] or 1.0)
        state().put(index, replace(variant, sampling=sampling, seed=int(found["seed"])))

    left, right = st.columns(2)
    for place, name, title, low, high, step in (
        (left, "temperature", "Temperature", 0.0, 100.0, 0.1),
        (right, "seed", "Seed", 0, LARGEST_NUMBER, 1),
        (left, "top_k", "Top k (0: all)", 0, n_tokens, 1),
        (right, "top_p", "Top p (1: all)", 0.01, 1.0, 0.05),
    ):
        look: dict[str, Any] = {"format": "%.2f"} if isinstance(low, float) else {}
        place.number_input(title, low, high, step=step, key=f"{key}_{name}", on_change=changed, **look)


def _ask_other(index: int, variant: ModelSettings) -> None:
    """Choose another kind of change and its place, and add it."""
    shape, key = variant.shape, f"compare_{index}_more"
    left_out = {"neuron": not shape.neurons, "solo": shape.n_heads == 1}
    kinds = [kind for kind in OTHER_CHANGES if not left_out.get(kind)]
    with st.container(border=True, gap="xsmall"):
        kind = st.selectbox(
            "Another change", kinds, format_func=OTHER_CHANGES.__getitem__, key=f"{key}_kind_{len(kinds)}"
        )
        text, problem = _ask_place(kind, key, variant, shape), ""
        try:
            parse(",".join([*variant.changes, text]), shape)
        except XformerError as error:
            problem = str(error)
            st.caption(f":material/edit: {escape_markdown(problem)}")
        replaced = text.rsplit(".", 1)[0] + "." if kind == "token" else text  # a token has one replacement
        others = [one for one in variant.changes if not one.startswith(replaced)]
        st.button(
            "Add",
            key=f"{key}_add",
            disabled=bool(problem) or text in variant.changes,
            on_click=lambda: state().put(index, replace(variant, changes=(*others, text))),
        )


def _ask_place(kind: str, key: str, variant: ModelSettings, shape: ModelShape) -> str:
    """Ask where to apply a change; returns it as a link writes it."""
    left, right = st.columns(2)
    last = shape.max_len - 1
    if kind == "token":
        symbols, labels = variant.subject.input.replacements, variant.subject.labels
        position = left.number_input("Position", 0, last, 0, key=f"{key}_position")
        token = right.selectbox("becomes", symbols, format_func=labels.__getitem__, key=f"{key}_token_{len(symbols)}")
        return f"token:{position}.{token}"
    paths = list(shape.neurons if kind == "neuron" else shape.heads)
    place = f"{key}_ffn_{shape.n_layers}" if kind == "neuron" else f"{key}_path_{len(paths)}"
    path = left.selectbox("Layer", paths, format_func=partial(layer_title, is_pair=True), key=place)
    if kind == "neuron":
        return f"ablate:{path}.{right.number_input('Neuron', 0, shape.neurons[path] - 1, 0, key=f'{key}_neuron')}"
    heads = [*([] if kind == "solo" else ["*"]), *map(str, range(shape.heads[path]))]
    head = right.selectbox(
        "Head",
        heads,
        format_func=lambda one: "all" if one == "*" else str(int(one) + 1),
        key=f"{key}_head_{kind}_{len(heads)}",
    )
    if kind == "solo":
        return f"solo:{path}.{head}"
    query = left.number_input("Query (position)", 0, last, 0, key=f"{key}_query")
    at = right.number_input("Key (position)", 0, last, 0, key=f"{key}_key")
    return f"{kind}:{path}.{head}.{query}-{at}"
