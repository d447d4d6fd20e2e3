"""`python -m xformer eval`: score a checkpoint on unseen inputs."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from xformer.cli.output import check_samples, check_seed, figure, lengths_in, say_json, say_table, score_of
from xformer.errors import InputError
from xformer.task_limits import TASK_LIMITS

if TYPE_CHECKING:
    from xformer.checkpoints import Checkpoint
    from xformer.tasks import Task


def run_eval(options: Namespace) -> None:
    """Print the figures of a checkpoint as a table or as JSON; `--card` also writes them on its card."""
    check_samples("--samples", options.samples, 1)
    check_seed(options.seed)
    lengths = None if options.lengths is None else lengths_in(options.lengths)
    from xformer.checkpoints import load  # only now: what was typed may be wrong
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
        say_json(figures | _bits(figures, checkpoint.task))
        return
    rows = []
    for of, found in (("", figures), ("edge cases: ", figures.pop("edge_cases", {}))):
        for name, value in (found | _bits(found, checkpoint.task)).items():
            rows.append((of + name.replace("_", " "), figure(name, value)))
    say_table(("figure", "value"), rows)


def _by_length(checkpoint: Checkpoint, lengths: range, options: Namespace) -> None:
    """Print one line per length, and whether the model was trained on it."""
    from xformer.training.evaluate import scores_by_length

    task = checkpoint.task
    assert task is not None
    found = scores_by_length(checkpoint.model, task, lengths, samples=options.samples, seed=options.seed)
    scores = [{"length": length, **vars(score)} for length, score in found]
    if options.json:
        say_json({"lengths": scores, "seed": options.seed})
        return
    trained = range(task.config.min_len, task.config.max_len + 1)
    names = ("exact_match", "token_accuracy", "loss", "samples")
    rows = []
    for row in scores:
        known = "yes" if row["length"] in trained else "no"
        rows.append((str(row["length"]), *(figure(name, row[name]) for name in names), known))
    say_table(("length", *(name.replace("_", " ") for name in names), "trained on"), rows)


def _bits(figures: dict[str, Any], task: Task) -> dict[str, float]:
    """For text also bits per character."""
    is_text = TASK_LIMITS[task.config.name].is_text
    return {"bits_per_character": score_of(figures).bits} if is_text and figures else {}
