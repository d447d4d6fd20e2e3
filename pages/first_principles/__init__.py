"""First principles: how attention comes about, from an average on."""

from pages.shared.screens import Screen

SCREEN = Screen("First principles", short="Basics", place=9)
