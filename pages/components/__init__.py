"""Pictures that run in the browser: each a Python function, a script and a style sheet."""
