"""Parts of a page: widgets, text, embedding in slides, and Streamlit's undocumented parts."""
