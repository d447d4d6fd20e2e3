"""What to notice in the chosen runs, as far as their numbers show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pages.shared.layout import what_to_notice
from pages.shared.literal import literal
from pages.shared.panels.runs_curves import labels
from xformer.training.book import Entry
from xformer.training.overview import exact_match

GOOD = 0.99
DIP = 0.02


def notes(entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame) -> None:
    """The frame at the end of the screen."""
    what_to_notice(said) if (said := list(_notes(entries, rows, settings))) else None


def _notes(
    entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame
) -> Iterator[str]:
    names = {run: literal(name) for run, name in labels(entries).items()}
    scored = {entry.id: exact_match(entry, rows[entry.id][-1]) for entry in entries if rows[entry.id]}
    scored = {run: share for run, share in scored.items() if share is not None}
    arrived = {run: step for run in scored if (step := first_at(rows[run], GOOD)) is not None}
    if len(entries) > 1 and arrived:
        first = min(arrived, key=lambda run: arrived[run]["step"])
        never = [names[run] for run in scored if run not in arrived]
        yield (
            f"**{names[first]}** is the first to get {GOOD:.0%} of unseen sequences right: at step {arrived[first]['step']:,}, "
            f"after {arrived[first]['seconds']:.1f} s."
            + (f" Not there (yet): {', '.join(never[:4])}{' …' if len(never) > 4 else ''}." if never else "")
        )
    elif arrived:
        [run] = arrived
        yield (
            f"It first gets {GOOD:.0%} of unseen sequences right at step {arrived[run]['step']:,}, "
            f"after {arrived[run]['seconds']:.1f} s."
        )
    for run, row in list(arrived.items())[:1] if len(entries) == 1 else []:
        later = [found for found in rows[run] if found["step"] > row["step"]]
        if (
            later
            and (low := min(later, key=lambda found: found["held_out_exact_match"]))["held_out_exact_match"]
            < GOOD - DIP
        ):
            yield (
                f"Then it falls back for a moment, to {low['held_out_exact_match']:.1%} at step {low['step']:,}: the learning "
                f"rate is still {low['learning_rate']:.2g} there."
            )
    if len(entries) == 2 and len(scored) == 2:
        one, other = (entry.id for entry in entries)
        apart = [name for name in settings.columns if not _equal(settings.at[one, name], settings.at[other, name])]
        if len(apart) == 1:
            [name] = apart
            yield (
                f"The two differ in one setting only: `{name}` is {literal(str(settings.at[one, name]))} in **{names[one]}** "
                f"and {literal(str(settings.at[other, name]))} in **{names[other]}**. What is different about their curves "
                "comes from it."
            )
        elif not apart:
            yield (
                "The two have the same settings, so on the same kind of processor their curves lie on each other exactly: "
                "a run is a function of its settings."
            )


def first_at(rows: Sequence[Mapping[str, Any]], share: float) -> Mapping[str, Any] | None:
    """The first report with so much exact match; None where there is none."""
    return next((row for row in rows if row["held_out_exact_match"] >= share), None)


def _equal(one: Any, other: Any) -> bool:
    return one == other or (pd.isna(one) and pd.isna(other))
