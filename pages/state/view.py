"""The view of a screen: the model, its input, the mask and the changes, the resulting runs, and their predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st
import torch

from pages.components.elements import Editing, prediction_strip
from pages.compute import cached_runs
from pages.compute.cached_runs import RunKey
from pages.controls import embed
from pages.controls.text import escape_markdown, explained
from pages.state import link as link_of_screen
from pages.state.inputs import InputKind, follow_edit, kind_of
from pages.state.link import keep_widget_value
from xformer.adapters import Input, ModelAdapter, TaskModel, own_model, own_task_model
from xformer.analysis.embeddings import token_labels
from xformer.config import ModelConfig
from xformer.edit_links import EditLink, join_edits, parse_edits
from xformer.edits import SetEdges
from xformer.errors import EditError
from xformer.layer_path import layer_title
from xformer.model_shape import ModelShape
from xformer.reading import Reading
from xformer.tasks import Task

ORIGINAL = "original"
"""The name of the unchanged run."""
OFF = "positions:off"
"""The edit that removes all position information."""


@dataclass(frozen=True)
class View:
    """The state in the link: the model, its input, the mask and the changes."""

    model: str
    source: tuple[int, ...]
    mask: str
    adapter: ModelAdapter
    edit_links: tuple[EditLink, ...]
    waiting: tuple[EditLink, ...] = ()
    """Changes of the link that this input is too short for. They are not applied until the input is longer."""

    @property
    def is_changed(self) -> bool:
        """Whether a mask or an edit changes the run."""
        return self.mask != cached_runs.MASKS[0] or bool(self.edit_links)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has two stacks, an encoder and a decoder."""
        return self.shape.is_encoder_decoder

    @property
    def shape(self) -> ModelShape:
        """The shape of the model, own or external."""
        return self.adapter.shape

    @property
    def input(self) -> Input:
        """The input specification of the model."""
        return self.adapter.input

    @property
    def kind(self) -> InputKind:
        """The `InputKind` that draws the input on screens."""
        return kind_of(self.adapter)

    @property
    def task(self) -> Task | None:
        """The task of one of xformer's own models; None for an external model."""
        return self.adapter.task if isinstance(self.adapter, TaskModel) else None

    @property
    def own(self) -> TaskModel:
        """The adapter of one of xformer's own models. Raises `UnavailableError` for an external model."""
        return own_task_model(self.adapter)

    @property
    def config(self) -> ModelConfig:
        """The configuration of one of xformer's own models. Raises `UnavailableError` for an external model."""
        return own_model(self.adapter).config

    @property
    def on(self) -> frozenset[str]:
        """The active edits, as written in the link."""
        return frozenset(edit_link.text for edit_link in self.edit_links)

    def original(self) -> Reading:
        """Return the unchanged run on this input."""
        return cached_runs.run(*self.key(ORIGINAL))

    def changed(self) -> Reading | None:
        """Return the run under the chosen mask and edits; None if there are none."""
        return cached_runs.run(*self.key(self.change_summary())) if self.is_changed else None

    @property
    def compared(self) -> tuple[Reading, dict[str, Any]]:
        """The run to draw and keyword arguments: the changed run with `before=` the original, or the original alone."""
        changed = self.changed()
        return (self.original(), {}) if changed is None else (changed, {"before": self.original()})

    def runs(self) -> dict[str, Reading]:
        """Return the original and, if any, the changed run, by name."""
        return {name: cached_runs.run(*self.key(name)) for name in dict.fromkeys((ORIGINAL, self.shown))}

    @property
    def shown(self) -> str:
        """The name of the changed run, if any, else of the original run."""
        return self.change_summary() if self.is_changed else ORIGINAL

    def key(self, name: str) -> RunKey:
        """Return the arguments of `cached_runs.run` for the run of that name."""
        if name == ORIGINAL:
            return self.model, self.source, cached_runs.MASKS[0], ""
        return self.model, self.source, self.mask, join_edits(self.edit_links)

    def longest_trained(self, stack: str | None = None) -> int:
        """Return the largest number of positions of a stack in training."""
        source, target = self.own.task.longest
        return target if stack == "decoder" and target else source

    def layer_title(self, path: str) -> str:
        """Return the title of a layer on screen."""
        return layer_title(path, is_encoder_decoder=self.is_encoder_decoder)

    def name_of(self, edit_link: EditLink) -> str:
        """Return the label of an edit on screen, as Markdown."""
        return escape_markdown(name_of(edit_link, self.adapter))

    def change_summary(self) -> str:
        """Summarise the changes in a few words, for a lane or a legend."""
        n = len(self.edit_links)
        return " + ".join(cached_runs.mask_words(self.mask) + ([f"{n} change{'s' if n > 1 else ''}"] if n else []))

    @property
    def link(self) -> dict[str, str]:
        """The link parameters of the view."""
        shown = {"model": self.model, "input": self.input.text(self.source), "mask": self.mask}
        requested = (*self.edit_links, *self.waiting)
        return shown | ({"edits": join_edits(requested)} if requested else {})

    def with_fitting_changes(self) -> View:
        """Return the view in which changes at positions that the input does not have are `waiting`."""
        waiting = tuple(one for one in self.edit_links if not self._fits(one))
        return replace(self, edit_links=tuple(one for one in self.edit_links if one not in waiting), waiting=waiting)

    def _fits(self, change: EditLink) -> bool:
        if change.replaced is not None:
            return change.replaced[0] < len(self.source) or bool(self.shape.image)
        cuts = [edit for edit in change.edits if isinstance(edit, SetEdges)]
        shapes = [self.original()[edit.name.removesuffix(".mask") + ".pattern"].shape[-2:] for edit in cuts]
        edges = [(edge, shape) for edit, shape in zip(cuts, shapes, strict=True) for edge in edit.edges]
        return all(query < n_query and key < n_key for (query, key), (n_query, n_key) in edges)

    def share(self, **more: str) -> None:
        """Put the view and further parameters of the screen into the address bar."""
        link_of_screen.share({**self.link, **more})


