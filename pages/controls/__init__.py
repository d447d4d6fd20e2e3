"""Parts of a page: widgets, text, embedding, and Streamlit's undocumented parts."""
