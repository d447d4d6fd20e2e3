"""Bug lab: what a broken transformer looks like."""

from pages.state.screens import Screen

SCREEN = Screen("Bug lab", place=12)
