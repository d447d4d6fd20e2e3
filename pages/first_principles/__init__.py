"""First principles: attention, built up step by step from an average."""

from pages.state.screens import Screen

SCREEN = Screen("First principles", place=11)
