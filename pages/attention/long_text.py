"""The panel “a long text”: the attention of a text of thousands of tokens, from exact sums over every head's pattern."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from pages.components import event_data, parse_index
from pages.components.elements import attention_map
from pages.compute.background_job import interruptible_progress
from pages.compute.byte_cache import budget, shared
from pages.compute.call import picture_call
from pages.compute.picture import footer, shown
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose_unlinked, download, validate_text
from pages.state.view import View
from xformer import analysis, viz
from xformer.adapters.attention_sums import BLOCK
from xformer.analysis.long_inputs import HEAD_SUMS
from xformer.errors import InputError, UnavailableError, XformerError
from xformer.layer_path import head_title
from xformer.long_inputs import AttentionSummary, attention_summary
from xformer.widgets.attention_map import attention_map as stand_alone
from xformer.widgets.attention_map import map_data

MAX_CHARACTERS = 100_000
SHARE = 4
"""One long text may take this part (1 / SHARE) of the memory of all cached values, and its queries and keys as much again."""
_one_at_a_time = threading.Lock()


def long_text_panel(view: View) -> None:
    """Ask for a long text, and draw what each head attends to in it."""
    if view.adapter.tokenizer is None or view.adapter.output != "next_token" or view.shape.is_encoder_decoder:
        raise UnavailableError("A long text needs a language model that reads text; choose one in the sidebar.")
    st.caption(
        "No pattern of a long text is kept, so it may have thousands of tokens. Every number is exact; it takes up to some "
        "minutes. Changes and masks of this screen do not apply, and the text is not part of the link."
    )
    st.text_area("A long text", key="long_text", max_chars=MAX_CHARACTERS, height=110, persist_state="session")
    with st.container(horizontal=True, gap="small"):
        st.button("Read it", key="long_text_read", type="primary", on_click=_read_typed)
        st.button("A needle in a haystack", key="long_text_needle", on_click=_read_needle, help=_NEEDLE_HELP)
    if text := st.session_state.get("long_text_shown"):
        try:
            _draw(view, _summary(view, text), text)
        except XformerError as error:
            st.warning(escape_markdown(str(error)))


_NEEDLE_HELP = "One sentence among many others, and a question for it at the end: which heads look at the answer?"


def _read_typed() -> None:
    st.session_state["long_text_shown"] = st.session_state.get("long_text", "")


def _read_needle() -> None:
    st.session_state["long_text"] = analysis.needle_text(14, 28)
    _read_typed()


def _summary(view: View, text: str) -> AttentionSummary:
    """The sums of a text, from the cache of all visitors. Raises `InputError` if they would take too much memory."""
    key, allowed = ("long_text", view.model, text), budget() // SHARE
    if shared.peek(key) is None:
        n = len(view.adapter.to_example(validate_text(text, MAX_CHARACTERS)).input_ids[0])
        if (needed := _bytes(view, n)) > allowed:
            most = int(n * allowed / needed)
            raise InputError(f"This text has {n:,} tokens, and about {most:,} fit into memory; use a shorter one.")

    def make() -> AttentionSummary:
        n_layers = len(view.shape.attention)
        with _alone(), interruptible_progress("Layers read") as step:
            summary = attention_summary(view.adapter, text, kept_bytes=allowed, step=lambda done: step(done, n_layers))
        summary.code = f'xformer.attention_summary({view.model!r}, open("text.txt").read())'
        return summary

    return shared.get(key, make)


def _bytes(view: View, n: int) -> int:
    """An upper bound for the size of the sums of n tokens: eight numbers per query or key of a head, and two per block."""
    return 4 * sum(view.shape.heads.values()) * (8 * n + 2 * (n // BLOCK + 1) ** 2)


@contextmanager
def _alone() -> Iterator[None]:
    """Work on one long text at a time, as each takes a processor. Raises `InputError` while another one is being read."""
    if not _one_at_a_time.acquire(blocking=False):
        raise InputError("Another visitor's long text is being read; try again in a minute.")
    try:
        yield
    finally:
        _one_at_a_time.release()


def _draw(view: View, summary: AttentionSummary, text: str) -> None:
    heads = [(at, head) for at, site in enumerate(summary.attention) for head in range(view.shape.heads[site.path])]
    keys = analysis.needle_keys(summary, text)
    layer, head = chosen = st.session_state.get("long_text_head", (None, None))
    if chosen not in heads:
        layer, head = st.session_state["long_text_head"] = _first_head(summary, keys)
    if finding := analysis.needle_finding(summary, text):
        st.markdown(escape_markdown(finding))

    def make() -> bytes:
        with _alone():  # the model runs again for a layer whose queries and keys were not kept
            return map_data(summary, layer=layer, head=head)[0]

    st.markdown(f"**{head_title(summary.path(layer), head, is_encoder_decoder=False)}**")
    data = shared.get(("long_map", view.model, text, layer, head), make)
    attention_map(data=data, key="long_map", on_head_change=_choose_head)
    calls = [
        picture_call(draw, summary, layer=layer, head=head)
        for draw in (viz.attention_by_distance, viz.attention_received)
    ]
    for call in calls:
        shown(view, call, f"long_{call.name}")
    st.session_state.setdefault("long_measure", MEASURES[0])
    measure = choose_unlinked("Measure of all heads", {one: one.replace("_", " ") for one in MEASURES}, "long_measure")
    every = picture_call(viz.head_sums, summary, measure=measure)
    shown(view, every, "long_heads")
    name = f"{view.model.split('/')[-1]}-{layer + 1}.{head + 1}.html"
    download("Save the map", lambda: stand_alone(summary, layer=layer, head=head).page, name, key="long_save")
    footer(view, "long_text", [every, *calls])


MEASURES = tuple(name for name in HEAD_SUMS if name != "other_documents")


def _choose_head() -> None:
    sent = event_data("long_map", "head")
    # One that does not exist is replaced when the map is drawn.
    st.session_state["long_text_head"] = (parse_index(sent.get("layer")), parse_index(sent.get("head")))


def _first_head(summary: AttentionSummary, keys: list[int]) -> tuple[int, int]:
    """The head that finds the needle best; without a needle, the first head of the middle layer."""
    if not keys:
        return len(summary.attention) // 2, 0
    best = analysis.attention_to(summary, keys=keys).to_dict("records")[0]
    return [site.path for site in summary.attention].index(best["layer"]), best["head"]
