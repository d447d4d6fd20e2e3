"""Compare: where predictions diverge, step by step."""

from pages.state.screens import Screen

SCREEN = Screen("Compare", place=10)
