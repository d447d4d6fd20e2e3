"""Embeddings: what vector each token becomes."""

from pages.state.screens import Screen

SCREEN = Screen("Embeddings", place=2, shows_a_model=True)
