"""Links of earlier versions: their parameters and values, with the current ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

VALUES: dict[str, Mapping[str, str]] = {
    "compare": {"players": "models"},
    "order": {"swapped": "shuffled"},
    "panel": {
        "scores of all heads": "scores",
        "step by step": "steps",
        "why here?": "score_attribution",
        "change the run": "change",
    },
    "picture": {"token": "ranked"},
    "scale": {"rest": "without_first_token", **{f"{number}": f"{number}.0" for number in range(-5, 6)}},
    "score": {"the task’s": "task_pattern", "anti-diagonal": "anti_diagonal"},
    "show": {"own": "offsets"},
}
"""Old values of each parameter with the current ones. An old value that a screen still knows keeps its meaning there."""
_ABLATE = re.compile(r"\b(silence|mute|neuron):")
"""Prefixes of changes that are now `ablate:`."""
_CHANGES = ("edits", "a", "b", "c", "d")
"""Parameters with changes: those of the view, and of the variants on Compare."""


def current_value(name: str, value: str, options: Iterable[str]) -> str:
    """Return the current form of a parameter's value, given the valid values."""
    return value if value in options else VALUES.get(name, {}).get(value, value)


def current_parameters(screen: str, link: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a link in their current form."""
    found = {name: _ABLATE.sub("ablate:", value) if name in _CHANGES else value for name, value in link.items()}
    if screen == "bug_lab" and "bug" in found:
        found["bug"] = found["bug"].replace("-", "_")
    if screen == "first_principles" and (head := found.get("head", "")).isdecimal():  # layer and head, counted from 0
        layer = found.pop("layer", "0")
        found["head"] = f"{int(layer) + 1 if layer.isdecimal() else 1}.{int(head) + 1}"
    if screen == "runs" and not {"state", "tag"}.isdisjoint(found):
        found["find"] = " ".join(filter(None, (found.pop(name, "") for name in ("find", "state", "tag"))))
    return found
