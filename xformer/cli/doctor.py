"""`python -m xformer doctor`: what is wrong with a checkpoint, an external model or a recorded trace."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.cli.say import complain, say, say_json, say_table
from xformer.errors import InputError, XformerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xformer.diagnosis.case import Finding

Lists = tuple[tuple[str, "Sequence[str]"], ...]
"""The headings of a report, each with its lines."""


def run(options: Namespace) -> int:
    """Print the findings; 0: nothing is wrong, 1: something is wrong, 2: it cannot be examined."""
    try:
        findings, remark, lists = _examined(options.path)
    except (XformerError, OSError) as error:
        complain(error)
        return 2
    except (RuntimeError, IndexError):  # a trace file whose arrays do not fit each other
        complain(f"The activations in {options.path} do not fit each other or their configuration.")
        return 2
    if options.json:
        say_json([asdict(finding) for finding in findings])
    else:
        _say(findings, remark, lists)
    return int(any(finding.severity != "note" for finding in findings))


def _examined(path: str) -> tuple[Sequence[Finding], str, Lists]:
    """Return the findings, a remark, and the lists of what was checked and what was not."""
    if path.endswith(".npz"):
        raise InputError("NumPy archives are not read; write the trace with --out trace.safetensors.")
    where = Path(path)
    if not where.exists():
        raise InputError(f"There is nothing at {path[:200]!r}; give a model's folder, or a file that trace wrote.")
    from xformer.adapters.load import is_foreign  # only now: the path may be wrong
    from xformer.checkpoints import load
    from xformer.diagnosis.diagnose import diagnose, too_few_rows
    from xformer.diagnosis.model import check_up
    from xformer.trace import is_trace, load_trace

    if is_foreign(where):
        return _external(path)
    remark = ""
    if where.is_file() and is_trace(path):
        recorded = load_trace(path)
        report = diagnose(recorded)
        if too_few_rows(recorded):
            remark = "(Its tokens are too few to tell where queries, keys and values come from.)"
    else:
        checkpoint = load(path)
        report = check_up(checkpoint.model, checkpoint.task)
    lists = (
        ("Checked", report.checked),
        ("Not checked here (this model has none of it, or the run shows too little)", report.left_open),
        ("Out of reach of any run", report.out_of_sight),
    )
    return report.findings, remark, lists


def _external(path: str) -> tuple[Sequence[Finding], str, Lists]:
    """The same of a model of the Transformers library, from a run of an example input."""
    from xformer.adapters.load import opened_from
    from xformer.diagnosis.external import check_reading
    from xformer.reading import read

    model = opened_from(Path(path))
    report = check_reading(read(model, model.input.default))
    lines = [f"{check} ({n} {'place' if n == 1 else 'places'})" for check, n in report.looked.items()]
    rest = "the equations of each layer: they are known of models of xformer; xformer.viz draws what this one computes"
    return report.findings, str(getattr(model, "verification", "")), (("Checked", lines), ("Not checked", [rest]))


def _say(findings: Sequence[Finding], remark: str, lists: Lists) -> None:
    from xformer.diagnosis.diagnose import findings_frame

    if findings:
        say_table(
            ("severity", "kind", "where", "finding", "numbers"),
            findings_frame(findings).itertuples(index=False),
            apart=True,
            whole=2,
        )
    else:
        say(f"Nothing is wrong in what was checked. {remark}".rstrip())
    for heading, lines in lists:
        if lines:
            say()
            say(f"{heading}:")
            for line in lines:
                say(f"  {line}")
