"""Runs: what has been trained here."""

from pages.shared.screens import Screen

SCREEN = Screen("Runs", icon="format_list_bulleted", group="Train", place=7)
