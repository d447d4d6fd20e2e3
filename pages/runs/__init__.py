"""Runs: what has been trained here."""

from pages.state.screens import Screen

SCREEN = Screen("Runs", place=9)
