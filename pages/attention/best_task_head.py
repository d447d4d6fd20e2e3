"""The head that does what the task needs, if one does: which it is, how clearly, and what to notice about it.

How much a head does is `Task.head_scores`; chance is what a head would get that looks at all keys alike that its mask allows
(`Task.chance_scores`). A head does it clearly where it is `CLEAR` of the way from chance to all of its attention, far above
what untrained heads reach by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pages.components.attention_view import Selection
from pages.shared.layout import what_to_notice
from pages.shared.view import View
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz.packing import AnyLayer

CLEAR = 0.4
TELLS_NOTHING = 0.9
"""Where looking at everything alike gets so much already, a score says nothing about a head."""


@dataclass(frozen=True)
class BestTaskHead:
    """The head with the most of what the task needs, how much that is, and what chance would give it."""

    at: Selection
    weight: float
    chance: float

    @property
    def is_clear(self) -> bool:
        return self.chance < TELLS_NOTHING and self.weight >= self.chance + CLEAR * (1 - self.chance)


def best_task_head(view: View, run: Reading, paths: Sequence[str]) -> BestTaskHead:
    """The head of a run with the most of what this task needs; where none has any, the first of the last layer."""
    best = BestTaskHead(Selection(len(paths) - 1, 0), 0.0, 0.0)
    if view.task is None:
        return best
    scores, chances = (of(run.trace, run.example) for of in (view.task.head_scores, view.task.chance_scores))
    silenced = {path: _silenced(run, path) for path in scores}
    for layer, path in enumerate(paths):
        for head, weight in enumerate(scores.get(path, [])):
            if weight > best.weight and head not in silenced[path]:
                best = BestTaskHead(Selection(layer, head), weight, chances[path][head])
    return best


def attention_notes(
    view: View, layers: Sequence[AnyLayer], run: Reading, best: BestTaskHead, *, all_seen: bool = True
) -> None:
    """What to notice in the run that is shown, with what `best_task_head` found in it; `all_seen`: no key is left out."""
    task = [] if view.task is None else [view.task.rule.look_for + closest(view, view.task, layers, best)]
    what_to_notice([*task, *_about_the_mask(view, layers if all_seen else (), run)])


def closest(view: View, task: Task, layers: Sequence[AnyLayer], best: BestTaskHead) -> str:
    """Which head comes closest, where one clearly does; else how little there is of it; nothing where that tells nothing."""
    says, where = task.rule.score_says, f"With {view.what_changed()}" if view.is_changed else "Here"
    even = f"a head that looks at everything alike has {percent(best.chance, 0)}"
    if best.weight == 0:
        return ""
    if best.chance >= TELLS_NOTHING:
        return f" On this input {even} of its attention there already, so it does not tell such a head from any other."
    if not best.is_clear:
        return f" {where} no head does that clearly: of the closest, {percent(best.weight, 0)} of its attention {says}; {even}."
    name = f"{layers[best.at.layer].title} · head {best.at.head + 1}"
    return f" {where} **{name}** comes closest: {percent(best.weight, 0)} of its attention {says} ({even})."


def _about_the_mask(view: View, layers: Sequence[AnyLayer], run: Reading) -> list[str]:
    """What another mask would do, where another is not on already; and what hatching means, where some is to be seen."""
    notes = []
    if view.shape.is_read_only:
        pass  # no other mask can be had
    elif view.mask == "as trained" and run.trace.tokens.shape[1] > 1:
        notes.append(_other_mask(view, run))
    elif view.mask != "as trained":
        is_own = (view.mask == "causal") == view.shape.is_causal
        notes.append(
            f"The mask is **{view.mask}** now, which is what this model was trained with."
            if is_own
            else f"The mask is **{view.mask}** now; with **as trained** the model runs as it was trained."
        )
    if any(layer.is_masked for layer in layers):
        notes.append("Hatched grey cells are masked, which is not the same as a weight of zero.")
    return [" ".join(notes)] if notes else []


def _other_mask(view: View, run: Reading) -> str:
    if view.shape.is_causal:
        return (
            "Set the mask to **Full**: every position then also sees what comes later, which it never did in training."
        )
    if view.task is None:
        return "Set the mask to **Causal**: a position then sees only itself and what came before."
    return f"Set the mask to **Causal**: {view.task.rule.about_causal_mask(run.example.source)}"


def _silenced(run: Reading, path: str) -> set[int]:
    """The heads of a layer whose z is 0 everywhere: what they look at reaches nobody."""
    z = run.trace[f"{path}.z"][0]  # [head, query, d_value]
    return {head for head, one in enumerate(z) if not bool(one.any())}
