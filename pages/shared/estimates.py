"""Measuring many parts of a model: at once where that is quick; for the others there are estimates, and how good those are.

The first report of such a job comes before any part is measured. A report counts what is `done` of what is `to_do`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from pages.shared.background_job import Job, progress
from xformer.analysis.ablation import agreement
from xformer.formatting import duration

LONG = 10.0
"""Seconds: what takes longer is measured only when the visitor asks for it."""


def begin(job: Job[Any], at_once: float) -> None:
    """Measure for `at_once` seconds; stop there if measuring all takes longer than `LONG`, by the time of what is done."""
    job.advance(at_once)
    while job.is_running and job.latest is not None and not job.latest.done:
        job.advance(0.0)
    if job.is_running and job.seconds + seconds_left(job) > LONG:
        job.cancel()


def seconds_left(job: Job[Any]) -> float:
    """How long the rest takes if it goes on as before."""
    assert job.latest is not None
    return job.seconds * (job.latest.to_do / max(1, job.latest.done) - 1)


def bar(job: Job[Any], key: str, many: str) -> None:
    """How far the measuring is, with a way to stop it and to go on."""
    if (found := job.latest) is None or found.is_final:
        return
    words = f"{found.done} of {found.to_do} {many} measured"
    stopped = f"{words}. The other {found.to_do - found.done} take about {duration(seconds_left(job))}."
    progress(job, key, found.done / max(1, found.to_do), words, stopped)


def how_far_to_trust(table: pd.DataFrame, many: str) -> str:
    """What is measured, and how well the estimates agree with it, as Markdown; `table` has the columns estimated, measured."""
    return " ".join(_sentences(table, many))


def _sentences(table: pd.DataFrame, many: str) -> Iterator[str]:
    missing, found = table["measured"].isna().tolist().count(True), agreement(table)
    if missing:
        yield f"**{missing} of {len(table)} {many} are not measured**; for them there is only an estimate."
    else:
        yield f"All {len(table)} {many} are measured."
    if found is None:
        if missing:
            yield "Too few are measured to say how good the estimates are."
        return
    if found.is_near_chance:
        yield "**Do not rely on the estimates here: a random order could agree as well.**"
    elif found.is_poor:
        yield f"**Do not choose {many} by the estimates here: they miss large effects.**"
    rho = f"{int(found.rho * 100) / 100:+.2f}".replace("-", "−")
    yield (
        f"Over the {found.n} that are measured and do anything, the estimates have a rank correlation of **{rho}** with the "
        f"measurements (Spearman; 1: the same order, 0: no relation); the {found.top} {many} with the largest estimates have "
        f"{int(100 * found.found)}% of the effect of the {found.top} with the largest effects (sizes added up)."
    )
