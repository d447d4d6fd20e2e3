"""What there is to notice about a run, computed from its curves and its snapshots."""

from __future__ import annotations

import pandas as pd

from pages.shared.panels.train_film import Film, head_names
from xformer.analysis.learning import APPEARS, LEARNED, appearance, best_heads, dip, first_passing
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.training.book import Entry


def notes(entry: Entry, settings: Preset, task: Task, film: Film, frame: pd.DataFrame) -> list[str]:
    """Paragraphs of Markdown without any text of a person."""
    found = [task.rule.look_for]
    steps = [int(step) for step in frame["step"].dropna()]
    exact = frame["held_out_exact_match"].fillna(0.0).tolist()
    learned = first_passing(steps, exact, LEARNED)
    names = head_names(film)
    if names:
        table = film.table()
        best = best_heads(table)
        appears = appearance(best)
        last = best.iloc[-1]
        name = names[last["layer"], int(last["head"])]
        untrained = best["score"].iloc[0]
        if untrained >= APPEARS:
            found.append(
                f"An untrained head scores {untrained:.2f} already on this input ({task.score_name} score): with so "
                f"few tokens to look at, chance gives that much. Now {name} is best with {last['score']:.2f}."
            )
        elif appears is None:
            found.append(
                f"No head has half of its attention where the task needs it yet; the best is {name} with {last['score']:.2f} "
                f"({task.score_name} score, step {int(last['step']):,})."
            )
        else:
            first = best.set_index("step").loc[appears]
            found.append(
                f"At step {appears:,} {names[first['layer'], int(first['head'])]} passes {APPEARS:g} for the first time "
                f"(snapshots are {settings.train.snapshot_every:,} steps apart); now {name} is best with {last['score']:.2f}."
            )
            if learned is not None:
                after = learned - appears
                order = (
                    f"{after:,} steps after"
                    if after > 0
                    else "no later than"
                    if after == 0
                    else f"{-after:,} steps before"
                )
                found.append(f"{LEARNED:.0%} exact match came at step {learned:,}: {order} the head.")
        if diffuse := _diffuse(table, names, int(last["step"])):
            found.append(diffuse)
    fallen = dip(steps, exact)
    if fallen is not None:
        rates = dict(zip(steps, frame["learning_rate"], strict=False))
        words = f"Exact match dips to {fallen[1]:.1%} at step {fallen[0]:,} and comes back."
        if rates.get(fallen[0], 0.0) >= 0.25 * settings.train.peak_lr > 0:
            words += f" The learning rate was still {rates[fallen[0]]:.2g} there; such dips fade as it decays."
        found.append(words)
    if not steps and entry.is_active:
        found.append("The curves begin with the first report.")
    return found


def _diffuse(table: pd.DataFrame, names: dict[tuple[str, int], str], step: int) -> str:
    """That a whole layer stays diffuse while another does the work, where it is so."""
    best = table[table["step"] == step].groupby("layer")["score"].max()
    if len(best) < 2 or best.max() < 0.8:
        return ""
    low = [path for path, score in best.items() if score < 0.3]
    if not low:
        return ""
    titles = list(dict.fromkeys(name.split(" · head")[0] for (path, _), name in names.items() if path in low))
    verb = "stays" if len(titles) == 1 else "stay"
    words = titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} and {titles[-1]}"
    there = "there" if len(titles) == 1 else "in them"
    return f"{words.capitalize()} {verb} below 0.3: another part of the work is done {there}, so do not look for this pattern."
