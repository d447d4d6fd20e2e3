"""`python -m xformer doctor`: what is wrong with a checkpoint or a recorded trace."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.cli.say import complain, say, say_json, say_table
from xformer.errors import InputError, XformerError

if TYPE_CHECKING:
    from xformer.diagnosis.report import Report


def run(options: Namespace) -> int:
    """0: nothing is wrong, 1: something is, 2: it cannot be examined."""
    try:
        report, left_open = _examined(options.path)
    except (XformerError, OSError) as error:
        complain(error)
        return 2
    except (RuntimeError, IndexError):  # a trace file whose arrays do not fit each other
        complain(f"The activations in {options.path} do not fit each other or their configuration.")
        return 2
    if options.json:
        say_json([asdict(finding) for finding in report.findings])
    else:
        _say(report, left_open)
    return int(any(finding.severity != "note" for finding in report.findings))


def _examined(path: str) -> tuple[Report, str]:
    """What was found, and a remark on what could not be."""
    if path.endswith(".npz"):
        raise InputError("NumPy archives are not read; write the trace with --out trace.safetensors.")
    if not Path(path).exists():
        raise InputError(f"There is nothing at {path[:200]!r}; give a checkpoint folder, or a file that trace wrote.")
    from xformer.checkpoints import load
    from xformer.diagnosis.diagnose import diagnose, too_few_rows
    from xformer.diagnosis.model import check_up  # only now: what was typed may be wrong
    from xformer.trace_file import is_trace, load_trace

    if Path(path).is_file() and is_trace(path):
        recorded = load_trace(path)
        few = " (Its tokens are too few to tell where queries, keys and values come from.)"
        return diagnose(recorded), few if too_few_rows(recorded) else ""
    checkpoint = load(path)
    return check_up(checkpoint.model, checkpoint.task), ""


def _say(report: Report, left_open: str) -> None:
    from xformer.diagnosis.diagnose import findings_frame

    if not report.findings:
        say(f"Nothing is wrong in what was looked at.{left_open}")
    else:
        rows = findings_frame(report.findings).itertuples(index=False)
        say_table(("severity", "kind", "where", "finding", "numbers"), rows, apart=True, whole=2)
    for heading, lines in (
        ("Checked", report.checked),
        ("Not looked at here (this model has none of it, or the run shows too little)", report.left_open),
        ("Out of sight of any run", report.out_of_sight),
    ):
        if lines:
            say()
            say(f"{heading}:")
            for line in lines:
                say(f"  {line}")
