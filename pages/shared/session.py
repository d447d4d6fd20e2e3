"""What every screen begins with: the shared sidebar, and its state, which lives in the link.

    view = open_page("Attention", "Who looks at whom, in every layer and head?")

A copied link opens the same model, input and mask for someone else. A link that asks for something that is not here says so.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import streamlit as st

from pages.shared import resources
from xformer import Checkpoint, ModelConfig
from xformer.errors import EditError, InputError
from xformer.interventions import Intervention, join, parse
from xformer.tasks import Task

DEFAULT_INPUT = "3 7 12 9 4 11"


LINKED = ("model", "input", "mask", "edits")
"""What the sidebar keeps in the link."""


@dataclass(frozen=True)
class View:
    """What a visitor is looking at: everything that the link says."""

    model: str
    source: tuple[int, ...]
    mask: str
    checkpoint: Checkpoint
    task: Task
    interventions: tuple[Intervention, ...]

    @property
    def is_changed(self) -> bool:
        """Whether anything stands between the model and its own run."""
        return self.mask != resources.MASKS[0] or bool(self.interventions)

    def original(self) -> resources.Run:
        """The model's own run on this input."""
        return resources.run(self.model, self.source)

    def changed(self) -> resources.Run | None:
        """The run under the chosen mask and interventions; None when there are none."""
        return resources.run(self.model, self.source, self.mask, join(self.interventions)) if self.is_changed else None

    def what_changed(self) -> str:
        """The changes in a few words, for the name of a lane or a legend."""
        masked = [] if self.mask == resources.MASKS[0] else [f"{self.mask} mask"]
        n = len(self.interventions)
        return " + ".join(masked + ([f"{n} change{'s' if n > 1 else ''}"] if n else []))

    def share(self, **more: str) -> None:
        """Put the view into the address bar, with what else the screen wants to restore, for whoever copies the link."""
        link = {"model": self.model, "input": " ".join(map(str, self.source)), "mask": self.mask, **more}
        if self.interventions:
            link["edits"] = join(self.interventions)
        if st.query_params.to_dict() != link:
            st.query_params.from_dict(link)


def open_page(title: str, question: str) -> View:
    """Draw the heading and the sidebar; stop the page with one plain sentence where there is nothing to show."""
    st.title(f"{title} :small[:gray[{question}]]", anchor=False)
    names = resources.shipped()
    if not names:
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        st.stop()
    _follow_the_link({"model": names, "mask": resources.MASKS})
    with st.sidebar:
        model = _ask_model(names)
        if problem := resources.usable(model):
            st.error(problem)
            st.stop()
        checkpoint = resources.checkpoint(model)
        task = checkpoint.task
        assert task is not None
        source = _ask_input(task, checkpoint.config.max_len)
        mask = _ask_mask()
    view = View(model, source, mask, checkpoint, task, _interventions(checkpoint.config))
    _show_chips(view)
    return view


def toggle_intervention(*texts: str) -> None:
    """Add interventions, or take them back where they are there already. A callback, or followed by `st.rerun()`."""
    there = [word for word in st.session_state.get("edits", "").split(",") if word]
    for text in texts:
        if text in there:
            there.remove(text)
        else:
            there.append(text)
    st.session_state["edits"] = ",".join(there)


def _interventions(config: ModelConfig) -> tuple[Intervention, ...]:
    """The interventions that are on; those that do not fit this model are dropped aloud."""
    kept: list[str] = []
    for word in st.session_state.get("edits", "").split(","):
        try:
            parse(",".join([*kept, word]), config)
        except EditError as error:
            st.warning(f"A change was left out. {error}", icon=":material/link_off:")
        else:
            kept.append(word)
    found = parse(",".join(kept), config)
    st.session_state["edits"] = join(found)
    return found


def _clear_changes() -> None:
    st.session_state["edits"] = ""
    st.session_state["mask"] = resources.MASKS[0]


def _use_own_mask() -> None:
    st.session_state["mask"] = resources.MASKS[0]


