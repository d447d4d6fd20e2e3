"""Reports of checked submissions: tables, JSON, JUnit XML, and the common mistakes of a class as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import pandas as pd

from xformer.assignments.grading import HINTS, Result
from xformer.installed import needed

SCHEMA_VERSION = 1
"""The version of the JSON; it grows when a field changes its meaning or goes away."""
COLUMNS = (
    "submission", "task", "status", "part", "cause", "line", "text", "sentence", "case", "output", "index", "expected",
    "actual", "follows_from",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Report:
    """What was found in one submission.

    Attributes:
        name: The name of the submission: its folder or file.
        results: One for each task.
        notes: What was noticed besides, one sentence each.
        hint: How much is told: 1 where to look, 2 also what is wrong, 3 also how it should read.

    Example:
        >>> from xformer import assignments
        >>> def causal_mask(n):
        ...     return torch.ones(n, n).tril(1).bool()
        >>> import torch
        >>> report = assignments.check(causal_mask)
        >>> report.ok, report.results[0].cause
        (False, 'mask_off_by_one')
    """

    name: str
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    hint: int = 1

    @property
    def ok(self) -> bool:
        """Whether every task is passed."""
        return all(one.status == "passed" for one in self.results)

    @property
    def n_passed(self) -> int:
        """The number of passed tasks."""
        return sum(one.status == "passed" for one in self.results)

    @property
    def table(self) -> pd.DataFrame:
        """One row per task: where the first wrong cell is, its right and actual number, the cause and the line."""
        return pd.DataFrame([_row(self.name, one) for one in self.results], columns=list(COLUMNS))

    def hints(self, result: Result) -> list[str]:
        """Return the hints for a task that this report tells."""
        told = list(zip(HINTS, result.hints, strict=False))[: self.hint]
        return [f"{name}: {text}" for name, text in told if text not in result.sentence or result.cell is not None]

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.n_passed} of {len(self.results)} tasks passed"]
        for one in self.results:
            lines += [f"  {line}" for line in self.lines(one)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def lines(self, result: Result) -> list[str]:
        """Return a result as lines of text: the status and the cause, the cell, the line, and the hints."""
        named = f": {result.cause}" if result.status == "failed" and result.cause else ""
        status = {"passed": "passed", "failed": "FAILED", "not_written": "to do"}[result.status]
        lines = [f"{status}  {result.task}{named}"]
        if result.status != "failed":
            return lines
        if result.place.line:
            lines.append(f"        {result.place.line}  {result.place.text}")
        lines.append(f"        {result.cell}" if result.cell is not None else f"        {result.sentence}")
        if result.follows_from:
            lines.append(f"        This may follow from {', '.join(result.follows_from)}.")
        return lines + [f"        {hint}" for hint in self.hints(result)]

    def _repr_html_(self) -> str:
        rows = ""
        for one in self.results:
            told = [] if one.status == "passed" else [one.cause, str(one.cell or one.sentence), *self.hints(one)]
            where = f"{escape(one.place.line)}<br><code>{escape(one.place.text)}</code>" if told else ""
            cells = "<br>".join(escape(line) for line in told if line)
            style = "text-align:left"
            rows += f"<tr><td>{escape(one.title)}</td><td>{one.status}</td><td style='{style}'>{where}</td>"
            rows += f"<td style='{style}'>{cells}</td></tr>"
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<p><b>{self.n_passed} of {len(self.results)} tasks passed</b></p><table>{rows}</table>{notes}"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        tasks = [asdict(one) | {"hints": dict(zip(HINTS, one.hints, strict=False))} for one in self.results]
        named = {"submission": self.name, "passed": self.n_passed, "total": len(self.results)}
        return {**named, "tasks": tasks, "notes": list(self.notes)}


def _row(name: str, result: Result) -> dict[str, str]:
    cell = result.cell
    index = "" if cell is None else ", ".join(f"{axis} {at}" for axis, at in cell.index.items())
    found = {"submission": name, "line": result.place.line, "text": result.place.text, "index": index}
    found |= {"follows_from": ", ".join(result.follows_from)}
    found |= {one: getattr(result, one) for one in ("task", "status", "part", "cause", "sentence")}
    return found | {one: "" if cell is None else getattr(cell, one) for one in ("case", "output", "expected", "actual")}


def to_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the reports as one JSON object with a `schema_version`."""
    return {"schema_version": SCHEMA_VERSION, "submissions": [one.as_json() for one in reports]}


def to_csv(reports: Sequence[Report]) -> bytes:
    """Return the tables of all reports as CSV."""
    from xformer.training.tables import to_csv as written

    return written(pd.concat([one.table for one in reports]))


def to_junit(reports: Sequence[Report]) -> str:
    """Return the reports as JUnit XML: a suite for each submission, a case for each task."""
    root = ET.Element("testsuites")
    for report in reports:
        failed = sum(one.status == "failed" for one in report.results)
        skipped = sum(one.status == "not_written" for one in report.results)
        counts = {"tests": len(report.results), "failures": failed, "errors": 0, "skipped": skipped}
        suite = ET.SubElement(root, "testsuite", {"name": report.name, **{name: str(n) for name, n in counts.items()}})
        for one in report.results:
            case = ET.SubElement(suite, "testcase", {"classname": _xml(report.name), "name": one.task})
            if one.status == "failed":
                text = "\n".join(report.lines(one))
                ET.SubElement(case, "failure", {"type": one.cause, "message": _xml(one.sentence)}).text = _xml(text)
            elif one.status == "not_written":
                ET.SubElement(case, "skipped", {"message": "It is not written yet."})
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _xml(text: str) -> str:
    """Text without the control characters that XML forbids."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def common_mistakes(table: pd.DataFrame) -> Any:
    """Draw how many submissions made each mistake in each task.

    Args:
        table: The table of a class, as `--csv` writes it: `pandas.read_csv(file, keep_default_na=False)`.

    Returns:
        An Altair chart: a bar for each task and cause, the longest first. A task that repeats the mistake of one that it uses
        is not counted.

    Example:
        >>> from xformer import assignments
        >>> def causal_mask(n):
        ...     return torch.ones(n, n).tril(1).bool()
        >>> import torch
        >>> chart = assignments.common_mistakes(assignments.check(causal_mask).table)
        >>> chart.to_dict()["mark"]["type"]
        'bar'
    """
    with needed("altair", "A chart", "xformer-studio[viz]"):
        import altair as alt
    failed = table.query("status == 'failed'")
    is_repeated = failed.duplicated(["submission", "cause"]) & (failed["follows_from"] != "")
    named = failed.assign(cause=[cause or "(not known)" for cause in failed["cause"]], is_repeated=is_repeated)
    counted = (
        named.query("not is_repeated")
        .groupby(["task", "cause"], as_index=False)
        .agg(
            submissions=("submission", "nunique"),
            names=("submission", lambda names: ", ".join(sorted(set(names))[:12])),
        )
    )
    counted["mistake"] = counted["task"] + ": " + counted["cause"]
    total = table["submission"].nunique()
    return (
        alt.Chart(counted, title=f"Mistakes in {total} submissions")
        .mark_bar()
        .encode(
            x=alt.X("submissions:Q", title="Submissions", axis=alt.Axis(format="d", tickMinStep=1)),
            y=alt.Y("mistake:N", sort="-x", title=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color("task:N", legend=None),
            tooltip=["task", "cause", "submissions", "names"],
        )
    )
