"""The screens: one folder for each, whose `page.py` draws it. No scripts may be placed directly in `pages/`: Streamlit would
detect them and run them without app.py."""
