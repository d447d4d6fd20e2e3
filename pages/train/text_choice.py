"""Which text a character model learns: those that are here, a file of one's own, or tiny Shakespeare by download."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.file_box import file_box
from xformer.alphabet import PYTHON, SHAKESPEARE
from xformer.errors import XformerError
from xformer.presets import Preset
from xformer.tasks import texts
from xformer.training.own_text import with_text

PROBLEM, GIVEN = "text_problem", "text_given"


def text_choice(preset: Preset, then: Callable[[Preset], None]) -> None:
    """Draw the choice; where another text is chosen, `then` is called with the preset made for it, as a callback.

    A text that a visitor gave is one of the options for this visitor only; who has its name (a link, settings) may use it too.
    """
    given: list[str] = st.session_state.setdefault(GIVEN, [])
    options = list(dict.fromkeys((PYTHON, SHAKESPEARE, *given, preset.task.text)))
    st.session_state["text"] = preset.task.text

    def follow(name: str) -> None:
        try:
            then(with_text(preset, name))
        except XformerError as error:
            st.session_state[PROBLEM] = str(error)

    def chosen() -> None:
        follow(st.session_state["text"])

    def take(content: bytes, _: str) -> str:
        name = run_commands.keep_text(content)
        if name not in given:
            given.append(name)
        follow(name)
        if PROBLEM in st.session_state:  # one message: it can be learned, or why not
            return ""
        text = texts.read(name)
        return f"{len(text):,} characters, {len(set(text)):,} of them different."

    def download() -> None:
        try:
            run_commands.download_shakespeare()
        except (XformerError, OSError) as error:
            st.session_state[PROBLEM] = str(error)
        else:
            follow(SHAKESPEARE)

    st.selectbox(
        "Text",
        options,
        format_func=lambda name: texts.title(name) + ("" if texts.is_here(name) else " (not here yet)"),
        key="text",
        on_change=chosen,
        help="The last 10 % of it are held out: training never reads them.",
    )
    if not run_store.is_open():
        st.caption(
            ":material/group: A text that you give is yours alone until you train on it: then everyone on this server sees "
            "the run, and passages of the text with it."
        )
    most = texts.MOST_BYTES // 1024**2
    kinds = ["txt", "md", "csv", "py", "json", "html", "xml"]
    file_box(f"A text of your own: UTF-8, up to {most} MB", kinds, most, take, key="text_file")
    if not texts.is_here(SHAKESPEARE):
        st.button(
            "Download tiny Shakespeare (1.1 MB)", icon=":material/download:", on_click=download, key="text_download"
        )
    if wrong := st.session_state.pop(PROBLEM, ""):
        st.error(escape_markdown(wrong), icon=":material/error:")
