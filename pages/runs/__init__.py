"""Runs: what has been trained here."""

from pages.shared.screens import Screen

SCREEN = Screen("Runs", place=7)
