"""Reads what a person types: numbers with something between them, or single characters; anything else gets one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xformer.errors import InputError


def read_numbers(text: str, low: int, high: int, example: str) -> list[int]:
    """The numbers in a text such as "3 7 12 9" (commas, semicolons and brackets are fine too).

    Raises `InputError` with one plain sentence for anything else, or for a number outside `low` … `high`.
    """
    words = [word for word in re.split(r"[\s,;\[\]()]+", text) if word]
    if not words:
        raise InputError(f"Type some numbers from {low} to {high}, for example {example}.")
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or not low <= int(word) <= high:
            raise InputError(
                f"This model reads numbers from {low} to {high}, and “{shown(word)}” is not one; try {example}."
            )
    return [int(word) for word in words]


def read_characters(text: str, characters: Sequence[str], what: str, example: str) -> list[int]:
    """Where each character of a text stands in `characters`; spaces and commas between them count for nothing.

    Raises `InputError` with one plain sentence for any other character, or when there is none.
    """
    found = [character for character in text if not (character.isspace() or character == ",")]
    if not found:
        raise InputError(f"Type some {what}, for example {example}.")
    for character in found:
        if character not in characters:
            raise InputError(f"This model reads {what}, and “{shown(character)}” is not one; try {example}.")
    return [characters.index(character) for character in found]


def shown(word: str) -> str:
    """What was typed, short and printable enough to stand in a sentence."""
    start = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in word[:20])
    return start if len(word) <= 20 else start + "…"
