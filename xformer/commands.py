"""What each command of the command line does: one function a command, given its parsed options."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from xformer.analysis.diagnose_model import check_up
from xformer.analysis.diagnose_report import Report
from xformer.analysis.diagnostics import diagnosis, findings_frame, too_few_rows
from xformer.checkpoints import CARD, FILE, load
from xformer.config import TaskName
from xformer.errors import InputError, XformerError
from xformer.presets import preset
from xformer.tasks import Score, Task, texts
from xformer.tasks.rules import RULES
from xformer.trace import record
from xformer.trace_file import is_trace, load_trace, save_trace
from xformer.training.allocator import settle
from xformer.training.book import Book, Entry
from xformer.training.figures import measure, put_figures_on_card
from xformer.training.glance import exact_match, latest_rows
from xformer.training.loop import train as train_preset
from xformer.training.own_text import with_text
from xformer.training.progress import Progress
from xformer.training.snapshots import STATE, read_state
from xformer.training.transfer import card_of
from xformer.words import percent


def train(options: Namespace) -> None:
    """Train a preset with a progress bar; an interrupt keeps the state, so that --resume goes on from there."""
    settle()
    chosen = preset(options.preset)
    if options.text is not None:
        chosen = with_text(chosen, texts.keep(Path(options.text).read_bytes()))
    changes = {name: getattr(options, name) for name in ("steps", "seed") if getattr(options, name) is not None}
    if options.no_snapshots:
        changes["snapshot_every"] = 0
    chosen = replace(chosen, train=chosen.train.replace(**changes))
    console = Console()
    console.print(f"{chosen.title}: {chosen.model.n_parameters():,} parameters, {chosen.train.steps:,} steps")
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[how]}"),
        TimeRemainingColumn(),
    )
    last: Progress | None = None
    reports = train_preset(chosen, out=options.out, device=options.device, resume=options.resume)
    with Bar(*columns, console=console) as bar, closing(reports):  # pyright: ignore[reportArgumentType]
        shown = bar.add_task("training", total=chosen.train.steps, loss="–", how="")
        for last in reports:
            bar.update(
                shown, completed=last.step, loss=f"{last.loss:.4f}", how=_how_good(last.held_out, chosen.task.name)
            )
            if last.note:
                bar.console.print(last.note)
    if options.score:
        figures = put_figures_on_card(options.out, options.score, edge_cases=True)
        console.print(f"{_how_good(_score(figures), chosen.task.name)} on {figures['samples']:,} unseen inputs")
        if "edge_cases" in figures:
            edges = figures["edge_cases"]
            console.print(f"{_how_good(_score(edges), chosen.task.name)} on {edges['samples']:,} edge cases")
    if last is not None:
        console.print(f"{last.seconds:.1f} s of training; saved to {options.out}")


def eval(options: Namespace) -> None:
    """Score a checkpoint on fresh sequences."""
    checkpoint = load(options.dir)
    if checkpoint.task is None:
        raise InputError(f"The checkpoint {options.dir} names no task, so there is nothing to score it on.")
    if not 1 <= options.samples <= 10_000_000:
        raise InputError(f"--samples must be from 1 to 10,000,000, got {options.samples}; for example 10000.")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"--seed must be from 0 to 2^63 - 1, got {options.seed}; for example 1.")
    if options.card:
        figures = put_figures_on_card(options.dir, options.samples, edge_cases=True)
    else:
        figures = measure(checkpoint, options.samples, options.seed, edge_cases=options.edge_cases)
    if options.json:
        print(json.dumps(figures | _bits(figures, checkpoint.task)))
        return
    table = Table("figure", "value")
    for of, found in (("", figures), ("edge cases: ", figures.pop("edge_cases", {}))):
        for name, value in (found | _bits(found, checkpoint.task)).items():
            table.add_row(of + name.replace("_", " "), _figure(name, value))
    Console().print(table)


def _figure(name: str, value: float) -> str:
    if name == "seed":
        return str(value)
    if name in ("token_accuracy", "exact_match"):
        return percent(value, 4)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _bits(figures: dict[str, Any], task: Task) -> dict[str, float]:
    """Of a text also bits per character."""
    return {"bits_per_character": _score(figures).bits} if task.rule.goes_on and figures else {}


def _score(figures: dict[str, Any]) -> Score:
    return Score(**{name: figures[name] for name in ("loss", "token_accuracy", "exact_match", "samples")})


def _how_good(score: Score, task: TaskName) -> str:
    """The one figure that a task is judged by, in words."""
    if RULES[task].goes_on:
        return f"held-out loss {score.loss:.4f} nats, {score.bits:.3f} bits per character"
    return f"{percent(score.exact_match)} exact match"


def trace(options: Namespace) -> None:
    """Record one run and write all its activations as .safetensors, or as .npz for NumPy."""
    out = Path(options.out)
    if out.suffix not in (".safetensors", ".npz") or out.is_dir():
        raise InputError(
            f"--out must name a file ending in .safetensors or .npz, got {options.out!r}; for example trace.npz."
        )
    checkpoint = load(options.dir)
    if checkpoint.task is None:
        raise InputError(f"The checkpoint {options.dir} names no task, so its input cannot be read.")
    task = checkpoint.task
    example = task.example(task.vocabulary.read(options.input), max_len=checkpoint.config.max_len)
    recorded = record(checkpoint.model, example.stream, example.target)
    if out.suffix == ".npz":
        recorded.save_npz(out)
    else:
        save_trace(recorded, out)
    predicted = recorded.logits[0].argmax(dim=-1)[example.labels[0] >= 0].tolist()
    console = Console()
    console.print(f"input      {task.vocabulary.text(list(example.source))}")
    console.print(f"predicted  {task.vocabulary.text(predicted)}")
    console.print(f"{len(recorded.activations)} activations, {out.stat().st_size:,} bytes, written to {out}")


def doctor(options: Namespace) -> int:
    """Say what is wrong with a checkpoint or a recorded trace: 0 nothing, 1 something, 2 it cannot be examined."""
    left_open = ""
    try:
        if options.path.endswith(".npz"):
            raise InputError("NumPy archives are not read; write the trace with --out trace.safetensors.")
        if Path(options.path).is_file() and is_trace(options.path):
            recorded = load_trace(options.path)
            report = diagnosis(recorded)
            if too_few_rows(recorded):
                left_open = " (Its tokens are too few to tell where queries, keys and values come from.)"
        else:
            checkpoint = load(options.path)
            report = check_up(checkpoint.model, checkpoint.task)
    except (XformerError, OSError) as error:
        print(f"xformer: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, IndexError):  # a trace file whose arrays do not fit each other
        print(
            f"xformer: The activations in {options.path} do not fit each other or their configuration.", file=sys.stderr
        )
        return 2
    found = report.findings
    if options.json:
        print(json.dumps([asdict(finding) for finding in found]))
        return _exit_code(report)
    if not found:
        print(f"Nothing is wrong in what was looked at.{left_open}")
    else:
        table = Table(show_lines=True)
        for column in ("severity", "kind", "where", "finding", "numbers"):
            table.add_column(column, no_wrap=column in ("severity", "kind"))
        for row in findings_frame(found).itertuples(index=False):
            table.add_row(*(escape(str(value)) for value in row))
        Console().print(table)
    for heading, lines in (
        ("Checked", report.checked),
        ("Not looked at here (this model has none of it, or the run shows too little)", report.left_open),
        ("Out of sight of any run", report.out_of_sight),
    ):
        if lines:
            print(f"\n{heading}:")
            print("\n".join(f"  {line}" for line in lines))
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    return int(any(finding.severity != "note" for finding in report.findings))


def runs(options: Namespace) -> None:
    """List what was trained in a folder, in the app or here; show one run's card, or delete one."""
    folder = Path(options.folder)
    book, entries, thrown_away = Book(folder), {}, set()
    if book.database.file.exists():  # else looking would make one
        entries = {entry.id: entry for entry in reversed(book.entries())}
        thrown_away = {entry.id for entry in book.entries(deleted=True)}
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()} if folder.is_dir() else {}
    found = {
        name: path
        for name, path in found.items()
        if name not in {*entries, *thrown_away} and ((path / FILE).exists() or (path / STATE).exists())
    }
    if options.action == "list":
        _list(found, entries, book, folder)
    elif options.run in entries:
        _one_of_the_book(options.action, entries[options.run], book)
    elif options.run not in found:
        there = ", ".join([*found, *entries]) or "none"
        raise InputError(f"There is no run {options.run!r} in {folder}; the runs there: {there}.")
    elif options.action == "show":
        Console().print_json(data=_card(found[options.run]))
    else:
        shutil.rmtree(found[options.run])
        print(f"Deleted {found[options.run]}.")


