"""Each of the cases as a paragraph, an error and a button's label: what `test_literal` looks at."""

import streamlit as st

from pages.shared.literal import literal
from tests.browser.cases import TYPED

for index, text in enumerate(TYPED):
    with st.container(key=f"typed{index}"):
        st.markdown(literal(text))
        st.error(literal(text))
        st.button(literal(text), key=f"button{index}")
