"""How a step was decided: where each player looked from the position that decided it, and what its layers would have said.

    moment(play, step)      the recorded run behind one step; everything here is a function of one or two of them
    look                    weights [layer, head, key] of the row that decided, or of a layer's mean head
    cells                   two whole patterns and their signed difference  other − one
    lens_at, lens_parting   the logit lens at the deciding position; from which point on the likeliest tokens differ for good

Patterns are compared only where their shapes agree; where they do not, `unlike` says so in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.analysis.lens import lens
from xformer.analysis.players import Play
from xformer.analysis.stream import speaking_stack
from xformer.errors import EditError, InputError
from xformer.trace import Trace

MEAN = -1
"""In a column `head`: the mean of the layer's heads."""


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of a play with the recorded run that decided it."""

    play: Play
    step: int
    trace: Trace

    @property
    def name(self) -> str:
        return self.play.player.name

    @property
    def position(self) -> int:
        """The position of the stack that speaks whose logits became the token."""
        return self.play.positions[self.step]

    @property
    def logits(self) -> Float[Tensor, " vocab"]:
        return self.trace.logits[0, self.position]

    def attention_layers(self) -> tuple[str, ...]:
        """The attention layers that the deciding position passes: those of the stack that speaks."""
        stack, _ = speaking_stack(self.play.player.model)
        return tuple(path for path in self.trace.attention_layers() if path.startswith(f"{stack}."))

    def queries(self, path: str) -> tuple[str, ...]:
        """The text of the tokens that look, in an attention layer."""
        target = self.trace.target
        in_target = target is not None and path.startswith("decoder.")
        return self._texts(target if in_target and target is not None else self.trace.tokens)

    def keys(self, path: str) -> tuple[str, ...]:
        """The text of the tokens that are looked at."""
        return self._texts(self.trace.tokens) if path.endswith("cross_attn") else self.queries(path)

    def pattern(self, path: str, head: int = MEAN) -> Float[Tensor, "query key"]:
        """The weights of one head, or the mean of the layer's heads."""
        return _one_head(self.trace[f"{path}.pattern"][0], head, path)

    def allowed(self, path: str, head: int = MEAN) -> Bool[Tensor, "query key"]:
        """What the mask lets through; for the mean, what it lets through in some head."""
        mask = self.trace[f"{path}.mask"][0]  # [head, query, key]
        return mask.any(dim=0) if head == MEAN else _one_head(mask, head, path)

    def _texts(self, tokens: Tensor) -> tuple[str, ...]:
        return tuple(self.play.labels[token] for token in tokens[0].tolist())


def moment(play: Play, step: int) -> Moment:
    """Run one step again on the record. Raises `InputError` when the play has no such step."""
    return Moment(play, step, play.trace(step))


