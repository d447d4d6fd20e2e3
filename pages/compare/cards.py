"""Who plays: those of the link, what is looked at elsewhere, or whom a visitor has chosen; players come and go here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from pages.compare.comparison import (
    LARGEST_NUMBER,
    LETTERS,
    Choice,
    beside,
    first_choice,
    read_choice,
    show,
    state,
    usual_choices,
    why_not_playable,
    why_not_together,
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
from xformer.viz.theme import PLAYER_HUES


def ask_players(looked: LookedAt) -> tuple[Choice, ...]:
    """The players: those of the link, else what is looked at and a contrast to it, else those that a visitor chose here."""
    ours = state()
    ours.choices = _begin(looked)
    ours.looked_at = looked
    _paint()
    n = len(ours.choices)
    if why := ours.refused:
        st.warning(escape_markdown(why), icon=":material/block:")
        ours.refused = ""
    row = st.container(key="compare_seats")
    places = row.columns([*[1.0] * n, *([0.16 if n > 2 else 0.12] if n < len(LETTERS) else [])], gap="small")
    for index, (place, choice) in enumerate(zip(places, ours.choices, strict=False)):
        with place:
            card(index, choice, n)
    if n < len(LETTERS):
        places[-1].button(
            "", icon=":material/person_add:", help="One more player", on_click=_add, key="compare_add", width="stretch"
        )
    return tuple(ours.choices)


def players_in_link(choices: Sequence[Choice]) -> dict[str, str]:
    """The players as parameters of a link: a=…&b=…"""
    return {letter.lower(): choice.text for letter, choice in zip(LETTERS, choices, strict=False)}


def _begin(looked: LookedAt) -> list[Choice]:
    ours = state()
    wanted = [text for letter in LETTERS if (text := asked(letter.lower())) is not None]
    before = [] if wanted else [choice.text for choice in ours.choices]
    if wanted:
        ours.is_chosen = True
    elif not before or replace(looked, input="") != replace(ours.looked_at or looked, input=""):
        return _anew(looked, before)
    return _read(wanted or before) or _anew(looked, [])


def _anew(looked: LookedAt, before: list[str]) -> list[Choice]:
    """The first player is what is looked at; the others stay where somebody chose them and they can read its input."""
    ours, own = state(), first_choice(looked)
    others = _read(before)[1:] if ours.is_chosen else []
    if own is not None and others and why_not_together([own, *others]) is None:
        return [own, *others]
    ours.is_chosen = False
    return usual_choices() if own is None else [own, beside(own)]


def _read(texts: Sequence[str]) -> list[Choice]:
    """The players that links write; one alone gets a contrast, and what is none is left out aloud."""
    found = []
    for text in texts:
        try:
            found.append(read_choice(text))
        except InputError as error:
            st.warning(
                f"The player {escape_markdown(text[:80])} was left out. {escape_markdown(str(error))}",
                icon=":material/link_off:",
            )
    return [found[0], beside(found[0])] if len(found) == 1 else found


def _add() -> None:
    """The new one is the first player’s model as it was trained."""
    state().choices.append(Choice(state().choices[0].model))
    state().is_chosen = True


def _paint() -> None:
    """Every card carries the hue of its player."""
    rules = [
        f".st-key-compare_seat_{index} "
        f"{{ border-left: 6px solid {hue[is_dark()]} !important; padding: 0.35rem 0.6rem !important; }}"
        for index, hue in enumerate(PLAYER_HUES)
    ]
    rules.append(".st-key-compare_search_status:empty { display: none; }")
    st.html(f"<style>{' '.join(rules)}</style>")


def card(index: int, choice: Choice, n: int) -> None:
    """Draw the card of a player, one of n."""
    runs, of_run = run_weights.trained(), models.run_and_step(choice.model)
    chosen = choice.model if of_run is None else of_run[0]
    shipped = [name for name in models.shipped() if why_not_playable(name) is None]
    line: dict[str, Any] = {"horizontal": True, "wrap": False, "gap": "xsmall", "vertical_alignment": "center"}
    # Of two shipped models everything stands in one line; three and four cards are narrow, and a run has its step.
    is_one_line = n < 3 and of_run is None
    with st.container(border=True, key=f"compare_seat_{index}", gap="xsmall"):
        row = st.container(**line)
        row.markdown(f"**{LETTERS[index]}**", width="content")
        show(f"compare_model_{index}", chosen)
        row.selectbox(
            f"Model of player {LETTERS[index]}",
            list(dict.fromkeys([*shipped, *runs, chosen])),
            format_func=lambda name: f"▸ {runs[name]}" if name in runs else name,
            key=f"compare_model_{index}",
            on_change=_choose_model,
            args=(index,),
            label_visibility="collapsed",
        )
        second = row if is_one_line else st.container(**line)
        if of_run is not None:
            with second:
                _ask_step(index, *of_run, narrow=n < 3)
        # What is inside is drawn while it is open: a widget that is not on the screen misses what it is told.
        drawer = second.popover(
            escape_markdown(", ".join(choice.settings())) or "as trained",
            icon=":material/tune:" if is_one_line else None,
            width="stretch",
            key=f"compare_settings_{index}",
            on_change="rerun",
        )
        if drawer.open:
            with drawer:
                settings(index, choice)
        if n > 2:
            row.button(
                "",
                icon=":material/close:",
                key=f"compare_remove_{index}",
                help=f"Player {LETTERS[index]} leaves.",
                on_click=_remove,
                args=(index,),
                type="tertiary",
                width=36,
            )


def _ask_step(index: int, run: str, step: int | None, *, narrow: bool) -> None:
    show(f"compare_step_{index}", step)
    st.selectbox(
        f"Step of player {LETTERS[index]}",
        list(dict.fromkeys([*run_weights.steps_of(run), step])),
        format_func=lambda at: f"step {at:,}",
        key=f"compare_step_{index}",
        on_change=_choose_step,
        args=(index, run),
        label_visibility="collapsed",
        width=116 if narrow else "stretch",
    )


def _choose_model(index: int) -> None:
    """Another model keeps of the changes those that fit it."""
    model = models.resolved(st.session_state[f"compare_model_{index}"])
    if model is None or why_not_playable(model):
        state().refused = why_not_playable(model) or "" if model else "This run has no weights to look at yet."
        return
    choice = replace(state().choices[index], model=model, changes=())
    for text in state().choices[index].changes:
        more = replace(choice, changes=(*choice.changes, text))
        try:
            more.interventions()
        except XformerError:
            continue
        choice = more
    state().put(index, choice)


def _choose_step(index: int, run: str) -> None:
    step = st.session_state[f"compare_step_{index}"]
    state().put(index, replace(state().choices[index], model=f"{run}@{step}"))


def _remove(index: int) -> None:
    del state().choices[index]
    state().is_chosen = True


POSITIONS_OFF = "positions:off"


def settings(index: int, choice: Choice) -> None:
    """Draw the settings of one player."""
    changes_at, sampling_at = st.tabs(["What is changed", "How tokens are chosen"])
    with changes_at:
        _changes(index, choice)
    with sampling_at:
        _sampling(index, choice)


def _changes(index: int, choice: Choice) -> None:
    shape, key = choice.shape, f"compare_{index}"
    with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
        show(f"{key}_mask", choice.mask)
        st.segmented_control(
            "Attention mask",
            MASKS,
            required=True,
            key=f"{key}_mask",
            width="content",
            disabled=shape.is_read_only,
            on_change=lambda: state().put(index, replace(choice, mask=st.session_state[f"{key}_mask"])),
        )
        if shape.can_drop_positions:
            show(f"{key}_positions", POSITIONS_OFF in choice.changes)
            st.toggle(
                "Positions off",
                key=f"{key}_positions",
                help="Nothing tells the model where a token is.",
                on_change=lambda: _keep(
                    index, choice, [POSITIONS_OFF], [POSITIONS_OFF] * st.session_state[f"{key}_positions"]
                ),
            )
    heads = [f"silence:{path}.{head}" for path, n in shape.heads.items() for head in range(n) if not shape.is_read_only]
    if heads:
        _several("Silenced heads", heads, index, choice)
    if muted := [f"mute:{site.path}" for site in shape.feed_forward]:
        _several("Muted feed-forward layers", muted, index, choice)
    for text in choice.changes:
        if text not in {*heads, *muted, POSITIONS_OFF}:  # no list above shows it: it has a way back of its own
            st.button(
                escape_markdown(_label(text, choice)),
                icon=":material/close:",
                key=f"compare_{index}_undo_{text}",
                on_click=_keep,
                args=(index, choice, [text], []),
            )
    ask_one_more(index, choice)


def _several(title: str, texts: list[str], index: int, choice: Choice) -> None:
    """The changes among `texts` that are on, to be ticked and unticked."""
    key = f"compare_{index}_{title}"
    show(key, [text for text in texts if text in choice.changes])
    st.multiselect(
        title,
        texts,
        format_func=lambda text: _label(text, choice),
        key=key,
        on_change=lambda: _keep(index, choice, texts, st.session_state[key]),
        placeholder="as trained",
    )


def _keep(index: int, choice: Choice, among: Sequence[str], kept: Sequence[str]) -> None:
    """Of the changes `among` a player has those that are kept, after all others."""
    others = [text for text in choice.changes if text not in among]
    state().put(index, replace(choice, changes=(*others, *kept)))


def _sampling(index: int, choice: Choice) -> None:
    key = f"compare_{index}_dice"
    st.caption("A temperature of 0 takes the likeliest token; above, dice are thrown, the same ones for the same seed.")
    n_tokens = choice.shape.vocab_size
    numbers = choice.numbers
    numbers |= {"top_k": min(choice.sampling.top_k, n_tokens), "top_p": max(choice.sampling.top_p, 0.01)}
    for name, value in numbers.items():
        show(f"{key}_{name}", value)

    def changed() -> None:
        found = {name: st.session_state[f"{key}_{name}"] or 0 for name in numbers}
        sampling = Sampling(
            temperature=found["temperature"] if found["temperature"] >= 0.001 else 0.0,
            top_k=int(found["top_k"]),
            top_p=found["top_p"] or 1.0,
        )
        state().put(index, replace(choice, sampling=sampling, seed=int(found["seed"])))

    left, right = st.columns(2)
    for place, name, title, low, high, step in (
        (left, "temperature", "Temperature", 0.0, 100.0, 0.1),
        (right, "seed", "Seed of the dice", 0, LARGEST_NUMBER, 1),
        (left, "top_k", "Top k (0: all)", 0, n_tokens, 1),  # another model can have fewer tokens than before
        (right, "top_p", "Top p (1: all)", 0.01, 1.0, 0.05),
    ):
        look: dict[str, Any] = {"format": "%.2f"} if isinstance(low, float) else {}
        place.number_input(title, low, high, step=step, key=f"{key}_{name}", on_change=changed, **look)


def _label(text: str, choice: Choice) -> str:
    return choice.label(parse(text, choice.shape)[0])


KINDS = {
    "solo": "silence all other heads of a layer",
    "cut": "cut an edge",
    "open": "open an edge",
    "neuron": "silence a neuron",
    "token": "replace a token",
}


def ask_one_more(index: int, choice: Choice) -> None:
    """Choose a kind, then what it needs to know, and add it; or say why it cannot be."""
    shape, key = choice.shape, f"compare_{index}_more"
    left_out = {"neuron": not shape.neurons, "solo": shape.n_heads == 1}
    kinds = [kind for kind in KINDS if not left_out.get(kind)]
    with st.container(border=True, gap="xsmall"):
        kind = st.selectbox("One more change", kinds, format_func=KINDS.__getitem__, key=f"{key}_kind_{len(kinds)}")
        text = _ask(kind, key, choice, shape)
        problem = ""
        try:
            parse(",".join([*choice.changes, text]), shape)
        except XformerError as error:
            problem = str(error)
            st.caption(f":material/edit: {escape_markdown(problem)}")
        st.button(
            "Add it",
            key=f"{key}_add",
            disabled=bool(problem) or text in choice.changes,
            on_click=lambda: state().put(index, replace(choice, changes=(*_without_twin(choice, text), text))),
        )


def _ask(kind: str, key: str, choice: Choice, shape: ModelShape) -> str:
    """Widgets for what a change needs to know; returns it as a link writes it."""
    left, right = st.columns(2)
    if kind == "token":
        symbols, labels = choice.subject.input.replacements, choice.subject.labels
        position = left.number_input("Position", 0, shape.max_len - 1, 0, key=f"{key}_position")
        token = right.selectbox("becomes", symbols, format_func=labels.__getitem__, key=f"{key}_token_{len(symbols)}")
        return f"token:{position}.{token}"
    paths = list(shape.neurons if kind == "neuron" else shape.heads)
    place = f"{key}_ffn_{shape.n_layers}" if kind == "neuron" else f"{key}_path_{len(paths)}"
    path = left.selectbox("Layer", paths, format_func=partial(layer_title, is_pair=True), key=place)
    if kind == "neuron":
        return f"neuron:{path}.{right.number_input('Neuron', 0, shape.neurons[path] - 1, 0, key=f'{key}_neuron')}"
    heads = [*([] if kind == "solo" else ["*"]), *map(str, range(shape.heads[path]))]
    head = right.selectbox(
        "Head",
        heads,
        format_func=lambda one: "all" if one == "*" else str(int(one) + 1),
        key=f"{key}_head_{kind}_{len(heads)}",
    )
    if kind == "solo":
        return f"solo:{path}.{head}"
    query = left.number_input("Query (position)", 0, shape.max_len - 1, 0, key=f"{key}_query")
    at = right.number_input("Key (position)", 0, shape.max_len - 1, 0, key=f"{key}_key")
    return f"{kind}:{path}.{head}.{query}-{at}"


def _without_twin(choice: Choice, text: str) -> list[str]:
    """A token has one replacement: the new one takes the old one's place."""
    place = text.rsplit(".", 1)[0] + "."
    return [one for one in choice.changes if not (text.startswith("token:") and one.startswith(place))]
