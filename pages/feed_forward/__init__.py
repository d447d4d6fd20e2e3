"""Feed-forward: what the neurons do."""

from pages.state.screens import Screen

SCREEN = Screen("Feed-forward", place=6, shows_a_model=True)
