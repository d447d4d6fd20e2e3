"""Live pages: a model that runs in the browser, in one HTML file, and lessons about it."""
