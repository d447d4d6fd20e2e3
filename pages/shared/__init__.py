"""Streamlit code shared by the screens: session state, caches and components."""
