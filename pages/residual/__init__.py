"""Residual: when the answer is decided."""

from pages.state.screens import Screen

SCREEN = Screen("Residual", place=7, shows_a_model=True)
