"""Train: watch a model learn."""

from pages.state.screens import Screen

SCREEN = Screen("Train", place=8)
