"""What to notice in the chosen runs, as far as their numbers show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pages.runs.curves import labels
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import what_to_notice
from xformer.training.entry import ELSEWHERE, Entry
from xformer.training.latest_metrics import exact_match
from xformer.training.overview import REPORTING
from xformer.words import percent

GOOD = 0.99
DIP = 0.02


def notes(entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame) -> None:
    """The frame at the end of the screen."""
    what_to_notice(said) if (said := list(_notes(entries, rows, settings))) else None


def _notes(
    entries: Sequence[Entry], rows: Mapping[str, Sequence[Mapping[str, Any]]], settings: pd.DataFrame
) -> Iterator[str]:
    names = {run: escape_markdown(name) for run, name in labels(entries).items()}
    scored = {entry.id: exact_match(entry, rows[entry.id][-1]) for entry in entries if rows[entry.id]}
    scored = {run: share for run, share in scored.items() if share is not None}
    arrived = {run: step for run in scored if (step := first_at(rows[run], GOOD)) is not None}
    if len(entries) > 1 and arrived:
        first = min(arrived, key=lambda run: arrived[run]["step"])
        never = [names[run] for run in scored if run not in arrived]
        yield (
            f"**{names[first]}** needs the fewest steps to get {GOOD:.0%} of unseen sequences right: it does at step "
            f"{arrived[first]['step']:,}, after {arrived[first]['seconds']:.1f} s."
            + (f" Not there (yet): {', '.join(never[:4])}{' …' if len(never) > 4 else ''}." if never else "")
        )
    elif arrived:
        [run] = arrived
        yield (
            f"It first gets {GOOD:.0%} of unseen sequences right at step {arrived[run]['step']:,}, "
            f"after {arrived[run]['seconds']:.1f} s."
        )
    for run, row in list(arrived.items())[:1] if len(entries) == 1 else []:
        later = [found for found in rows[run] if found["step"] > row["step"] and _share(found) is not None]
        low = min(later, key=lambda found: _share(found) or 0.0, default=None)
        if low is not None and (_share(low) or 0.0) < GOOD - DIP:
            again = first_at([found for found in later if found["step"] > low["step"]], GOOD)
            back = f", and is back at step {again['step']:,}" if again else ", and does not come back"
            rate = low.get("learning_rate")
            yield (
                f"Then it falls to {percent(_share(low) or 0.0, 1)} at step {low['step']:,}{back}."
                + (f" The learning rate was {rate:.2g} there." if isinstance(rate, float) else "")
            )
    if len(entries) == 2 and all(entry.parent is None and entry.wanted != ELSEWHERE for entry in entries):
        one, other = (entry.id for entry in entries)
        apart = [name for name in settings.columns if not _equal(settings.at[one, name], settings.at[other, name])]
        if len(apart) == 1:
            [name] = apart
            yield (
                f"The two differ in one setting only: `{name}` is {escape_markdown(str(settings.at[one, name]))} in "
                f"**{names[one]}** "
                f"and {escape_markdown(str(settings.at[other, name]))} in **{names[other]}**."
                + (
                    " What is different about their curves comes from it."
                    if name not in REPORTING and entries[0].device == entries[1].device
                    else ""
                )
            )
        elif not apart and (shared := equal_reports(rows[one], rows[other])):
            yield (
                f"The two have the same settings, and the losses of all {shared:,} reports that they share are equal to the "
                "last digit: here a run is a function of its settings."
            )


def first_at(rows: Sequence[Mapping[str, Any]], share: float) -> Mapping[str, Any] | None:
    """The first report with so much exact match; None where there is none."""
    return next((row for row in rows if (value := _share(row)) is not None and value >= share), None)


def equal_reports(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> int:
    """How many reports two runs share, if all of these say the same loss; else 0."""
    mine, theirs = ({row["step"]: row.get("loss") for row in rows} for rows in (one, other))
    shared = mine.keys() & theirs.keys()
    return len(shared) if all(mine[step] is not None and mine[step] == theirs[step] for step in shared) else 0


def _share(row: Mapping[str, Any]) -> float | None:
    """The exact match of a report; another program's may have none."""
    value = row.get("held_out_exact_match")
    return float(value) if isinstance(value, (int, float)) else None


def _equal(one: Any, other: Any) -> bool:
    return one == other or (pd.isna(one) and pd.isna(other))
