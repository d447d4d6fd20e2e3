"""Compare: where predictions part, step by step."""

from pages.shared.screens import Screen

SCREEN = Screen("Compare", icon="compare_arrows", group="Compare", place=8)
