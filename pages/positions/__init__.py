"""Positions: how a model knows where a token is."""

from pages.shared.screens import Screen

SCREEN = Screen("Positions", place=2, shows_a_model=True)
