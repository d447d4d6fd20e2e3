"""Streamlit components: each a Python function, an ES module and a style sheet."""
