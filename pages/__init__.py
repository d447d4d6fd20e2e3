"""The screens, one folder a section of the navigation, one script a screen. Only folders stand here: a script directly in
`pages/` would be found by Streamlit itself and run without app.py."""
