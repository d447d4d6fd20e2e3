"""What the selected run is: its name and tags, which its owner can change, where it stands, and how good it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from pages.runs.table import runs_state
from pages.shared import run_commands, run_store
from xformer.training.entry import Entry
from xformer.training.latest_metrics import has_no_answer
from xformer.words import percent


def description(entry: Entry, mine: bool, every_tag: Sequence[str]) -> None:
    """Draw it; whoever does not control the run looks on."""
    _name_and_tags(entry, mine, every_tag)
    _facts(entry, mine)


def _name_and_tags(entry: Entry, mine: bool, every_tag: Sequence[str]) -> None:
    name, tags = f"runs_name_{entry.id}", f"runs_tags_{entry.id}"
    if st.session_state.get(f"{name}_was") != entry.name:  # renamed elsewhere
        st.session_state[name] = st.session_state[f"{name}_was"] = entry.name
    if st.session_state.get(f"{tags}_was") != entry.tags:
        st.session_state[tags], st.session_state[f"{tags}_was"] = list(entry.tags), entry.tags
    st.text_input("Name", key=name, disabled=not mine, on_change=_rename, args=(entry.id,))
    st.multiselect(
        "Tags",
        sorted({*every_tag, *entry.tags}),
        key=tags,
        disabled=not mine,
        accept_new_options=True,
        max_selections=12,
        placeholder="type a new tag" if mine else "none",
        on_change=_tag,
        args=(entry.id,),
    )


def _facts(entry: Entry, mine: bool) -> None:
    of = f" of {entry.train['steps']:,}" if "steps" in entry.train else ""  # not so in a damaged one
    device = f" on {entry.device}" if entry.device else ""
    if not mine:
        st.caption("Started by someone else: you are looking on.")
    if entry.private and not run_store.is_open():  # there everyone may see everything
        with st.container(horizontal=True, vertical_alignment="center", key="runs_private"):
            st.caption(":material/lock: Only you see this run.", width="content")
            st.button("Share with everyone here", on_click=_share, args=(entry.id,), key=f"runs_share_{entry.id}")
    st.caption(f"**{entry.state}** · step {entry.step:,}{of} · {entry.seconds:.1f} s{device} · `{entry.id}`")
    if samples := entry.figures.get("samples"):
        share, loss = entry.figures.get("exact_match", 0.0), entry.figures.get("loss", 0.0)
        is_text = has_no_answer(entry)
        how = f"{loss / math.log(2):.3f} bits per character" if is_text else f"{percent(share)} exact match"
        st.caption(f"{how} on {samples:,} unseen inputs.")
    if entry.title != entry.name and entry.title:
        st.text(entry.title)
    if entry.message:
        st.text(entry.message)


def _rename(run: str) -> None:
    if not runs_state().attempt(lambda: run_commands.rename(run, st.session_state[f"runs_name_{run}"])):
        st.session_state.pop(f"runs_name_{run}_was", None)  # show what it is called still


def _tag(run: str) -> None:
    if not runs_state().attempt(lambda: run_commands.tag(run, st.session_state[f"runs_tags_{run}"])):
        st.session_state.pop(f"runs_tags_{run}_was", None)


def _share(run: str) -> None:
    runs_state().attempt(lambda: run_commands.share(run))
