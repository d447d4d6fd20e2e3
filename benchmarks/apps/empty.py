"""A page of Streamlit with nothing on it but a title and a line to type in: what a screen of ours cannot be quicker than."""

import streamlit as st

st.title("Empty")
st.text_input("Input")
