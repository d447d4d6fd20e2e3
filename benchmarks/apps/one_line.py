"""A slider and a line of text: the smallest response of a Streamlit page to a step."""

import streamlit as st

st.set_page_config(layout="wide")
st.text(f"step {st.slider('step', 0, 1000, 500, key='step')}")
