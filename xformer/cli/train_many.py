"""`python -m xformer train --seeds 16`: many models of one preset, trained at once, each into a folder of its own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from xformer.cli.numbers import how_good
from xformer.cli.say import fit, say
from xformer.errors import InputError
from xformer.presets import Preset
from xformer.training.limits import Limits
from xformer.training.sweeps import SWEPT, members, read_values, spec


def settings_of(options: Namespace) -> dict[str, Sequence[Any]]:
    """What --seeds and --sweep ask for; nothing where one model is. Raises `InputError` or `ConfigError`."""
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


def train_them(chosen: Preset, settings: dict[str, Sequence[Any]], options: Namespace) -> None:
    """Train them with a progress bar, a line for each as it ends."""
    from rich.console import Console
    from rich.progress import Progress

    from xformer.training.device import prepare_process
    from xformer.training.evaluate import put_figures_on_card
    from xformer.training.many import iter_train_many, sweep

    found = members(sweep(chosen, **settings), settings)
    prepare_process()
    reports = iter_train_many(
        [one.preset for one in found], out=options.out, device=options.device, resume=options.resume
    )
    say(f"{chosen.title}: {len(found)} models at once, into {options.out}/000 and on")
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
                words = f"{how_good(report.progress.held_out, chosen.task.name)} at step {report.progress.step:,}"
                if options.score:
                    put_figures_on_card(Path(options.out) / f"{one.number:03d}", options.score)
            bar.console.print(fit(f"{one.number:03d}  {one.name}: {words}"))
    say(f"{ended} of {len(found)} models have come to their end; saved to {options.out}")
