"""The head that does what the task needs: which one it is, and what to notice about it."""

from __future__ import annotations

from collections.abc import Sequence

from pages.shared.components.attention_view import Selection
from pages.shared.layout import what_to_notice
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis.heads import SCORES, pattern_scores
from xformer.viz.packing import PatternLayer

_TELLING = {"reverse": "anti-diagonal", "copy": "diagonal"}


def telling_head(view: View, run: Run, paths: Sequence[str]) -> tuple[Selection, float]:
    """The head with the most of what this task needs, and how much: on the answer's source wherever it is known."""
    score = _TELLING.get(view.task.config.name)
    best, most = Selection(len(paths) - 1, 0), 0.0
    if score is None:
        return best, most
    n = len(run.example.source)
    for layer, path in enumerate(paths):
        pattern = run.trace[f"{path}.pattern"][0]  # [head, query, key]
        weights = pattern_scores(pattern, view.task.answer_queries(n), range(n))[:, SCORES.index(score)]  # [head]
        if weights.max().item() > most:
            best, most = Selection(layer, int(weights.argmax())), weights.max().item()
    return best, most


def attention_notes(view: View, layers: Sequence[PatternLayer], best: Selection, weight: float) -> None:
    """What to notice, with what `telling_head` found."""
    layer, head = layers[best.layer].title, best.head + 1
    what_to_notice(
        (
            {
                "reverse": "Look for an **anti-diagonal**: the output at position i looks at the token at length − 1 − i, "
                f"which it has to say. Here {layer}, head {head} comes closest: {weight:.0%} of its attention is there. "
                "Layers before the flip are diffuse: they work out how long the input is.",
                "sort": "No picture repeats from input to input: where a position looks depends on **which numbers** stand "
                "there, not on where they stand. Change one number and watch whole rows move.",
                "copy": f"Look for a **diagonal**: every position looks at itself. {layer}, head {head} does so with "
                f"{weight:.0%}.",
            }[view.task.config.name],
            "Set the mask to **Causal**: a position that may not look ahead cannot see the token it needs, and the first "
            "half of the answer falls apart. Hatched grey cells are masked, which is not the same as a weight of zero."
            if view.task.config.architecture == "encoder"
            else "Set the mask to **Full**: the model was trained never to look ahead, so what it now sees is noise to it. "
            "Hatched grey cells are masked, which is not the same as a weight of zero.",
        )
    )
