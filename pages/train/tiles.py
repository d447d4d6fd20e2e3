"""The figures of a run as numbers that stay where they are: of the step that is looked at, or the latest ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from xformer.training.entry import Entry
from xformer.words import percent


def tiles(entry: Entry, rows: Sequence[dict[str, Any]], shown: int | None, *, is_text: bool) -> None:
    """Draw them; `shown` is an earlier step that is looked at, None for the latest."""
    cells = "".join(
        f"<div><span>{words}</span><b>{number}</b></div>" for words, number in figures(entry, rows, shown, is_text)
    )
    st.html(f"{_CSS}<div class='train-tiles'>{cells}</div>")


def figures(entry: Entry, rows: Sequence[dict[str, Any]], shown: int | None, is_text: bool) -> list[tuple[str, str]]:
    """What each figure is called, and the number or a dash; the first says of which step they are."""
    if shown is None:
        last, live, step = (rows[-1] if rows else {}), entry.live, entry.step
    else:
        last, live = report_at(rows, shown) or {}, {}
        step = last.get("step")
    loss = last.get("held_out_loss")
    bits = loss / math.log(2) if is_text and isinstance(loss, float) else None
    is_running = shown is None and entry.state == "running"
    return [
        ("figures of step", _number(step, ",.0f")),
        ("loss", _number(live.get("loss", last.get("loss")), ".4f")),
        ("held-out loss", _number(loss, ".4f")),
        ("bits per character", _number(bits, ".3f"))
        if is_text
        else ("exact match", _share(last.get("held_out_exact_match"))),
        ("tokens right", _share(last.get("held_out_token_accuracy"))),
        ("gradient", _number(live.get("gradient_norm", last.get("gradient_norm")), ".3f")),
        ("learning rate", _number(live.get("learning_rate", last.get("learning_rate")), ".2e")),
        ("steps/s", _number(live.get("steps_per_second"), ",.0f"))
        if is_running
        else ("tokens/s", _number(last.get("tokens_per_second") or None, ",.0f")),
    ]


def report_at(rows: Sequence[dict[str, Any]], step: int) -> dict[str, Any] | None:
    """The latest report at or before a step; None where there was none yet."""
    return next((row for row in reversed(rows) if row["step"] <= step), None)


def _share(value: Any) -> str:
    """A share as a percentage that is all or none only where it is; a dash where there is none."""
    return percent(float(value), 1) if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def _number(value: Any, look: str) -> str:
    """A number as it is shown; a dash where there is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format(float(value), look) if is_number else "–"


_CSS = """<style>
.train-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(92px, 1fr)); gap: 5px; }
.train-tiles div {
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: 9px; padding: 1px 7px 2px; }
.train-tiles span { display: block; font-size: 0.72rem; opacity: 0.75; white-space: nowrap; }
.train-tiles b { font-size: 1rem; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.st-key-run_row h1 { font-size: 1.55rem; }
.st-key-run_row { gap: 0.5rem; }
.st-key-run_row button { min-height: 2.2rem; padding: 0.1rem 0.6rem; }
.st-key-run_name { min-width: 7rem; }
.st-key-run_name * { white-space: nowrap !important; overflow: hidden; text-overflow: ellipsis; }
</style>"""
