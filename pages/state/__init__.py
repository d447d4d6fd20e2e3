"""What a visitor looks at: the link, the sidebar, the view and the input."""
