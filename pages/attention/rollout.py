"""“Rollout”: how much of each input token could have reached each position after every layer of a stack."""

from __future__ import annotations

import streamlit as st

from pages.shared.layout import caption
from pages.shared.picture import picture
from pages.shared.view import View
from xformer import viz
from xformer.analysis.attention_patterns import MOST_TOKENS
from xformer.reading import Reading


def rollout_panel(view: View, run: Reading) -> None:
    """Draw the rollout of each stack that the model has."""
    caption(
        "Half of a stream passes by each attention, half is mixed by the mean of its heads (Abnar & Zuidema 2020). "
        "Rollout multiplies these through the layers: it shows where information could have come from, by the patterns "
        "alone; what values, norms and feed-forward layers do to it is not in it."
    )
    for stack in ("encoder", "decoder") if view.is_pair else (None,):
        n = len(run.tokens_of(stack))
        if n > MOST_TOKENS:
            st.caption(f"{n} tokens: neighbours are drawn as one, {n} in at most {MOST_TOKENS} rows.")
        picture(view, f"rollout{'' if stack is None else f'-{stack}'}", viz.rollout, run, stack=stack)
