"""Each of the cases as a paragraph, an error and a button's label: what `test_literal` looks at."""

import streamlit as st

from pages.shared.text import escape_markdown
from tests.browser.cases import TYPED

st.title("What people type")
for index, text in enumerate(TYPED):
    with st.container(key=f"typed{index}"):
        st.markdown(escape_markdown(text))
        st.error(escape_markdown(text))
        st.button(escape_markdown(text), key=f"button{index}")
