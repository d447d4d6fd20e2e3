"""Learn: the lessons in their order, with the visitor's progress, and the screens that teach."""

from pages.state.screens import Screen

SCREEN = Screen("Learn", place=1)
