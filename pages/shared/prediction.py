"""What the model reads and says on this input, as lanes of tokens, and in a sentence how well it did."""

from __future__ import annotations

import streamlit as st
import torch

from pages.components.prediction_strip import prediction_strip
from pages.shared import frame
from pages.shared.layout import caption
from pages.shared.view import View
from xformer.reading import Reading


def prediction_panel(view: View) -> None:
    """The lanes, and the sentence under them."""
    with frame.also("lanes"):
        prediction_lanes(view)
    prediction_sentence(view)


def prediction_lanes(view: View, what: str = "") -> None:
    """The lanes of the original and, where there is one, of the changed run; `what` names the changes."""
    name = f"says, {what or view.what_changed()}"
    prediction_strip(view.kind.rows(view.original(), view.changed(), name), key="strip")


def prediction_sentence(view: View, what: str = "") -> None:
    """How many tokens are right, or how surprised the model is where nothing is right or wrong; with changes, from where to
    where that goes."""
    original, changed, what = view.original(), view.changed(), what or view.what_changed()
    output = "logits" if original.has_logits else "output"
    if changed is not None and original[output].equal(changed[output]):
        st.info(f"With {what} the output is exactly the same: nothing changes.", icon=":material/equal:")
        return
    if not original.has_logits:
        caption(vectors_sentence(original, changed, what))
        return
    if not original.target_positions:
        caption("No output of this input has a known answer, so nothing here is right or wrong.")
        return
    caption(view.kind.sentence(original, changed, what), width="stretch")


def vectors_sentence(original: Reading, changed: Reading | None, what: str) -> str:
    """What a model without an output head gives, and with changes how far its vectors move."""
    if changed is None:
        n, width = original["output"].shape[1:]
        return f"This model has no output head: it gives a vector of {width:,} numbers for each of the {n} positions."
    before, after = original["output"][0].float(), changed["output"][0].float()  # [pos, d_model]
    if before.shape != after.shape:
        return f"With {what} it gives {len(after)} vectors instead of {len(before)}."
    cosines = torch.nn.functional.cosine_similarity(before, after, dim=-1)
    return (
        f"With {what} the vectors move: their cosine with the original ones is {cosines.min().item():.3f} at the position that "
        f"moves most, {cosines.mean().item():.3f} on average."
    )