def name_of(edit_link: EditLink, adapter: ModelAdapter) -> str:
    """Return the label of an edit, with the text of a replaced token."""
    if edit_link.replaced is None:
        return edit_link.label
    position, token = edit_link.replaced
    if side := adapter.shape.image:
        return f"pixel y{position // side + 1} x{position % side + 1} becomes {token}"
    return f"position {position} reads {token_labels(adapter)[token]}"


def run_title(name: str) -> str:
    """Return the heading of one of two pictures: "Original" or "With" and the name of the change."""
    return "Original" if name == ORIGINAL else f"With {name}"


def requested_edits() -> list[str]:
    """Return the texts of the requested edits, including those that do not fit the model."""
    return [word for word in st.session_state.get("edits", "").split(",") if word]


def toggle_edit(*texts: str) -> None:
    """Add edits, or remove those that are active. A callback; elsewhere, call `st.rerun()` afterwards."""
    active = requested_edits()
    for text in texts:
        if text in active:
            active.remove(text)
        else:
            active.append(text)
    st.session_state["edits"] = ",".join(active)


def switch(label: str, text: str, is_on: bool, *, key: str = "", disabled: bool = False, **look: Any) -> None:
    """Draw a button that switches one edit on and off; it can always be switched off."""
    kind: Any = "primary" if is_on else "secondary"
    look |= {"on_click": toggle_edit, "args": (text,), "disabled": disabled and not is_on}
    st.button(label, type=kind, key=key or f"switch_{text}", **look)


def edits_on(shape: ModelShape) -> tuple[EditLink, ...]:
    """Return the active edits; those that do not fit this model are ignored with a warning."""
    kept: list[str] = []
    for word in requested_edits():
        try:
            parse_edits(",".join([*kept, word]), shape)
        except EditError as error:
            st.warning(f"A change was ignored. {escape_markdown(str(error))}", icon=":material/link_off:")
        else:
            kept.append(word)
    found = parse_edits(",".join(kept), shape)
    st.session_state["edits"] = join_edits(found)
    return found


def _use_own_mask() -> None:
    st.session_state["mask"] = cached_runs.MASKS[0]


def _clear_changes() -> None:
    st.session_state["edits"] = ""
    _use_own_mask()


def show_chips(view: View) -> None:
    """Draw a button for each active change, which removes it."""
    # The container is drawn even if it is empty: if it appeared later, the browser would rebuild everything below.
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="chips"):
        if not view.is_changed and not view.waiting:
            return
        st.markdown("**Changed:**", width="content")
        for mask in cached_runs.mask_words(view.mask):
            chip(mask, "mask", _use_own_mask)
        for edit_link in (*view.edit_links, *view.waiting):
            remove, is_waiting = partial(toggle_edit, edit_link.text), edit_link in view.waiting
            chip(view.name_of(edit_link), edit_link.text, remove, is_waiting=is_waiting)
        if len(view.edit_links) + len(view.waiting) + (view.mask != cached_runs.MASKS[0]) > 1:
            st.button("Undo all", on_click=_clear_changes, type="tertiary", key="chip_all")


