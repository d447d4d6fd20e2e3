"""Train: a model learns while one looks on."""

from pages.shared.screens import Screen

SCREEN = Screen("Train", icon="model_training", group="Train", place=6)
