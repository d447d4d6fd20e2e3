"""A panel about one model on two texts: the sidebar asks which model, the panel what is done with it, the link keeps both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from pages.shared import link as link_of_screen
from pages.shared import models
from pages.shared.escape_markdown import escape_markdown
from pages.shared.model_choice import ask_model
from pages.shared.open_model import wait_until_open
from pages.shared.session import LookedAt
from xformer.adapters import ModelAdapter
from xformer.errors import XformerError


def one_model(looked: LookedAt, icon: str, draw: Callable[[ModelAdapter, str, dict[str, str]], None]) -> None:
    """Draw it once the model can be read; `draw` is given the model, its name, and the link to put into what it was asked."""
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model) or models.usable(model):
        st.error(escape_markdown(problem))
        return
    found: dict[str, str] = {}
    try:
        draw(models.subject(model), model, found)
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=icon)
    text = str(st.session_state.get("input", looked.input))
    link_of_screen.share(replace(looked, model=model, input=text).link | found)
