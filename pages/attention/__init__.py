"""Attention: which token attends to which, in every layer and head."""

from pages.state.screens import Screen

SCREEN = Screen("Attention", place=4, shows_a_model=True, usual_panel="scores")
