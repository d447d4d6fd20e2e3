"""What is changed for one player alone: its mask, heads, feed-forward layers and whatever else, and how it chooses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.compare.comparison import LARGEST_NUMBER, Choice, show, state
from pages.compare.one_more import ask_one_more
from pages.shared.escape_markdown import escape_markdown
from pages.shared.resources import MASKS
from xformer.decoding import Sampling
from xformer.interventions import parse

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
