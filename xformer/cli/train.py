"""`python -m xformer train`: train a preset with a progress bar; an interrupt keeps the state, so that --resume goes on."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from xformer.cli.numbers import check_samples, how_good
from xformer.cli.say import fit, say
from xformer.cli.train_many import settings_of, train_them
from xformer.counting import n_parameters
from xformer.errors import ConfigError, InputError
from xformer.files import guarded
from xformer.presets import Preset, preset
from xformer.task_limits import TASK_LIMITS


def run(options: Namespace) -> None:
    """Everything that can be said of what was typed is said before the first step, most of it before torch is there."""
    chosen = preset(options.preset)
    check_samples("--score", options.score, 0)
    _check_out(options.out)
    changes = {name: getattr(options, name) for name in ("steps", "seed") if getattr(options, name) is not None}
    if options.no_snapshots:
        changes["snapshot_every"] = 0
    chosen = replace(chosen, train=chosen.train.replace(**changes))
    if options.text is not None:
        chosen = _with_text(chosen, options.text)
    if settings := settings_of(options):
        train_them(chosen, settings, options)
    else:
        _train(chosen, options)


def _check_out(out: str) -> None:
    """Raise `InputError` for what cannot be the folder of a run."""
    path = Path(out)
    if path.suffix == ".safetensors" or (path.exists() and not path.is_dir()):
        raise InputError(f"--out must name a folder, got the name of a file, {out!r:.200}; for example my-run.")


def _with_text(chosen: Preset, path: str) -> Preset:
    """The preset on the text in a file, which is looked at before it is read, and kept only where it can be learned."""
    from xformer.tasks import texts  # only now: what was typed may be wrong, and this waits for torch
    from xformer.training.jobs import with_text

    if not TASK_LIMITS[chosen.task.name].is_text:
        raise ConfigError(
            f"Only the task characters reads a text, got the preset {chosen.name!r}; for example 'characters'."
        )
    with guarded(path, texts.MOST_BYTES, InputError) as (file, _):
        content = file.read(texts.MOST_BYTES + 1)
    return with_text(chosen, texts.keep(content))


def _train(chosen: Preset, options: Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from xformer.training.device import prepare_process
    from xformer.training.loop import iter_train

    prepare_process()
    say(f"{chosen.title}: {n_parameters(chosen.model):,} parameters, {chosen.train.steps:,} steps")
    cropped = Column(no_wrap=True, overflow="crop", ratio=1)  # an ellipsis is no ASCII
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
        shown = bar.add_task("training", total=chosen.train.steps, loss=fit("–"), how="")
        for last in reports:
            how = fit(how_good(last.held_out, chosen.task.name))
            bar.update(shown, completed=last.step, loss=f"{last.loss:.4f}", how=how)
            if last.note:
                console.print(fit(last.note))
    if options.score:
        _score(chosen, options)
    if last is not None:
        say(f"{last.seconds:.1f} s of training; saved to {options.out}")


def _score(chosen: Preset, options: Namespace) -> None:
    from xformer.training.evaluate import put_figures_on_card

    figures = put_figures_on_card(options.out, options.score, edge_cases=True)
    say(f"{_how_good(figures, chosen)} on {figures['samples']:,} unseen inputs")
    if "edge_cases" in figures:
        edges = figures["edge_cases"]
        say(f"{_how_good(edges, chosen)} on {edges['samples']:,} edge cases")
    sys.stdout.flush()


def _how_good(figures: dict[str, Any], chosen: Preset) -> str:
    from xformer.tasks import Score

    names = ("loss", "token_accuracy", "exact_match", "samples")
    return how_good(Score(**{name: figures[name] for name in names}), chosen.task.name)
