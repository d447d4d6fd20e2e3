"""The runs as cards: the attention that each ends with, its loss, how well it does, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.runs.chosen import TRAIN, Rows, run_panel
from pages.runs.table import settings_that_differ
from pages.shared import run_store, run_thumbnail
from pages.shared.escape_markdown import escape_markdown
from xformer.formatting import percent
from xformer.presets import PRESETS
from xformer.training.entry import DAMAGED, Entry
from xformer.training.limits import n_models
from xformer.training.run_store import exact_match

MENU = 440
"""CSS pixels: the height of a card's menu."""
MOST = 12
"""The most cards; the table has all runs."""
CHIPS = 3
"""The most settings on a card."""
SHIPPED = "reverse-small"
"""The shipped model whose card shows what a run will look like."""


def cards(
    entries: Sequence[Entry],
    rows: Mapping[str, Rows],
    all_entries: Sequence[Entry],
    who: str,
    chosen: Sequence[Entry] = (),
) -> None:
    """Draw a card for each run.

    Args:
        entries: The runs.
        rows: The reports of each run by its id.
        all_entries: All runs, among them the models of sweeps.
        who: The visitor.
        chosen: The runs whose metrics are offered together.
    """
    settings = settings_that_differ(entries)
    with st.container(horizontal=True, gap="small", key="cards"):
        for entry in entries:
            with st.container(border=True, width=run_thumbnail.CARD, gap="xsmall", key=f"card_{entry.id}"):
                menu = _card(entry, rows[entry.id], settings.loc[entry.id], all_entries)
            with menu, st.container(height=MENU, width=380, border=False):  # a menu that grew would not find room
                if menu.open:
                    run_panel(entry, chosen or [entry], all_entries, who)


def _card(entry: Entry, rows: Rows, settings: pd.Series, all_entries: Sequence[Entry]) -> Any:
    """Draw a card; returns its menu."""
    score = exact_match(entry, rows[-1] if rows else {})
    status = entry.state if score is None else f"{entry.state} · **{percent(score, 1)}** exact match"
    shown, shown_rows = entry, rows
    if entry.sweep is not None:
        status = f"{entry.state} · {n_models(entry)} models, one in the picture"
        if models := [one for one in all_entries if one.sweep_of == entry.id]:
            shown = max(models, key=lambda one: one.figures.get("exact_match", -1.0))
            shown_rows = run_store.store().rows(shown.id)
    if not run_thumbnail.draw_run(shown, shown_rows):
        st.caption("Its picture comes with its first weights.")
    st.markdown(f"**{escape_markdown(entry.name)}**  \n:small[{status}]")
    if entry.message and entry.state in (DAMAGED, "failed"):
        st.text(entry.message)
    if chips := _chips(settings):
        st.markdown(chips)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.page_link(TRAIN, label="Open", icon=":material/movie:", query_params={"run": entry.id}, width="stretch")
        return st.popover(
            ":material/more_horiz:", help="Rename, open on a screen, download, delete", type="tertiary",
            key=f"runs_menu_{entry.id}", on_change="rerun",
        )  # fmt: skip


def _chips(settings: pd.Series) -> str:
    """The first settings that differ between runs, as Markdown."""
    known = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.dropna().items()
    ]
    chips = [f"`{' '.join(chip.replace('`', ' ').split())}`" for chip in known[:CHIPS]]
    return " ".join(chips + [f":small[+{len(known) - CHIPS}]"] * (len(known) > CHIPS))


def shipped_card() -> None:
    """What a run looks like: the card of a shipped model."""
    with st.container(border=True, width=run_thumbnail.CARD, gap="xsmall", key="card_shipped"):
        run_thumbnail.draw_shipped(SHIPPED)
        st.markdown(f"**{PRESETS[SHIPPED].title}**  \n:small[{SHIPPED}, shipped]")
