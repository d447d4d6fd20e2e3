"""How a model was trained, and how well it does on inputs that it never saw: what its card says."""

from __future__ import annotations

from typing import Any

import streamlit as st

from pages.shared.model_card import card_of_model
from pages.shared.view import View
from xformer.sources import credit
from xformer.words import percent


def training_panel(view: View) -> None:
    """The tiles of its figures, and the recipe that led to them."""
    card = card_of_model(view.model)
    if isinstance(about := card.get("about"), str):
        st.text(about)
    if of := credit(card.get("preset")):
        st.caption(of)
    figures, recipe = card.get("figures") or card.get("reported"), card.get("train")
    if not isinstance(figures, dict) or not isinstance(recipe, dict):
        st.caption(
            "Nothing had been scored yet at this step." if recipe else "This model carries no record of its training."
        )
        return
    tiles = st.columns(4)
    measure, value, meaning = view.kind.score(view.subject, figures)
    tiles[0].metric(measure + figures.get("at", ""), value, help=meaning, border=True)
    seed = figures.get("seed", card["seed"])
    tiles[1].metric("On unseen inputs", f"{figures['samples']:,}", help=f"From seed {seed}.", border=True)
    tiles[2].metric("Training steps", f"{card['step']:,}", help=f"{recipe['batch_size']} inputs each.", border=True)
    tiles[3].metric("Training time", f"{card['seconds']:.1f} s", help=f"On a {card['device'].upper()}.", border=True)
    if isinstance(edges := figures.get("edge_cases"), dict):
        st.caption(edge_cases(edges))
    st.caption(
        f"Seed {card['seed']}, AdamW, learning rate up to {recipe['peak_lr']:g}, "
        f"warm-up over {recipe['warmup']:.0%} of the steps, then {recipe['decay']} decay."
    )


def edge_cases(edges: dict[str, Any]) -> str:
    """How well a model does on the inputs at the edge of its task, which chance hardly ever draws."""
    share, n = edges["exact_match"], edges["samples"]
    right = f"all {n:,}" if share == 1.0 else f"{round(share * n):,} of {n:,} ({percent(share)})"
    return f"On the edge cases of its task, which chance hardly ever draws, it gets {right} wholly right."
