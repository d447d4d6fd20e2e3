"""What the model reads and predicts, as lanes of tokens, and beside them the verdict: how well it does on this input."""

from __future__ import annotations

import streamlit as st
import torch

from pages.components.prediction_strip import Editing, prediction_strip
from pages.shared import frame
from pages.shared.glossary import explained
from pages.shared.inputs import follow_edit
from pages.shared.view import View
from xformer.reading import Reading


def prediction_panel(view: View) -> None:
    """The lanes with their verdict at the right; on a phone below them."""
    line = {"key": "prediction", "horizontal": True, "wrap": False, "vertical_alignment": "center", "gap": "medium"}
    with frame.picture("strip"), st.container(**line):
        prediction_lanes(view)
        prediction_sentence(view)


def prediction_lanes(view: View, what: str = "") -> None:
    """The lanes of the original and, where there is one, of the changed run; `what` names the changes."""
    name = f"with {what or view.what_changed()}"
    lanes = view.kind.rows(view.original(), view.changed(), name)
    prediction_strip(lanes, key="strip", width="content", editing=editing(view))


def editing(view: View) -> Editing | None:
    """The tokens that can be changed in the lane of what is read; they are followed as a typed input is."""
    run = view.original()
    pieces = view.kind.pieces(run)
    read = run.ids("encoder" if run.is_pair else None) if pieces.texts else []
    starts = [at for at in range(len(read)) if tuple(read[at : at + len(view.source)]) == view.source]
    if not starts:
        return None
    texts = (*(text.strip() or text for text in pieces.texts[:-1]), "")
    return Editing(texts, starts[0] + pieces.first, lambda at, text: follow_edit(view.subject, pieces.texts, at, text))


def prediction_sentence(view: View, what: str = "") -> None:
    """The verdict: how many tokens are right, or how probable the actual ones are; with changes also what it was before."""
    original, changed = view.original(), view.changed()
    output, note = "logits" if original.has_logits else "output", ""
    if changed is not None and original[output].equal(changed[output]):
        verdict = "Exactly the same output: nothing changes."
    elif not original.has_logits:
        verdict = vectors_sentence(original, changed)
    elif not original.target_positions:
        verdict = "No output of this input has a known answer."
    else:
        verdict, note = view.kind.verdict(original, changed)
    notes = "\n\n".join(filter(None, [note, explained(verdict)]))
    with st.container(key="verdict", width="content"):
        st.markdown(verdict, help=notes or None)


def vectors_sentence(original: Reading, changed: Reading | None) -> str:
    """What a model without an output head gives, and with changes how far its vectors move."""
    if changed is None:
        n, width = original["output"].shape[1:]
        return f"This model has no output head: it gives a vector of {width:,} numbers for each of the {n} positions."
    before, after = original["output"][0].float(), changed["output"][0].float()  # [pos, d_model]
    if before.shape != after.shape:
        return f"It gives {len(after)} vectors instead of {len(before)}."
    cosines = torch.nn.functional.cosine_similarity(before, after, dim=-1)
    return (
        f"Cosine of the vectors with the original ones: {cosines.mean().item():.3f} on average, "
        f"{cosines.min().item():.3f} at the position that moves most."
    )
