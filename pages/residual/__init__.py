"""Residual: when the answer is decided."""

from pages.shared.screens import Screen

SCREEN = Screen("Residual", icon="stacked_line_chart", group="Explore", place=5, shows_a_model=True)