def _show_chips(view: View) -> None:
    """What is switched on, where nobody can forget it; a click takes it back."""
    if not view.is_changed:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="chips"):
        st.markdown("**Changed:**", width="content")
        if view.mask != resources.MASKS[0]:
            st.button(f"{view.mask} mask", icon=":material/close:", on_click=_use_own_mask, key="chip_mask")
        for intervention in view.interventions:
            st.button(
                intervention.label,
                icon=":material/close:",
                on_click=toggle_intervention,
                args=(intervention.text,),
                key=f"chip_{intervention.text}",
            )
        if len(view.interventions) + (view.mask != resources.MASKS[0]) > 1:
            st.button("Undo all", on_click=_clear_changes, type="tertiary", key="chip_all")


def _ask_model(names: tuple[str, ...]) -> str:
    return st.selectbox("Model", names, key="model", persist_state="session", help="It runs live, on every change.")


def _ask_input(task: Task, max_len: int) -> tuple[int, ...]:
    st.session_state.setdefault("input", DEFAULT_INPUT)
    st.text_input(
        "Input",
        key="input",
        persist_state="session",
        max_chars=2000,
        help=f"Numbers from 1 to {task.vocabulary.symbols}, with spaces between them.",
    )
    examples_at, random_at = st.columns(2)
    with examples_at, st.popover("Examples", width="stretch"):
        st.caption("See how the model …")
        for purpose, text in examples(task).items():
            st.button(purpose, on_click=_type, args=(text,), width="stretch", type="tertiary")
    random_at.button("Random", on_click=_type_random, args=(task,), width="stretch", key="random_input")
    try:
        source = tuple(task.vocabulary.read(str(st.session_state["input"])))
        task.example(list(source), max_len=max_len)
    except InputError as error:
        st.error(str(error), icon=":material/edit:")
        source = _last_good(task, max_len)
        st.caption("Still showing the last input that could be read.")
        return source
    st.session_state["last_good"] = source
    longest = task.config.max_len
    if not task.config.min_len <= len(source) <= longest:
        st.caption(
            f":material/info: {len(source)} numbers: it was trained on {task.config.min_len} to {longest}, "
            "so expect mistakes."
        )
    return source


def examples(task: Task) -> dict[str, str]:
    """Inputs with a purpose, in the words of “See how the model …”."""
    n, longest = task.vocabulary.symbols, task.config.max_len

    def numbers(count: int) -> str:
        return " ".join(str(1 + (step * 7 + 2) % n) for step in range(count))

    verb = {"reverse": "reverses", "sort": "sorts", "copy": "copies"}[task.config.name]
    return {
        f"… {verb} six numbers": numbers(6),
        "… tells equal numbers apart by their place": " ".join(["5"] * 4 + ["9"] * 4),
        f"… {verb} the longest it was trained on": numbers(longest),
        "… fails on more than it was trained on": numbers(longest + 3),
        "… handles the shortest": numbers(task.config.min_len),
    }


def _ask_mask() -> str:
    st.session_state.setdefault("mask", resources.MASKS[0])
    return st.segmented_control(
        "Attention mask",
        resources.MASKS,
        required=True,
        key="mask",
        persist_state="session",
        width="stretch",
        help="Causal: a position sees itself and what came before. Full: it sees everything. The model runs again, and "
        "the change stands beside the original.",
    )


def _type(text: str) -> None:
    st.session_state["input"] = text


def _type_random(task: Task) -> None:
    count = random.randint(task.config.min_len, task.config.max_len)
    _type(" ".join(str(random.randint(1, task.vocabulary.symbols)) for _ in range(count)))


def _last_good(task: Task, max_len: int) -> tuple[int, ...]:
    """The last input that this visitor's models could read, or the default one."""
    source = st.session_state.get("last_good", tuple(task.vocabulary.read(DEFAULT_INPUT)))
    try:
        task.example(list(source), max_len=max_len)
        task.vocabulary.read(" ".join(map(str, source)))
    except InputError:
        return tuple(range(1, 1 + min(task.config.max_len, task.vocabulary.symbols, 3)))
    return source


def _follow_the_link(options: dict[str, tuple[str, ...]]) -> None:
    """Take over what the link asks for, once; say what it asks for in vain."""
    if "link_followed" in st.session_state:
        return
    st.session_state["link_followed"] = True
    for name in LINKED:
        asked = st.query_params.get(name)
        if asked is None:
            continue
        if asked in options.get(name, (asked,)):
            st.session_state[name] = asked
        else:
            st.warning(
                f"The link asks for a {name} that is not here, so the usual one is shown. "
                f"There are: {', '.join(options[name])}.",
                icon=":material/link_off:",
            )
