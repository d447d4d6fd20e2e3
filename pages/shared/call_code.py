"""The lines of code that draw what a screen shows: what is read, and the very calls that it made."""

from __future__ import annotations

from collections.abc import Sequence

from pages.shared.call import Call, Source
from xformer.reading import Reading, Recipe


def code(calls: Sequence[Call]) -> list[str]:
    """The lines that read what is needed and make the pictures."""
    readings = {id(reading): reading for call in calls for reading in call.all_readings()}
    names = dict(zip(readings, _names(list(readings.values())), strict=True))
    lines = ["import xformer"]
    lines += [f"{names[number]} = {reading.recipe}" for number, reading in readings.items()]
    written = [call.written(names) for call in calls]
    return [*lines, written[0] if len(written) == 1 else f"[{', '.join(written)}]"]


def _names(readings: list[Source]) -> list[str]:
    """What the code calls them: a model's own run beside a changed one is the original."""
    if len(readings) == 1:
        return ["r" if isinstance(readings[0], Reading) else type(readings[0]).__name__.lower()]
    recipes = [reading.recipe for reading in readings]
    own = [isinstance(one, Recipe) and not one.changes and one.causal is None for one in recipes]
    if len(readings) == 2 and sum(own) == 1:
        return ["original" if is_own else "changed" for is_own in own]
    return [f"r{index}" for index in range(1, len(readings) + 1)]
