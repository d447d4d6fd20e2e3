"""What each command of the command line does: one function a command, given its parsed options."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from xformer.checkpoints import CARD, FILE, load
from xformer.errors import InputError
from xformer.presets import preset
from xformer.trace import record
from xformer.training.allocator import settle
from xformer.training.evaluate import evaluate
from xformer.training.figures import put_figures_on_card
from xformer.training.loop import train as train_preset
from xformer.training.progress import Progress
from xformer.training.snapshots import STATE, read_state


def train(options: Namespace) -> None:
    """Train a preset with a progress bar; an interrupt keeps the state, so that --resume goes on from there."""
    settle()
    chosen = preset(options.preset)
    changes = {name: getattr(options, name) for name in ("steps", "seed") if getattr(options, name) is not None}
    if options.no_snapshots:
        changes["snapshot_every"] = 0
    chosen = replace(chosen, train=chosen.train.replace(**changes))
    console = Console()
    console.print(f"{chosen.title}: {chosen.model.n_parameters():,} parameters, {chosen.train.steps:,} steps")
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  exact match {task.fields[exact]}"),
        TimeRemainingColumn(),
    )
    last: Progress | None = None
    reports = train_preset(chosen, out=options.out, device=options.device, resume=options.resume)
    with Bar(*columns, console=console) as bar, closing(reports):  # pyright: ignore[reportArgumentType]
        shown = bar.add_task("training", total=chosen.train.steps, loss="–", exact="–")
        for last in reports:
            exact = f"{last.held_out.exact_match:.2%}"
            bar.update(shown, completed=last.step, loss=f"{last.loss:.4f}", exact=exact)
            if last.note:
                bar.console.print(last.note)
    if options.score:
        figures = put_figures_on_card(options.out, options.score)
        console.print(f"{figures['exact_match']:.4%} exact match on {figures['samples']:,} unseen sequences")
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
    score = evaluate(checkpoint.model, checkpoint.task, samples=options.samples, seed=options.seed)
    if options.json:
        print(json.dumps(asdict(score)))
        return
    table = Table("figure", "value")
    for name, value in asdict(score).items():
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.6f}")
    Console().print(table)


def trace(options: Namespace) -> None:
    """Record one run and write all its activations as .npz."""
    checkpoint = load(options.dir)
    if checkpoint.task is None:
        raise InputError(f"The checkpoint {options.dir} names no task, so its input cannot be read.")
    task = checkpoint.task
    example = task.example(task.vocabulary.read(options.input), max_len=checkpoint.config.max_len)
    recorded = record(checkpoint.model, example.stream, example.target)
    out = Path(options.out)
    recorded.save_npz(out)
    predicted = recorded.logits[0].argmax(dim=-1)[example.labels[0] >= 0].tolist()
    console = Console()
    console.print(f"input      {task.vocabulary.text(list(example.source))}")
    console.print(f"predicted  {task.vocabulary.text(predicted)}")
    console.print(f"{len(recorded.activations)} activations, {out.stat().st_size:,} bytes, written to {out}")


def runs(options: Namespace) -> None:
    """List the runs of a folder, show one's card, or delete one."""
    folder = Path(options.folder)
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()} if folder.is_dir() else {}
    found = {name: path for name, path in found.items() if (path / FILE).exists() or (path / STATE).exists()}
    if options.action == "list":
        _list(found, folder)
        return
    if options.run not in found:
        there = ", ".join(found) or "none"
        raise InputError(f"There is no run {options.run!r} in {folder}; the runs there: {there}.")
    if options.action == "show":
        Console().print_json(data=_card(found[options.run]))
        return
    shutil.rmtree(found[options.run])
    print(f"Deleted {found[options.run]}.")


def _list(found: dict[str, Path], folder: Path) -> None:
    if not found:
        print(f"Nothing has been trained in {folder} yet; start with: python -m xformer train --preset reverse --out …")
        return
    table = Table("run", "preset", "seed", "step", "state", "exact match", "seconds")
    for name, path in found.items():
        card = _card(path)
        rows = card.get("curve") or card.get("rows") or []
        exact = f"{rows[-1]['held_out_exact_match']:.2%}" if rows else "–"
        train_config = card.get("train", {})
        state = "stopped" if (path / STATE).exists() else "finished"
        table.add_row(
            name,
            str(card.get("preset", "")),
            str(train_config.get("seed", "")),
            f"{card.get('step', 0):,}",
            state,
            exact,
            f"{card.get('seconds', 0):.1f}",
        )
    Console().print(table)


def _card(path: Path) -> dict[str, Any]:
    if (path / STATE).exists():
        return read_state(path).values
    return json.loads((path / CARD).read_text())
