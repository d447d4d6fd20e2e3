"""`python -m xformer train` and `presets`: train one model of a preset or many at once, and list the presets."""

from __future__ import annotations

import os
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from xformer.cli.output import check_samples, main_metric, print_answer, print_line, print_table, score_of, to_printable
from xformer.counting import n_parameters
from xformer.errors import InputError, TrainingError
from xformer.files import STATE, guarded
from xformer.presets import PRESETS, Preset, preset
from xformer.training import executors, liveness
from xformer.training.executors.relay import RELAY_LOCK, Status, ray_address
from xformer.training.limits import Limits
from xformer.training.sweeps import SWEPT, members, read_values, spec, sweep


def run_train(options: Namespace) -> None:
    """Check all options, most of them before torch is imported, then train."""
    chosen = preset(options.preset)
    check_samples("--score", options.score, 0)
    _check_out(options.out)
    changes = {name: getattr(options, name) for name in ("steps", "seed") if getattr(options, name) is not None}
    if options.no_snapshots:
        changes["snapshot_every"] = 0
    chosen = replace(chosen, train=chosen.train.replace(**changes))
    if options.text is not None:
        chosen = _with_text(chosen, options.text)
    settings = _settings_of(options)
    if (options.executor or executors.chosen()) == executors.RAY:
        _train_on_ray(chosen, settings, options)
    elif settings:
        _train_many(chosen, settings, options)
    else:
        _train(chosen, options)


def _check_out(out: str) -> None:
    """Raise `InputError` if `out` cannot be a run's folder."""
    path = Path(out)
    if path.suffix == ".safetensors" or (path.exists() and not path.is_dir()):
        raise InputError(f"--out must name a folder, got the file name {out!r:.200}; for example my-run.")


def _with_text(chosen: Preset, path: str) -> Preset:
    """Return the preset with the text of a file. The file is checked, and stored only if a model can be trained on it."""
    from xformer.tasks import texts  # imported after the options have been checked, because it imports torch
    from xformer.training.jobs import check_reads_text, with_text

    check_reads_text(chosen)
    with guarded(path, texts.MAX_BYTES, InputError) as (file, _):
        content = file.read(texts.MAX_BYTES + 1)
    return with_text(chosen, texts.keep(content))


def _train(chosen: Preset, options: Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from xformer.training.loop import iter_train, prepare_process

    prepare_process()
    print_line(f"{chosen.title}: {n_parameters(chosen.model):,} parameters, {chosen.train.steps:,} steps")
    cropped = Column(no_wrap=True, overflow="crop", ratio=1)  # not "ellipsis", which is not ASCII
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[how]}", markup=False, table_column=cropped),
    )
    last = None
    reports = iter_train(chosen, out=options.out, device=options.device, resume=options.resume)
    console = Console(markup=False, highlight=False, emoji=False)
    with Progress(*columns, console=console, expand=True) as bar, closing(reports):
        shown = bar.add_task("training", total=chosen.train.steps, loss=to_printable("–"), how="")
        for last in reports:
            how = to_printable(main_metric(last.held_out, chosen.task.name))
            bar.update(shown, completed=last.step, loss=f"{last.loss:.4f}", how=how)
            if last.note:
                console.print(to_printable(last.note))
    if options.score:
        _score(chosen, options)
    if last is not None:
        print_line(f"{last.seconds:.1f} s of training; saved to {options.out}")


RUNS = ".ray"
"""The folder inside `--out` of the run store that exists while a cluster trains."""
LOOK_SECONDS = 0.5


def _train_on_ray(chosen: Preset, settings: dict[str, Sequence[Any]], options: Namespace) -> None:
    """Train on a Ray cluster and show the progress. Ctrl-C stops the run; `--resume` continues it if this command is killed."""
    from rich.console import Console
    from rich.progress import Progress

    from xformer.tasks import Task
    from xformer.training import jobs
    from xformer.training.run_store import RunStore, new_id
    from xformer.training.sweeps import check_alike, members_of

    os.environ[executors.VARIABLE] = executors.RAY
    Task(chosen.task).check_fits(chosen.model)
    out = Path(options.out)
    store = RunStore(out / RUNS)
    runs = [one.id for one in store.entries() if not one.sweep_of]
    if runs and not options.resume:
        raise InputError(f"{options.out!r:.200} has an unfinished run on Ray; use --resume, or give another --out.")
    if not runs:
        runs, column = [new_id()], spec(settings) if settings else None
        if settings:
            check_alike(sweep(chosen, **settings))
        if options.resume:
            _move_state(out, store.folder_of(runs[0]), n_models=len(column["ids"]) if column else 0)
        store.add(chosen, run=runs[0], sweep=column, device=options.device)
    run = runs[0]
    found = members_of(store.entry(run)) or [None]
    what = f"{len(found)} {'models' if settings else 'model'}"
    print_line(f"{chosen.title}: {what} on Ray at {ray_address()}, into {options.out}")
    with Progress(console=Console(markup=False, highlight=False, emoji=False)) as bar:
        shown = bar.add_task("training", total=chosen.train.steps)
        last = ""
        while (entry := store.entry(run)).is_active or entry.state == "queued":
            try:
                jobs.reconcile(store)
                bar.update(shown, completed=entry.step)
                status = Status.read(store.folder)
                words = (status.problem if status else "") or entry.message
                if words and words != last:
                    bar.console.print(to_printable(words))
                last = words or last
                time.sleep(LOOK_SECONDS)
            except KeyboardInterrupt:
                jobs.stop(store, run)
        bar.update(shown, completed=entry.step)
    if settings:
        folders = [(one.id, one.folder(store, run), out / f"{one.number:03d}") for one in found if one is not None]
        for id, aside, target in folders:
            _move(store.folder_of(id) if store.folder_of(id).exists() else aside, target)
    else:
        _move(store.folder_of(run), out)
    store.database.file.unlink()  # this ends the relay process
    while liveness.is_held(store.folder / RELAY_LOCK):
        time.sleep(LOOK_SECONDS)
    shutil.rmtree(store.folder)
    if entry.state != "finished":
        raise TrainingError(f"The run is {entry.state} at step {entry.step:,}. {entry.message}".rstrip())
    if options.score and not settings:
        _score(chosen, options)
    print_line(f"{entry.seconds:.1f} s of training; saved to {options.out}")


