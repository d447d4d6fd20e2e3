"""An app that shows each case as a paragraph, an error and a button label, for `test_escape_markdown`."""

import streamlit as st

from pages.controls.text import escape_markdown
from tests.browser.cases import TYPED

st.title("What people type")
for index, text in enumerate(TYPED):
    with st.container(key=f"typed{index}"):
        st.markdown(escape_markdown(text))
        st.error(escape_markdown(text))
        st.button(escape_markdown(text), key=f"button{index}")
