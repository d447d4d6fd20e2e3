"""Compare: where predictions diverge, step by step."""

from pages.shared.screens import Screen

SCREEN = Screen("Compare", place=8)
