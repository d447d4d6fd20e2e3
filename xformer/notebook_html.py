"""What a notebook shows of a reading, a checkpoint or a run: HTML without scripts, in the notebook's own ink.

card("reverse", facts([("parameters", "84,948")]), curve(rows, "exact_match"))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

BLUE = "rgb(62 110 228)"
"""Reads on white and on black."""


def card(title: str, *parts: str) -> str:
    """A title with what stands below it; empty parts are left out."""
    inside = "".join(f'<div style="margin-top:.5em">{part}</div>' for part in parts if part)
    frame = "border:1px solid rgb(128 128 128 / .35);border-radius:8px;padding:.7em 1em;max-width:960px;overflow-x:auto"
    return f'<div style="{frame}"><b>{escape(title)}</b>{inside}</div>'


def text(line: str) -> str:
    """A line of untrusted text."""
    return f'<span style="opacity:.8">{escape(line)}</span>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names with their values side by side; what is None or empty is left out."""
    cells = "".join(
        f'<div><small style="opacity:.65">{escape(name)}</small><br>{escape(str(value))}</div>'
        for name, value in rows
        if value not in (None, "")
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:.4em 1.6em">{cells}</div>'


def scores(figures: Any, *names: str) -> list[tuple[str, str]]:
    """Some of the figures of a scored model, from an untrusted file; values that are not numbers are left out."""
    known = figures if isinstance(figures, dict) else {}
    numbers = {name: known[name] for name in (*names, "samples") if isinstance(known.get(name), (int, float))}
    return [
        (name.replace("_", " "), f"{n:,}" if name == "samples" else f"{n:.4f}" if name == "loss" else f"{n:.2%}")
        for name, n in numbers.items()
    ]


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curve(rows: Any, name: str) -> str:
    """A small line of a share against the steps, of rows from an untrusted file; nothing where there are too few."""
    pairs = (
        [(row.get("step"), row.get(name)) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    )
    points = [(at, y) for at, y in pairs if type(at) is int and isinstance(y, (int, float)) and 0 <= y <= 1]
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    path = " ".join(f"{4 + 292 * (at - first) / (last - first or 1):.1f},{44 - 40 * y:.1f}" for at, y in points)
    line = f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    frame = '<path d="M4 4H296M4 44H296" stroke="rgb(128 128 128 / .4)" fill="none"/>'
    caption = escape(f"{name.replace('_', ' ')} from 0 to 1, over steps {first:,} to {last:,}")
    svg = f'<svg width="300" height="48" role="img" aria-label="{caption}">{frame}{line}</svg>'
    return f'{svg}<br><small style="opacity:.65">{caption}</small>'
