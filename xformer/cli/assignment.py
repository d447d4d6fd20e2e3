"""`xformer assignment`: write the folder of an assignment, and check submissions."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.cli.output import print_error, print_json, print_line
from xformer.errors import InputError, XformerError
from xformer.files import write_atomically

if TYPE_CHECKING:
    from xformer.assignments.report import Report


def run_assignment(options: Namespace) -> int:
    """Write or check. Returns 0 if every task is passed, 1 if one is not, 2 if a submission cannot be checked."""
    try:
        return _write(options) if options.action == "new" else _check(options)
    except (XformerError, OSError) as error:
        print_error(error)
        return 2


def _write(options: Namespace) -> int:
    from xformer.assignments.writing import write  # imported after the options have been parsed

    if len(options.paths) != 1:
        raise InputError(f"assignment new takes one folder, got {len(options.paths)}.")
    files = write(options.paths[0], assignment=options.set, grader=options.grader)
    print_line(f"{len(files)} files written to {options.paths[0]}; read README.md there.")
    return 0


def _check(options: Namespace) -> int:
    from xformer.assignments.checking import check, empty_report  # imported after the options have been parsed
    from xformer.assignments.report import to_csv, to_json, to_junit

    reports: list[Report] = []
    for path in options.paths:
        try:
            reports.append(check(path, task=options.task, hint=options.hint))
        except InputError as error:
            if len(options.paths) == 1:
                raise
            reports.append(empty_report(path, str(error), task=options.task))
        if not options.json:
            for line in repr(reports[-1]).splitlines():
                print_line(line)
    if options.json:
        print_json(to_json(reports), indent=1)
    if options.junit:
        write_atomically(Path(options.junit), to_junit(reports).encode())
    if options.csv:
        write_atomically(Path(options.csv), to_csv(reports))
    if options.room:
        from xformer.assignments.room import report_to_room

        n = report_to_room(reports, options.room, options.name)
        print_line(f"{n} tasks reported to the room." if n != 1 else "1 task reported to the room.")
    if options.train:
        for path in options.paths:
            _train(path)
    return 0 if all(report.ok for report in reports) else 1


def _train(path: str) -> None:
    """Train the GPT of a submission in a process of its own, and print where its attention can be seen."""
    from xformer.assignments.checking import files_of
    from xformer.assignments.process import Submission

    file = files_of(Path(path))[0]
    with Submission(file) as code:
        found = code.train(30.0, file.parent)
    if "problem" in found:
        print_line(f"The model cannot be trained. {found['problem']['sentence']}")
        return
    accuracy = f"{found['accuracy']:.0%} of the repeated symbols in new texts"
    print_line(f"Trained for {found['steps']} steps: it predicts {accuracy}.")
    print_line(f"Its attention: {file.parent / found['page']}")