def chip(label: str, key: str, remove: Callable[[], None], *, is_waiting: bool = False) -> None:
    """Draw a button that removes a change; one that waits is for positions that the input does not have."""
    icon, help = ":material/close:", None
    if is_waiting:
        label, icon = f"{label} · not in this input", ":material/link_off:"
        help = "It is applied again when the input has these positions. Click to remove it."
    st.button(label, icon=icon, key=f"chip_{key}", on_click=remove, help=help)


def ask_mask(shape: ModelShape) -> str:
    """Draw the mask selector and return one of `cached_runs.MASKS`."""
    if shape.is_read_only or st.session_state.get("mask") not in cached_runs.MASKS:
        st.session_state["mask"] = cached_runs.MASKS[0]
    keep_widget_value("mask")
    help = "Causal: a position attends to itself and earlier positions. Full: to all positions. The model runs again."
    ask = partial(st.segmented_control, required=True, key="mask", persist_state="session", width="stretch")
    mask = ask("Attention mask", cached_runs.MASKS, disabled=shape.is_read_only, help=help)
    assert mask is not None  # required, and set above
    return mask


def prediction_panel(view: View, changed: Reading | None = None, name: str = "") -> None:
    """Draw the lanes of tokens with the verdict at their right, or below them on a phone.

    Args:
        view: The view.
        changed: A run that a screen changed in its own way, in place of the changed run of the view.
        name: The name of that run.
    """
    if changed is None:
        changed, name = view.changed(), f"with {view.change_summary()}"
    line = partial(st.container, horizontal=True, wrap=False, vertical_alignment="center", gap="medium")
    with embed.picture("strip"), line(key="prediction"):
        lanes = view.kind.rows(view.original(), changed, name)
        prediction_strip(lanes, key="strip", width="content", editing=editing(view))
        _verdict(view, changed)


def editing(view: View) -> Editing | None:
    """Return the tokens that can be edited in the lane of the input; None if they cannot be edited."""
    run = view.original()
    pieces = view.kind.pieces(run)
    read = run.ids("encoder" if run.is_encoder_decoder else None) if pieces.texts else []
    starts = [at for at in range(len(read)) if tuple(read[at : at + len(view.source)]) == view.source]
    if not starts:
        return None
    texts = (*(text.strip() or text for text in pieces.texts[:-1]), "")
    return Editing(texts, starts[0] + pieces.first, lambda at, text: follow_edit(view.adapter, pieces.texts, at, text))


def _verdict(view: View, changed: Reading | None) -> None:
    """Draw how many tokens are right, or how probable the actual ones are, before and after any changes."""
    original = view.original()
    output, note = "logits" if original.has_logits else "output", ""
    if changed is not None and original[output].equal(changed[output]):
        verdict = "Exactly the same output: nothing changes."
    elif not original.has_logits:
        verdict = _vectors_sentence(original, changed)
    elif not original.target_positions:
        verdict = "No output of this input has a known answer."
    else:
        verdict, note = view.kind.verdict(original, changed)
    notes = "\n\n".join(filter(None, [note, explained(verdict)]))
    with st.container(key="verdict", width="content"):
        st.markdown(verdict, help=notes or None)


def _vectors_sentence(original: Reading, changed: Reading | None) -> str:
    """Describe the output of a model without an output head and, with changes, how far its vectors move."""
    if changed is None:
        n, width = original["output"].shape[1:]
        return f"This model has no output head: it outputs a vector of {width:,} numbers for each of the {n} positions."
    before, after = original["output"][0].float(), changed["output"][0].float()  # [pos, d_model]
    if before.shape != after.shape:
        return f"The model outputs {len(after)} vectors instead of {len(before)}."
    cosines = torch.nn.functional.cosine_similarity(before, after, dim=-1)
    mean, least = (f"{value.item():.3f}" for value in (cosines.mean(), cosines.min()))
    cosines = f"{mean} on average, {least} at the position that moves most"
    return f"Cosine between the vectors and the original ones: {cosines}."
