"""A Streamlit page with only a title and a text input: the lower bound for the loading time of a screen."""

import streamlit as st

st.title("Empty")
st.text_input("Input")
