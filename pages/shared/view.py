"""What a visitor is looking at: the model, its input and the changes, and the runs that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from pages.shared import link as link_of_screen
from pages.shared import resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import InputKind, kind_of
from pages.shared.link import carry
from xformer.adapters import Input, ModelAdapter, TaskModel, own_model, own_task_model
from xformer.analysis.embeddings import token_labels
from xformer.config import ModelConfig
from xformer.errors import EditError
from xformer.interventions import Intervention, join, parse
from xformer.model_shape import ModelShape
from xformer.reading import Reading
from xformer.tasks import Task

ORIGINAL = "original"
"""What the model's own run is called, beside a changed one."""
RunKey = tuple[str, tuple[int, ...], str, str]
"""Model, source, mask and changes: what `resources.run` needs, and what a cache can be keyed by."""


@dataclass(frozen=True)
class View:
    """What a visitor is looking at: everything that the link says."""

    model: str
    source: tuple[int, ...]
    mask: str
    subject: ModelAdapter
    interventions: tuple[Intervention, ...]

    @property
    def is_changed(self) -> bool:
        """Whether anything stands between the model and its own run."""
        return self.mask != resources.MASKS[0] or bool(self.interventions)

    @property
    def is_pair(self) -> bool:
        """Whether the model has two stacks, an encoder and a decoder."""
        return self.shape.is_pair

    @property
    def shape(self) -> ModelShape:
        """The model from outside, whoever made it."""
        return self.subject.shape

    @property
    def input(self) -> Input:
        """What it reads, and the words to speak of it."""
        return self.subject.input

    @property
    def kind(self) -> InputKind:
        """How screens show that."""
        return kind_of(self.subject)

    @property
    def task(self) -> Task | None:
        """What the model was made for, where that is one of our tasks."""
        return self.subject.task if isinstance(self.subject, TaskModel) else None

    @property
    def own(self) -> TaskModel:
        """The model as one of ours with its task. Raises `UnavailableError` where it is another kind of model."""
        return own_task_model(self.subject)

    @property
    def config(self) -> ModelConfig:
        """The configuration of one of our models. Raises `UnavailableError` where it is another kind of model."""
        return own_model(self.subject).config

    @property
    def on(self) -> frozenset[str]:
        """The interventions that are on, as the link writes them."""
        return frozenset(intervention.text for intervention in self.interventions)

    def original(self) -> Reading:
        """The model's own run on this input."""
        return resources.run(*self.key(ORIGINAL))

    def changed(self) -> Reading | None:
        """The run under the chosen mask and interventions; None when there are none."""
        return resources.run(*self.key(self.what_changed())) if self.is_changed else None

    def runs(self) -> dict[str, Reading]:
        """The runs to be shown side by side, by their names: the original and, where there is one, the changed run."""
        return {name: resources.run(*self.key(name)) for name in dict.fromkeys((ORIGINAL, self.shown))}

    @property
    def shown(self) -> str:
        """The name of the run that the screen is about: the changed one where there is one."""
        return self.what_changed() if self.is_changed else ORIGINAL

    def key(self, name: str) -> RunKey:
        """The arguments of `resources.run` for the run of that name."""
        if name == ORIGINAL:
            return self.model, self.source, resources.MASKS[0], ""
        return self.model, self.source, self.mask, join(self.interventions)

    def longest_trained(self, stack: str | None = None) -> int:
        """The most positions that training ever showed a stack."""
        source, target = self.own.task.longest
        return target if stack == "decoder" and target else source

    def name_of(self, intervention: Intervention) -> str:
        """What a person reads of an intervention: a replaced token as it is written."""
        if intervention.replaced is None:
            return intervention.label
        position, token = intervention.replaced
        if side := self.shape.image:
            return f"pixel y{position // side + 1} x{position % side + 1} becomes {token}"
        return f"position {position} reads {escape_markdown(token_labels(self.subject)[token])}"

    def what_changed(self) -> str:
        """The changes in a few words, for the name of a lane or a legend."""
        n = len(self.interventions)
        return " + ".join(resources.mask_words(self.mask) + ([f"{n} change{'s' if n > 1 else ''}"] if n else []))

    @property
    def link(self) -> dict[str, str]:
        """What the link of every screen says of the view."""
        said = {"model": self.model, "input": self.input.text(self.source), "mask": self.mask}
        return said | ({"edits": join(self.interventions)} if self.interventions else {})

    def share(self, **more: str) -> None:
        """Put the view into the address bar, with what else the screen wants to restore, for whoever copies the link."""
        link_of_screen.share({**self.link, **more})


def switched_on() -> list[str]:
    """The texts of the interventions that are asked for, whether or not they fit the model."""
    return [word for word in st.session_state.get("edits", "").split(",") if word]


def toggle_intervention(*texts: str) -> None:
    """Add interventions, or take them back where they are there already. A callback, or followed by `st.rerun()`."""
    there = switched_on()
    for text in texts:
        if text in there:
            there.remove(text)
        else:
            there.append(text)
    st.session_state["edits"] = ",".join(there)


def interventions_on(shape: ModelShape) -> tuple[Intervention, ...]:
    """The interventions that are on; those that do not fit this model are dropped aloud."""
    kept: list[str] = []
    for word in switched_on():
        try:
            parse(",".join([*kept, word]), shape)
        except EditError as error:
            st.warning(f"A change was left out. {escape_markdown(str(error))}", icon=":material/link_off:")
        else:
            kept.append(word)
    found = parse(",".join(kept), shape)
    st.session_state["edits"] = join(found)
    return found


def _clear_changes() -> None:
    st.session_state["edits"] = ""
    st.session_state["mask"] = resources.MASKS[0]


def _use_own_mask() -> None:
    st.session_state["mask"] = resources.MASKS[0]


def show_chips(view: View) -> None:
    """What is switched on, where nobody can forget it; a click takes it back."""
    # The container is there even when it is empty: were it to appear, everything below would be built anew in the browser.
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="chips"):
        if not view.is_changed:
            return
        st.markdown("**Changed:**", width="content")
        for mask in resources.mask_words(view.mask):
            st.button(mask, icon=":material/close:", on_click=_use_own_mask, key="chip_mask")
        for intervention in view.interventions:
            st.button(
                view.name_of(intervention),
                icon=":material/close:",
                on_click=toggle_intervention,
                args=(intervention.text,),
                key=f"chip_{intervention.text}",
            )
        if len(view.interventions) + (view.mask != resources.MASKS[0]) > 1:
            st.button("Undo all", on_click=_clear_changes, type="tertiary", key="chip_all")


def ask_mask(shape: ModelShape) -> str:
    """One of `resources.MASKS`; the model's own where nothing can be changed."""
    if shape.is_read_only or st.session_state.get("mask") not in resources.MASKS:
        st.session_state["mask"] = resources.MASKS[0]
    carry("mask")
    mask = st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        disabled=shape.is_read_only,
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )
    assert mask is not None  # required, and set above
    return mask
