"""The step Code of First principles: this package's own source, with what each line computed in a trained model."""

from __future__ import annotations

import streamlit as st

from pages.components.elements import code_view
from pages.compute import models
from pages.compute.byte_cache import cached
from pages.compute.picture import toolbar
from pages.controls.text import escape_markdown, headline
from pages.first_principles.steps import MODEL, ask_source, written
from xformer.widgets.code_lines import run_code
from xformer.widgets.code_view import code_data


@cached
def _data(model: str, source: tuple[int, ...]) -> bytes:
    adapter, module = models.adapter(model), models.checkpoint(model).model
    tokens = adapter.to_example(source).input_ids
    return code_data(run_code(module, tokens), adapter.token_names(tokens[0]))


def code_panel() -> tuple[list[str], dict[str, str]]:
    """Draw the code; return what to notice, and the input for the link."""
    if MODEL not in models.shipped():
        st.info(f"This step needs the shipped model {MODEL}; `make checkpoints` trains it.")
        return [], {}
    place = st.container()
    with toolbar():
        source, problem = ask_source(models.checkpoint(MODEL))
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
    with place:
        headline("This is the code that ran, and the numbers that each line computed.")
    code_view(key="principle_code", data=_data(MODEL, source))
    notes = [
        "Attention is a dozen lines: two products, a scale, a mask, a softmax.",
        "`xformer.code_view(module, inputs)` shows your own model like this in a notebook.",
    ]
    return notes, {"input": written(source)}
