"""What there is to notice about a run, computed from its curves and its snapshots."""

from __future__ import annotations

import pandas as pd

from pages.train.film import Film, head_names
from xformer.analysis.training_runs import APPEARS, LEARNED, appearance, dip, first_passing
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training.entry import Entry
from xformer.words import percent

STANDS_OUT = 0.1
"""A head is named as the best only where it scores so much more than the best did before training."""


def notes(entry: Entry, settings: Preset, task: Task, film: Film, frame: pd.DataFrame) -> list[str]:
    """Paragraphs of Markdown without any text of a person. Whatever is computed names the step that it holds for."""
    steps = [int(step) for step in frame["step"].dropna()]
    is_text = task.rule.is_open_ended  # where nothing is right or wrong, there is no exact match
    exact = [] if is_text else frame["held_out_exact_match"].fillna(0.0).tolist()
    learned = None if is_text else first_passing(steps, exact, LEARNED)
    names = head_names(film)
    found = _heads(settings, task, film, names, learned) if names else []
    knows = learned is not None or bool(names and appearance(film.best) is not None)
    look_for = task.rule.look_for
    found.insert(0, look_for if knows else f"In a model that has learned it: {look_for[0].lower()}{look_for[1:]}")
    fallen = dip(steps, exact) if exact else None
    if fallen is not None:
        rates = dict(zip(steps, frame["learning_rate"], strict=False))
        words = f"Exact match dips to {percent(fallen[1], 1)} at step {fallen[0]:,} and comes back."
        if rates.get(fallen[0], 0.0) >= 0.25 * settings.train.peak_lr > 0:
            words += f" The learning rate was still {rates[fallen[0]]:.2g} there."
        found.append(words)
    if not steps and entry.is_active:
        found.append("The curves begin with the first report.")
    return found


def _heads(
    settings: Preset, task: Task, film: Film, names: dict[tuple[str, int], str], learned: int | None
) -> list[str]:
    """When a head came to do what the task needs; of a run in which none did, that and no head's name."""
    best = film.best
    appears, first, last = appearance(best), best.iloc[0], best.iloc[-1]
    step, score = int(last["step"]), float(last["score"])
    name = names[last["layer"], int(last["head"])]
    gained = step > int(first["step"]) and score >= float(first["score"]) + STANDS_OUT
    found = []
    if first["score"] >= APPEARS:
        found.append(
            f"At step {int(first['step']):,} a head scores {first['score']:.2f} already on this input ({task.rule.score_name} "
            "score): with so few tokens to look at, chance can give that much."
            + (f" At step {step:,} {name} is best with {score:.2f}." if gained else "")
        )
    elif appears is None:
        found.append(
            f"Up to step {step:,} no head has half of its attention where the task needs it ({task.rule.score_name} score"
            + (f"); the best is {name} with {score:.2f}." if gained else f", best {score:.2f}).")
        )
    else:
        passing = best.set_index("step").loc[appears]
        found.append(
            f"At step {appears:,} {names[passing['layer'], int(passing['head'])]} passes {APPEARS:g} for the first time "
            f"(snapshots are {settings.train.snapshot_every:,} steps apart)"
            + (f"; at step {step:,} {name} is best with {score:.2f}." if step > appears else ".")
        )
        if learned is not None:
            after = learned - appears
            order = (
                f"{after:,} steps after" if after > 0 else "no later than" if after == 0 else f"{-after:,} steps before"
            )
            found.append(f"{LEARNED:.0%} exact match came at step {learned:,}: {order} the head.")
    if diffuse := _diffuse(film.table, names, step):
        found.append(diffuse)
    return found


def _diffuse(table: pd.DataFrame, names: dict[tuple[str, int], str], step: int) -> str:
    """That a whole layer stays diffuse while another does the work, where it is so."""
    best = table.loc[table["step"] == step].groupby("layer")["score"].max()
    if len(best) < 2 or best.max() < 0.8:
        return ""
    low = [path for path, score in best.items() if score < 0.3]
    if not low:
        return ""
    titles = list(dict.fromkeys(name.split(" · head")[0] for (path, _), name in names.items() if path in low))
    verb = "stays" if len(titles) == 1 else "stay"
    words = titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} and {titles[-1]}"
    there = "there" if len(titles) == 1 else "in them"
    return f"{words.capitalize()} {verb} below 0.3 at step {step:,}: do not look for this pattern {there}."
