"""Live pages: HTML files in which a model runs in the browser, and lessons built on them."""
