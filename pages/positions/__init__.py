"""Positions: how a model knows where a token is."""

from pages.state.screens import Screen

SCREEN = Screen("Positions", place=3, shows_a_model=True)