def _one_of_the_book(action: str, entry: Entry, book: Book) -> None:
    if action == "show":
        card = card_of(entry, book.rows(entry.id), entry.step)
        words = {"id": entry.id, "tags": entry.tags, "state": entry.state, "model": entry.model, "task": entry.task}
        Console().print_json(data=words | card)
        return
    book.delete(entry.id)
    print(f"Deleted {entry.id} ({entry.name}). While the app runs it can take it back for an hour.")


def _list(found: dict[str, Path], entries: dict[str, Entry], book: Book, folder: Path) -> None:
    if not found and not entries:
        print(f"Nothing has been trained in {folder} yet; start with: python -m xformer train --preset reverse --out …")
        return
    table = Table("run", "name", "preset", "seed", "step", "state", "exact match", "seconds")
    for name, path in found.items():
        card = _card(path)
        rows = card.get("curve") or card.get("rows") or []
        share = rows[-1]["held_out_exact_match"] if rows else None
        state = "stopped" if (path / STATE).exists() else "finished"
        _line(table, name, "", card, card.get("step", 0), state, share, card.get("seconds", 0))
    latest = latest_rows(book) if entries else {}
    for run, entry in entries.items():
        share = exact_match(entry, latest.get(run, {}))
        _line(table, run, entry.name, vars(entry), entry.step, entry.state, share, entry.seconds)
    Console().print(table)


def _line(
    table: Table, run: str, name: str, card: dict[str, Any], step: int, state: str, share: float | None, seconds: float
) -> None:
    exact = "–" if share is None else percent(share)
    seed = card.get("train", {}).get("seed", "")
    cells = [run, name, card.get("preset", ""), seed, f"{step:,}", state, exact, f"{seconds:.1f}"]
    table.add_row(*[escape(str(cell)) for cell in cells])


def _card(path: Path) -> dict[str, Any]:
    if (path / STATE).exists():
        return read_state(path).values
    return json.loads((path / CARD).read_text())