def look(at: Moment) -> pd.DataFrame:
    """Where one player looked: a row an attention layer, head (and the mean) and key.

    Columns: layer (path), head (from 0; −1 the mean), key, token, weight, allowed.
    """
    frames = []
    for path in at.attention_layers():
        weights = at.trace[f"{path}.pattern"][0, :, at.position].double()  # [head, key]
        mask = at.trace[f"{path}.mask"][0, :, at.position]  # [head, key]
        weights = torch.cat((weights, weights.mean(dim=0, keepdim=True)))
        mask = torch.cat((mask, mask.any(dim=0, keepdim=True)))
        heads = [*range(len(weights) - 1), MEAN]
        tokens = at.keys(path)
        frames.append(
            pd.DataFrame(
                {
                    "layer": path,
                    "head": [head for head in heads for _ in tokens],
                    "key": [*range(len(tokens))] * len(heads),
                    "token": [*tokens] * len(heads),
                    "weight": weights.flatten().tolist(),
                    "allowed": mask.flatten().tolist(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def look_difference(one: Moment, other: Moment) -> pd.DataFrame:
    """Two looks in one frame: layer, head, key, token (both, where they differ), one, other, difference = other − one,
    allowed (to either).

    Raises `InputError` where the shapes do not agree.
    """
    if reason := unlike(one, other):
        raise InputError(reason)
    left, right = look(one), look(other)
    return pd.DataFrame(
        {
            "layer": left["layer"],
            "head": left["head"],
            "key": left["key"],
            "token": [_both(a, b) for a, b in zip(left["token"], right["token"], strict=True)],
            "one": left["weight"],
            "other": right["weight"],
            "difference": right["weight"] - left["weight"],
            "allowed": left["allowed"] | right["allowed"],
        }
    )


def cells(one: Moment, other: Moment, path: str, head: int = MEAN) -> pd.DataFrame:
    """Two whole patterns cell by cell: query, key, their tokens, one, other, difference = other − one, one_allowed,
    other_allowed, decides (whether this row decided the step).

    Raises `InputError` where the shapes do not agree.
    """
    if reason := unlike(one, other):
        raise InputError(reason)
    a, b = one.pattern(path, head).double(), other.pattern(path, head).double()  # [query, key]
    n_query, n_key = a.shape
    query = [q for q in range(n_query) for _ in range(n_key)]
    key = [*range(n_key)] * n_query
    queries = [_both(x, y) for x, y in zip(one.queries(path), other.queries(path), strict=True)]
    keys = [_both(x, y) for x, y in zip(one.keys(path), other.keys(path), strict=True)]
    return pd.DataFrame(
        {
            "query": query,
            "key": key,
            "query_token": [queries[q] for q in query],
            "key_token": [keys[k] for k in key],
            "one": a.flatten().tolist(),
            "other": b.flatten().tolist(),
            "difference": (b - a).flatten().tolist(),
            "one_allowed": one.allowed(path, head).flatten().tolist(),
            "other_allowed": other.allowed(path, head).flatten().tolist(),
            "decides": [q == one.position for q in query],
        }
    )


def unlike(one: Moment, other: Moment) -> str | None:
    """Why two players' patterns cannot be laid over each other, in one sentence; None where they can."""
    a, b = one.attention_layers(), other.attention_layers()
    if a != b:
        return (
            f"{one.name} decides in {_listed(a)} and {other.name} in {_listed(b)}, so there is no map of differences; "
            "compare two models of the same architecture and number of layers."
        )
    for path in a:
        shapes = [tuple(at.trace[f"{path}.pattern"].shape[1:]) for at in (one, other)]
        if shapes[0] != shapes[1]:
            said = [f"{n_heads} heads of {n_query} × {n_key}" for n_heads, n_query, n_key in shapes]
            return (
                f"In {path} {one.name} has {said[0]} and {other.name} {said[1]}, so there is no map of differences; "
                "compare models with the same number of heads on inputs of one length."
            )
    if one.position != other.position:
        return (
            f"{one.name} decides at position {one.position} and {other.name} at {other.position}, so there is no map of "
            "differences; compare the same step."
        )
    return None


def lens_at(at: Moment) -> pd.DataFrame:
    """A `lens` frame of the deciding position alone, with the right answer of the step."""
    answers = torch.full((at.trace.logits.shape[1],), -100)
    answers[at.position] = at.play.answer[at.step]
    return lens(at.play.player.model, at.trace, at.play.labels, answers)


def lens_parting(one: pd.DataFrame, other: pd.DataFrame) -> tuple[int, str] | None:
    """The depth and point of two `lens_at` frames from which on their likeliest tokens differ to the end; None if they agree
    at the end.

    Raises `InputError` where the two do not pass the same points.
    """
    if one["point"].tolist() != other["point"].tolist():
        raise InputError(
            f"The two models pass {len(one)} and {len(other)} points, so their layers cannot be laid side by side; "
            "compare two of the same architecture and number of layers."
        )
    differs = (one["token"].to_numpy() != other["token"].to_numpy()).tolist()
    if not differs[-1]:
        return None
    depth = len(differs) - next((i for i, d in enumerate(reversed(differs)) if not d), len(differs))
    return depth, one["point"].iloc[depth]


def _one_head(heads: Tensor, head: int, path: str) -> Tensor:
    if head == MEAN:
        return heads.mean(dim=0)
    if not 0 <= head < len(heads):
        raise EditError(f"{path} has heads 0 to {len(heads) - 1} and {MEAN} for their mean, got {head}.")
    return heads[head]


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} / {other}"


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(paths)
