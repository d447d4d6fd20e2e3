"""Bug lab: what a broken transformer looks like."""

from pages.shared.screens import Screen

SCREEN = Screen("Bug lab", icon="bug_report", group="Learn", place=10)
