"""Masks: which keys each query may attend to, and what the model does under such a mask."""

from pages.state.screens import Screen

SCREEN = Screen("Masks", place=5, shows_a_model=True)
