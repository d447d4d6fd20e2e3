"""Compare: where predictions part, step by step."""

from pages.shared.screen import Screen

SCREEN = Screen("Compare", icon="compare_arrows", group="Compare", place=8)
