"""Symbols of a rule, typed one after the other: numbers, digits, brackets. What is said to them is right or wrong."""

from pages.shared.input_kinds.kind import InputKind

KIND = InputKind()
