"""Embeddings: what vector each token becomes."""

from pages.shared.screen import Screen

SCREEN = Screen("Embeddings", icon="scatter_plot", group="Explore", place=1, shows_a_model=True)
