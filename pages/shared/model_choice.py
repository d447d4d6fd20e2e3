"""The choice of a model in the sidebar: a shipped one, one of others, a step of a run, or a file of one’s own."""

from __future__ import annotations

import streamlit as st

from pages.shared import foreign_models, models, run_store, run_weights
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link import carry
from pages.shared.open_model import WANTED, open_model
from pages.shared.upload import upload
from xformer.training.transfer import ImportResult


def ask_model() -> str:
    """The name of the model that runs, with the step of a run written out."""
    runs = run_weights.trained()
    others = models.foreign_titles()
    options = [*models.shipped(), *others, *runs]
    if (wanted := st.session_state.pop(WANTED, None)) is not None:
        choose_model(wanted)
    before = st.session_state.get("model")
    if before not in options:
        st.session_state["model"] = foreign_models.first() or options[0]
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
