"""What to notice in one head of a trained model, whose steps were done again with its own numbers."""

from __future__ import annotations

import math

from pages.shared.escape_markdown import escape_markdown
from xformer.analysis.principles import Mixed
from xformer.reading import Reading


def head_notes(run: Reading, mixed: Mixed, layer: int, head: int, row: int) -> list[str]:
    """What is to be seen in a row of a head, in this run's numbers."""
    names = [escape_markdown(name) for name in mixed.names]
    patterns = run[f"{run.attention[layer].path}.pattern"][0]  # [head, query, key]
    own = patterns[head]
    apart = (own - mixed.weights).abs().max().item()
    same = "the same to the last digit" if apart == 0 else f"within {apart:.1g} of each other"
    found = [
        "These are the numbers of a trained model: q, k and v are read from its run, and the steps on this screen are done "
        f"with them. The model’s own pattern and the one drawn here are {same}.",
    ]
    best = int(mixed.weights[row].argmax())
    d_head = mixed.q.shape[1]
    root = math.sqrt(d_head)
    found.append(
        f"“{names[row]}” gives most of its weight, {mixed.weights[row, best].item():.3f}, to “{names[best]}”: "
        f"q · k = {mixed.products[row, best].item():.2f}, divided by √{d_head} = {root:.3g} that is "
        f"{mixed.scores[row, best].item():.2f}."
    )
    lost = (mixed.products[row] / root).softmax(dim=-1)[row + 1 :].sum().item()
    if lost >= 0.001:
        found.append(f"Without the mask {lost:.3f} of this row’s weight would lie on tokens to come.")
    others = patterns[:, row].argmax(dim=-1).tolist()  # [head]
    if len(set(others)) > 1:
        looks = ", ".join(f"head {i + 1} most at “{names[at]}”" for i, at in enumerate(others))
        found.append(
            f"The heads of this layer look at different tokens: {looks}. Their Z stand side by side before W_O."
        )
    labelled = (run.example.labels[0] >= 0).nonzero().flatten().tolist()
    if row in labelled:
        at = labelled.index(row)
        predicted, right = (escape_markdown(run.subject.labels[token]) for token in (run.predicted[at], run.answer[at]))
        found.append(
            f"After all layers the model says “{predicted}” here, with a probability of {run.probability[at]:.3f}; "
            + ("that is right." if run.right[at] else f"right is “{right}”.")
        )
    return found
