"""What the screens share on Streamlit's side: session state, caches and components."""
