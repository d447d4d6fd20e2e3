"""Train: watch a model learn."""

from pages.shared.screens import Screen

SCREEN = Screen("Train", place=6)
