"""What the vectors of an input show: the sentences above the picture."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pages.shared.byte_cache import shared
from pages.shared.escape_markdown import escape_markdown
from pages.shared.view import ORIGINAL, View
from xformer.analysis.embeddings import cosine_matrix, most_alike, token_labels
from xformer.analysis.positions import found_positions
from xformer.errors import UnavailableError
from xformer.reading import Reading

CLEAR_RATIO = 1.5
"""From here on one length is said to be more than another."""


def about_repeats(run: Reading, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """What its position makes of the first repeated token: two vectors, or one and the same."""
    tokens, names = run.ids(stack), run.tokens_of(stack)
    for first, token in enumerate(tokens):
        if token not in tokens[first + 1 :]:
            continue
        second = tokens.index(token, first + 1)
        there = f"**{escape_markdown(names[first])}** stands at positions {first} and {second}"
        if "sum" not in parts:
            return f"{there} and enters layer 1 as the same vector: this model adds no positions to its tokens."
        if (parts["sum"][first] - parts["sum"][second]).norm() > 1e-3 * parts["sum"][first].norm():
            cosine = cosine_matrix(parts["sum"])[first, second].item()
            return f"{there}: one token vector, told apart by its two positions (cosine 1 → {cosine:.2f})."
        return f"{there} and enters layer 1 as the same vector both times."
    return ""


def about_alike(view: View, stack: str | None) -> str:
    """The two most similar tokens of the input, where they clearly stand out from the vocabulary."""
    found = shared.get(("alike", *view.key(ORIGINAL), stack), lambda: most_alike(view.original(), stack))
    if found is None:
        return ""
    names = token_labels(view.subject)
    one, other = (f"**{escape_markdown(names[token])}**" for token in found.tokens)
    return (
        f"{one} and {other} have the most similar vectors of this input: cosine {found.cosine:.2f}, where almost all "
        f"pairs of the vocabulary stay below {found.usual:.2f}."
    )


def about_lengths(parts: Mapping[str, Tensor], one: str) -> str:
    """Which of token and position is clearly longer on average."""
    if "positions" not in parts:
        return ""
    token, position = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
    if min(token, position) <= 0 or max(token, position) < CLEAR_RATIO * min(token, position):
        return ""
    long, short = ("position", one) if position > token else (one, "position")
    ratio = max(token, position) / min(token, position)
    return f"A {long}’s vector is {ratio:.1f} times as long as a {short}’s, so the sum is mostly {long}."


def adds_none(view: View, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """That a model adds no positions, and what it does instead, as far as that is known."""
    if "positions" in parts:
        return ""
    if view.task is not None:
        is_causal = view.shape.is_causal or stack == "decoder"
        without = "only its causal mask encodes the order" if is_causal else "nothing encodes the order"
        why = view.config.position_kind.instead or without
    else:
        kinds = {"turned": "it turns queries and keys instead", "biased": "it adds to the scores instead"}
        try:
            why = kinds.get(found_positions(view.original(), stack)[0], "")
        except UnavailableError:
            why = ""
    return f"This model adds no positions to its tokens{f': {why}' if why else ''}."
