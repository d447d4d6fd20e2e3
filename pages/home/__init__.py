"""Home: what is inside a model, and where an input goes."""

from pages.state.screens import Screen

SCREEN = Screen("Home", place=0, shows_a_model=True)