def _move_state(out: Path, folder: Path, n_models: int) -> None:
    """Move the state of an interrupted run from `out` to its folder. Raises `InputError` if there is nothing to resume."""
    pairs = [(out / f"{number:03d}", folder / "members" / f"{number:03d}") for number in range(n_models)]
    pairs = pairs or [(out / name, folder / name) for name in (STATE, "snapshots")]
    if not any((source if n_models else out / STATE).exists() for source, _ in pairs):
        raise InputError(f"There is no run to resume in {str(out)!r:.200}; start one without resuming.")
    for source, target in pairs:
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(source, target)


def _move(source: Path, target: Path) -> None:
    """Move all files of a folder into another folder."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    shutil.rmtree(source)


def _score(chosen: Preset, options: Namespace) -> None:
    from xformer.training.evaluate import put_figures_on_card

    figures = put_figures_on_card(options.out, options.score, edge_cases=True)
    print_line(f"{main_metric(score_of(figures), chosen.task.name)} on {figures['samples']:,} unseen inputs")
    if "edge_cases" in figures:
        edges = figures["edge_cases"]
        print_line(f"{main_metric(score_of(edges), chosen.task.name)} on {edges['samples']:,} edge cases")
    sys.stdout.flush()


def _settings_of(options: Namespace) -> dict[str, Sequence[Any]]:
    """Return the swept settings of `--seeds` and `--sweep`; empty for one model. Raises `InputError` or `ConfigError`."""
    settings: dict[str, Sequence[Any]] = {}
    for text in options.sweep or ():
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--sweep must be NAME=VALUES, got {text!r:.60}; for example peak_lr=0.001,0.003.")
        settings[name] = read_values(name, values) if name in SWEPT else [values]
    if options.seeds is not None:
        most = Limits.from_environment().models
        if not 1 <= options.seeds <= most:
            raise InputError(f"--seeds must be from 1 to {most}, got {options.seeds}; for example 16.")
        settings["seed"] = range(options.seeds)
    if settings:
        spec(settings)
    return settings


def _train_many(chosen: Preset, settings: dict[str, Sequence[Any]], options: Namespace) -> None:
    """Train the models with a progress bar, and print a line when each one ends."""
    from rich.console import Console
    from rich.progress import Progress

    from xformer.training.evaluate import put_figures_on_card
    from xformer.training.loop import prepare_process
    from xformer.training.many import iter_train_many

    found = members(sweep(chosen, **settings), settings)
    prepare_process()
    presets = [one.preset for one in found]
    reports = iter_train_many(presets, out=options.out, device=options.device, resume=options.resume)
    print_line(f"{chosen.title}: {len(found)} models at once, into {options.out}/000, …")
    ended = 0
    with Progress(console=Console(markup=False, highlight=False, emoji=False)) as bar, closing(reports):
        shown = bar.add_task("training", total=sum(one.preset.train.steps for one in found))
        steps = [0] * len(found)
        for report in reports:
            one = found[report.number]
            if report.progress is not None:
                steps[report.number] = one.preset.train.steps if report.is_last else report.progress.step
            bar.update(shown, completed=sum(steps))
            if not report.is_last:
                continue
            ended += 1
            words = report.failure
            if report.progress is not None:
                words = f"{main_metric(report.progress.held_out, chosen.task.name)} at step {report.progress.step:,}"
                if options.score:
                    put_figures_on_card(Path(options.out) / f"{one.number:03d}", options.score)
            bar.console.print(to_printable(f"{one.number:03d}  {one.name}: {words}"))
    print_line(f"{ended} of {len(found)} models have ended; saved to {options.out}")


def run_presets(options: Namespace) -> None:
    """List the presets and the sizes of their models."""
    if options.json:
        sizes = {
            name: {"architecture": of.model.architecture, "parameters": n_parameters(of.model)}
            for name, of in PRESETS.items()
        }
        found = [
            {"preset": name, "title": of.title, **sizes[name], "steps": of.train.steps} for name, of in PRESETS.items()
        ]
        print_answer("presets", presets=found)
        return
    rows = [
        (name, of.title, of.model.architecture, f"{n_parameters(of.model):,}", f"{of.train.steps:,}")
        for name, of in PRESETS.items()
    ]
    print_table(("preset", "title", "architecture", "parameters", "steps"), rows, whole=1)
