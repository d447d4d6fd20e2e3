"""How a step was decided: where each player looked from the position that decided it, and what its layers would have said.

    moment(play, step)      the recorded run behind one step; everything here is a function of one or two of them
    look                    weights [layer, head, key] of the row that decided, or of a layer's mean head
    cells                   two whole patterns and their signed difference  other − one
    most_apart              the heads whose rows differ most
    lens_at, lens_parting   the logit lens at the deciding position; from which point on the likeliest tokens differ for good

Patterns are compared only where their shapes agree; where they do not, `unlike` says so in a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.analysis.coarse import any_allowed, any_allowed_cells, blocks, pooled, pooled_keys
from xformer.analysis.players import Play
from xformer.analysis.stream import stream
from xformer.errors import EditError, InputError
from xformer.reading import Reading
from xformer.site import Site
from xformer.subjects import BareModel
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
        return tuple(site.path for site in self.trace.sites() if site.stack == self.reading.output_stack)

    @property
    def reading(self) -> Reading:
        """The run as what other analyses take."""
        return Reading(BareModel(self.play.player.model), self.play.example, self.trace)

    def queries(self, path: str) -> tuple[str, ...]:
        """The text of the tokens that look, in an attention layer."""
        return self._texts(self.trace.read_by(Site.parse(path).query_stack))

    def keys(self, path: str) -> tuple[str, ...]:
        """The text of the tokens that are looked at."""
        return self._texts(self.trace.read_by(Site.parse(path).key_stack))

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


def look(at: Moment, most: int | None = None) -> pd.DataFrame:
    """Where one player looked: a row an attention layer, head (and the mean) and key.

    Columns: layer (path), head (from 0; −1 the mean), key, key_end, token, weight, allowed. With `most`, longer rows are of
    at most so many blocks of keys, from `key` to `key_end`, whose weights are added up.
    """
    frames = []
    for path in at.attention_layers():
        weights = at.trace[f"{path}.pattern"][0, :, at.position].double()  # [head, key]
        mask = at.trace[f"{path}.mask"][0, :, at.position]  # [head, key]
        weights = pooled_keys(torch.cat((weights, weights.mean(dim=0, keepdim=True))), most)
        mask = any_allowed(torch.cat((mask, mask.any(dim=0, keepdim=True))), most)
        heads = [*range(len(weights) - 1), MEAN]
        texts = at.keys(path)
        spans = blocks(len(texts), most)
        frames.append(
            pd.DataFrame(
                {
                    "layer": path,
                    "head": [head for head in heads for _ in spans],
                    "key": [first for first, _ in spans] * len(heads),
                    "key_end": [last for _, last in spans] * len(heads),
                    "token": [_span(texts, *span) for span in spans] * len(heads),
                    "weight": weights.flatten().tolist(),
                    "allowed": mask.flatten().tolist(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def most_apart(one: pd.DataFrame, other: pd.DataFrame | None, n: int) -> list[tuple[str, int]]:
    """The n heads (layer, head) whose rows are furthest apart in two `look` frames, by half the summed differences.

    Of one frame alone: those whose largest weight is largest. The means of layers are left out.
    """
    found: dict[tuple[str, int], float] = {}
    others = one if other is None else other
    for layer, head, mine, theirs in zip(one["layer"], one["head"], one["weight"], others["weight"], strict=True):
        if head == MEAN:
            continue
        before = found.get((layer, head), 0.0)
        found[layer, head] = max(before, mine) if other is None else before + abs(mine - theirs) / 2
    return sorted(found, key=lambda head: -found[head])[:n]


def rows_of(
    frame: pd.DataFrame, one: pd.DataFrame, other: pd.DataFrame, *, comparable: bool, n: int = 12
) -> pd.DataFrame:
    """Of a `look` frame the n heads that tell most: where `one` and `other` are comparable those in which they differ most,
    with the same heads of every frame; else its own sharpest."""
    found = most_apart(one, other, n) if comparable and len(frame) == len(one) else most_apart(frame, None, n)
    by_head = dict(list(frame.groupby(["layer", "head"], sort=False)))
    return pd.concat([by_head[head] for head in found if head in by_head], ignore_index=True)


def look_difference(one: Moment, other: Moment) -> pd.DataFrame:
    """Two looks in one frame: layer, head, key, key_end, token (both, where they differ), one, other, difference = other − one,
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
            "key_end": left["key_end"],
            "token": [_both(a, b) for a, b in zip(left["token"], right["token"], strict=True)],
            "one": left["weight"],
            "other": right["weight"],
            "difference": right["weight"] - left["weight"],
            "allowed": left["allowed"] | right["allowed"],
        }
    )


def cells(one: Moment, other: Moment, path: str, head: int = MEAN, most: int | None = None) -> pd.DataFrame:
    """Two whole patterns cell by cell: query, query_end, key, key_end, their tokens, one, other, difference = other − one,
    one_allowed, other_allowed, decides (whether this row decided the step).

    With `most`, larger patterns are of at most so many blocks a side (see `coarse`), from `query` to `query_end` and so on.
    Raises `InputError` where the shapes do not agree.
    """
    if reason := unlike(one, other):
        raise InputError(reason)
    queries = [_both(x, y) for x, y in zip(one.queries(path), other.queries(path), strict=True)]
    keys = [_both(x, y) for x, y in zip(one.keys(path), other.keys(path), strict=True)]
    rows, columns = blocks(len(queries), most), blocks(len(keys), most)
    a, b = (pooled(at.pattern(path, head).double(), most) for at in (one, other))  # [query, key]
    return pd.DataFrame(
        {
            "query": [first for first, _ in rows for _ in columns],
            "query_end": [last for _, last in rows for _ in columns],
            "key": [first for first, _ in columns] * len(rows),
            "key_end": [last for _, last in columns] * len(rows),
            "query_token": [_span(queries, *row) for row in rows for _ in columns],
            "key_token": [_span(keys, *column) for column in columns] * len(rows),
            "one": a.flatten().tolist(),
            "other": b.flatten().tolist(),
            "difference": (b - a).flatten().tolist(),
            "one_allowed": any_allowed_cells(one.allowed(path, head), most).flatten().tolist(),
            "other_allowed": any_allowed_cells(other.allowed(path, head), most).flatten().tolist(),
            "decides": [first <= one.position <= last for first, last in rows for _ in columns],
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


@torch.no_grad()
def lens_at(at: Moment) -> pd.DataFrame:
    """The rows that a `lens` frame has for the deciding position: what each point of the stream would say there.

    Columns: depth, point, position, token, probability, and where somebody knows it answer, answer_probability, right.
    """
    play, model = at.play, at.play.player.model
    rows = []
    for depth, (point, x) in enumerate(stream(at.reading).items()):
        here = x[:, at.position : at.position + 1]
        p = model.unembed(here)[0, 0].softmax(dim=-1)  # [vocab]
        said = int(p.argmax())
        row = {"depth": depth, "point": point, "position": at.position, "token": play.labels[said]}
        row["probability"] = p[said].item()
        if play.has_right_answer:
            answer = play.answer[at.step]
            row |= {"answer": play.labels[answer], "answer_probability": p[answer].item(), "right": said == answer}
        rows.append(row)
    return pd.DataFrame(rows)


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


def _span(texts: Sequence[str], first: int, last: int) -> str:
    """The text of a position, or of the ends of a block of several."""
    return texts[first] if first == last else f"{texts[first]} … {texts[last]}"


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} / {other}"


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(paths)
