"""The head that does what the task needs: which one it is, and what to notice about it."""

from __future__ import annotations

from collections.abc import Sequence

from pages.shared.components.attention_view import Selection
from pages.shared.layout import what_to_notice
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.viz.packing import PatternLayer


def telling_head(view: View, run: Run, paths: Sequence[str]) -> tuple[Selection, float]:
    """The head with the most of what this task needs, and how much of it."""
    best, most = Selection(len(paths) - 1, 0), 0.0
    scores = view.task.head_scores(run.trace, run.example)
    for layer, path in enumerate(paths):
        for head, weight in enumerate(scores.get(path, [])):
            if weight > most:
                best, most = Selection(layer, head), weight
    return best, most


def attention_notes(view: View, layers: Sequence[PatternLayer], best: Selection, weight: float) -> None:
    """What to notice, with what `telling_head` found."""
    layer, head = layers[best.layer].title, best.head + 1
    rule = view.task.rule
    closest = f" Here {layer}, head {head} comes closest: {weight:.0%} of its attention {rule.score_says}."
    what_to_notice(
        (
            rule.look_for + closest,
            "Set the mask to **Full**: the model was trained never to look ahead, so what it now sees is noise to it. "
            "Hatched grey cells are masked, which is not the same as a weight of zero."
            if view.checkpoint.config.causal
            else "Set the mask to **Causal**: the class token comes first, so it may then look at nothing but itself, and "
            "knows nothing of the image. Hatched grey cells are masked, which is not the same as a weight of zero."
            if rule.is_image
            else "Set the mask to **Causal**: a position that may not look ahead cannot see the token it needs, and the first "
            "half of the answer falls apart. Hatched grey cells are masked, which is not the same as a weight of zero.",
        )
    )
