"""Embeddings: what vector each token becomes."""

from pages.shared.screens import Screen

SCREEN = Screen("Embeddings", icon="scatter_plot", group="Explore", place=1, shows_a_model=True)
