"""Train: a model learns while one looks on."""

from pages.shared.screens import Screen

SCREEN = Screen("Train", place=6)
