"""`xformer eval`, `trace`, `export`, `lesson` and `doctor`: score, record, export and check a model."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xformer.cli.output import (
    check_samples,
    check_seed,
    checked_page,
    figure,
    lengths_in,
    print_answer,
    print_error,
    print_line,
    print_table,
    score_of,
)
from xformer.errors import InputError, XformerError
from xformer.files import write_atomically
from xformer.installed import shipped
from xformer.task_limits import TASK_LIMITS

if TYPE_CHECKING:
    from torch import nn

    from xformer.checkpoints import Checkpoint
    from xformer.doctor.check import Finding
    from xformer.reading import Reading
    from xformer.tasks import Task


def run_trace(options: Namespace) -> None:
    """Record a trace of an xformer model or an external model, write it to a file, and print a summary."""
    out = _checked_out(options.out, options.dir)
    from xformer.adapters.load import is_external  # imported after the options have been checked
    from xformer.reading import read
    from xformer.trace import save_trace

    if out.suffix != ".npz" and is_external(Path(options.dir)):
        raise InputError("A trace of an external model must be written as .npz; for example --out trace.npz.")
    reading = read(options.dir, options.input)
    if out.suffix == ".npz":
        reading.trace.save_npz(out)
    else:
        save_trace(reading.trace, out)
    if options.json:
        shapes = {name: list(reading.trace[name].shape) for name in reading.trace}
        predicted = _predicted(reading) if reading.has_logits else None
        typed = reading.adapter.input.text(reading.example.source)
        print_answer("trace", input=typed, predicted=predicted, activations=shapes, file=str(out))
        return
    print_line(f"input      {reading.adapter.input.text(reading.example.source)}")
    if reading.has_logits:
        print_line(f"predicted  {_predicted(reading)}")
    print_line(f"{len(reading)} activations, {out.stat().st_size:,} bytes, written to {out}")


def _predicted(reading: Reading) -> str:
    """Return the most likely token at each output that has an answer, or for a text the most likely next token."""
    tokens = reading.predicted
    if reading.open_output is not None and not reading.has_right_answer:
        tokens = (int(reading.logits[0, reading.open_output].argmax()),)
    return " ".join(reading.adapter.token_labels[token] for token in tokens)


def _checked_out(out: str, model: str) -> Path:
    """Return the path of the file to write. Raises `InputError` for a folder, another suffix, or the model itself."""
    path = Path(out)
    is_folder = out.endswith((os.sep, "/")) or path.is_dir()
    if path.suffix not in (".safetensors", ".npz") or is_folder or (path.exists() and not path.is_file()):
        raise InputError(f"--out must name a .safetensors or .npz file, got {out!r:.200}; for example trace.npz.")
    read = Path(model) / "model.safetensors" if os.path.isdir(model) else Path(model)
    if path.exists() and read.exists() and path.samefile(read):
        raise InputError(f"--out would overwrite the model itself, got {out!r:.200}; for example trace.safetensors.")
    return path


def run_export(options: Namespace) -> None:
    """Write one HTML file that works offline: the attention view of one input, or with `live` a model that runs in the page."""
    if options.model == "live":
        _export_live(options)
        return
    if options.live:
        what = f"export takes one model, also got {options.live[0]!r:.200}"
        raise InputError(f"{what}; for a live page: export live {options.model}.")
    out = checked_page(options.out, "--out")
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", options.head, re.ASCII)
    if not found:
        raise InputError(f"--head must be a layer and head, counted from 1, got {options.head!r:.40}; for example 1.1.")
    layer, head = int(found[1]) - 1, int(found[2]) - 1
    from xformer.reading import read  # imported after the options have been checked
    from xformer.widgets.page import view_page

    original = read(options.model, options.input)
    changed = read(options.model, options.input, edits=options.edits) if options.edits else None
    heads = [original.adapter.shape.heads[site.path] for site in original.attention]
    if not (0 <= layer < len(heads) and 0 <= head < heads[layer]):
        raise InputError(f"--head must be one of the model's heads, got {options.head}; for example 1.1.")
    write_atomically(out, view_page(original, changed, layer=layer, head=head, edits=options.edits).encode())
    print_line(f"{out.stat().st_size:,} bytes, written to {out}")


def _export_live(options: Namespace) -> None:
    if len(options.live) + bool(options.out) != 2:
        raise InputError("export live takes a model and a file; for example export live checkpoints/sort sort.html.")
    model, name = options.live if len(options.live) == 2 else (options.live[0], options.out)
    out = checked_page(name, "export live")
    from xformer.live.export import save_live  # imported after the options have been checked

    save_live(out, model, options.input)
    print_line(f"{out.stat().st_size:,} bytes, written to {out}")


def run_lesson(options: Namespace) -> None:
    """Build the page of a lesson. If the lesson names a preset, train it first."""
    out = checked_page(options.out or str(Path(options.file).with_suffix(".html")), "--out")
    from xformer.live.lesson import build  # imported after the options have been checked

    build(options.file, out)
    print_line(f"{out.stat().st_size:,} bytes, written to {out}")


def run_doctor(options: Namespace) -> int:
    """Print the findings. Returns 0 if there is no problem, 1 if there is one, 2 if the path or a rule cannot be checked."""
    try:
        code = _CODE.fullmatch(options.path)
        where = Path(code[1]) if code else shipped(Path(options.path))
        if options.path.endswith(".npz"):
            raise InputError("doctor cannot read NumPy archives; write the trace with --out trace.safetensors.")
        if not where.exists():
            raise InputError(f"There is nothing at {options.path[:200]!r}; give a model or a file written by trace.")
        if code:
            return _doctor_of_code(options, where, code[2])
        from xformer.trace import is_trace  # imported after the path has been checked

        if where.is_file() and where.suffix != ".gguf" and is_trace(options.path):
            return _doctor_of_trace(options)
        from xformer.doctor.diagnose import iter_findings, token_model_of

        return _report(iter_findings(token_model_of(options.path, options.text), spec=options.spec), options.json)
    except (XformerError, OSError) as error:
        print_error(error)
        return 2
    except (RuntimeError, IndexError):  # a trace file with inconsistent arrays
        print_error(f"The activations in {options.path} are inconsistent with each other or with their configuration.")
        return 2


_CODE = re.compile(r"(.+\.py):([^\W\d]\w*)")
"""A Python file, and the name in it of a module, or of a function that returns one."""


def _doctor_of_code(options: Namespace, file: Path, name: str) -> int:
    """Import a Python file and check its model. What its code prints goes to stderr, so that the answer stays readable."""
    from xformer.doctor.diagnose import iter_findings, token_model_of

    if options.text is not None:
        raise InputError(f"--text is for models with a tokenizer; let {name} return a pair, the module and its inputs.")
    with redirect_stdout(sys.stderr):
        model, inputs = _made_by(file, name)
        findings = iter_findings(token_model_of(model, inputs), spec=options.spec)
        if options.json:
            findings = iter(list(findings))
    return _report(findings, options.json)


def _made_by(file: Path, name: str) -> tuple[nn.Module, Any]:
    """Return the module that a Python file makes, and its inputs or None."""
    from torch import nn

    sys.path.insert(0, str(file.parent.resolve()))  # as `python FILE` does
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None  # it is a .py file
    assert spec.loader is not None
    module = sys.modules[file.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        made = getattr(module, name)
        made = made if isinstance(made, nn.Module | tuple) else made()
    except Exception as error:
        raise InputError(f"{file.name}:{name} could not be made. {type(error).__name__}: {error!s:.300}") from None
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        rule = f"{file.name}:{name} must be a module, a pair (module, inputs), or a function without arguments that returns one"
        raise InputError(f"{rule}, got {type(model).__name__}; for example: def make(): return GPT()")
    return model, inputs


def _report(findings: Iterable[Finding], is_answer: bool) -> int:
    """Print each finding as it arrives, then the remedies and what was not checked; or all as one answer."""
    from xformer.doctor.check import count
    from xformer.doctor.diagnose import Diagnosis

    found = []
    for finding in findings:
        found.append(finding)
        if not is_answer and finding.verdict != "not applicable":
            shown = {"could not run": "not run"}.get(finding.verdict, finding.verdict)
            print_line(f"{shown:7} {finding.check}: {finding.whole_sentence}")
    diagnosis = Diagnosis(tuple(found))
    code = 1 if diagnosis.broken else 2 if diagnosis.could_not_run else 0
    if is_answer:
        order = {"broken": 0, "unusual": 1, "could not run": 2, "holds": 3, "not applicable": 4}
        rest = sorted((one for one in found if one not in diagnosis.broken), key=lambda one: order[one.verdict])
        rows = [one.row() for one in (*diagnosis.broken, *rest)]
        print_answer("doctor", ok=diagnosis.ok, findings=rows, not_checked=diagnosis.not_checked)
        return code
    print_line()
    n, n_unusual, n_failed = (len(one) for one in (diagnosis.broken, diagnosis.unusual, diagnosis.could_not_run))
    nothing = "Nothing is broken in the checks that ran." if n_unusual or n_failed else "No problems found."
    summary = [f"{count(n, 'check')} found a problem." if n else nothing]
    summary += [f"{count(n_unusual, 'check')} found something unusual."] if n_unusual else []
    summary += [f"{count(n_failed, 'check')} could not run."] if n_failed else []
    print_line(" ".join(summary))
    for finding in (*diagnosis.broken, *diagnosis.unusual):
        print_line(f"  {finding.check}: {finding.remedy}")
    _print_section("Not checked", diagnosis.not_checked)
    return code


def _print_section(heading: str, lines: Sequence[str]) -> None:
    """Print a heading and indented lines, if there are any."""
    if lines:
        print_line()
        print_line(f"{heading}:")
    for line in lines:
        print_line(f"  {line}")


def _doctor_of_trace(options: Namespace) -> int:
    """Compare every step in the trace of an xformer model with its equation, and print the findings."""
    from xformer.doctor.equations.report import check_trace, mistakes_frame, too_few_rows
    from xformer.trace import load_trace

    recorded = load_trace(options.path)
    report = check_trace(recorded)
    if options.json:
        found, ok = [asdict(one) for one in report.mistakes], all(one.severity == "note" for one in report.mistakes)
        print_answer("doctor", ok=ok, mistakes=found, checked=report.checked, not_checked=report.unchecked)
        return int(not ok)
    if report.mistakes:
        rows = mistakes_frame(report.mistakes).itertuples(index=False)
        print_table(("severity", "kind", "where", "finding", "numbers"), rows, apart=True, whole=2)
    else:
        print_line("No problems found.")
    if too_few_rows(recorded):
        print_line("The trace has too few tokens to determine where queries, keys and values come from.")
    _print_section("Checked", report.checked)
    _print_section("Not checked (not part of this model, or the trace shows too little)", report.unchecked)
    _print_section("Impossible to check in any trace", report.not_checkable)
    return int(any(mistake.severity != "note" for mistake in report.mistakes))


def run_eval(options: Namespace) -> None:
    """Print the scores of a checkpoint as a table or as JSON; `--card` also writes them to its card."""
    check_samples("--samples", options.samples, 1)
    check_seed(options.seed)
    lengths = None if options.lengths is None else lengths_in(options.lengths)
    from xformer.checkpoints import load  # imported after the options have been checked
    from xformer.training.evaluate import measure, put_figures_on_card

    checkpoint = load(options.dir)
    if checkpoint.task is None:
        raise InputError(f"The checkpoint {options.dir} names no task, so there is nothing to score it on.")
    if lengths is not None:
        _by_length(checkpoint, lengths, options)
        return
    if options.card:
        figures = put_figures_on_card(options.dir, options.samples, edge_cases=True)
    else:
        figures = measure(checkpoint, options.samples, options.seed, edge_cases=options.edge_cases)
    if options.json:
        print_answer("eval", **figures, **_bits(figures, checkpoint.task))
        return
    rows = []
    for prefix, part in (("", figures), ("edge cases: ", figures.pop("edge_cases", {}))):
        for name, value in (part | _bits(part, checkpoint.task)).items():
            rows.append((prefix + name.replace("_", " "), figure(name, value)))
    print_table(("figure", "value"), rows)


def _by_length(checkpoint: Checkpoint, lengths: range, options: Namespace) -> None:
    """Print the scores for each input length, and whether the model was trained on that length."""
    from xformer.training.evaluate import scores_by_length

    task = checkpoint.task
    assert task is not None
    found = scores_by_length(checkpoint.model, task, lengths, samples=options.samples, seed=options.seed)
    scores = [{"length": length, **vars(score)} for length, score in found]
    if options.json:
        print_answer("eval", lengths=scores, seed=options.seed)
        return
    trained = range(task.config.min_len, task.config.max_len + 1)
    names = ("exact_match", "token_accuracy", "loss", "samples")
    rows = []
    for row in scores:
        known = "yes" if row["length"] in trained else "no"
        rows.append((str(row["length"]), *(figure(name, row[name]) for name in names), known))
    print_table(("length", *(name.replace("_", " ") for name in names), "trained on"), rows)


def _bits(figures: dict[str, Any], task: Task) -> dict[str, float]:
    """Return the bits per character if the task is to continue a text."""
    is_text = TASK_LIMITS[task.config.name].is_text
    return {"bits_per_character": score_of(figures).bits} if is_text and figures else {}
