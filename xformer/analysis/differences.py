"""How two runs differ: attention and logit lens at the position that decided a step, and predictions along a text.

The deciding position of a reading is its last target position. Patterns are compared only where their shapes agree; where
they do not, `pattern_incompatibility` gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.analysis.attention_patterns import any_allowed, any_allowed_cells, blocks, pooled, pooled_keys
from xformer.analysis.generation import kl, total_variation
from xformer.analysis.logit_lens import lens
from xformer.errors import EditError, InputError
from xformer.reading import Reading
from xformer.site import Site
from xformer.tasks.batch import IGNORED

MEAN = -1
"""In a column `head`: the mean of the layer's heads."""
ALL_ROWS = 16
"""The most heads and means that are all shown."""


def deciding_layers(reading: Reading) -> tuple[str, ...]:
    """The attention layers of the output stack, which the deciding position passes."""
    return tuple(site.path for site in reading.sites if site.stack == reading.output_stack)


def decision_rows(
    readings: Sequence[Reading],
    *,
    pair: tuple[int, int] = (0, 1),
    n_heads: int | None = None,
    max_keys: int | None = None,
) -> pd.DataFrame:
    """Where each one looked: a row for each model, attention layer, head (and the mean) and key.

    Columns: model, layer (path), head (from 0; −1 the mean), key, key_end, token, weight, allowed. With `max_keys`, longer
    rows are of at most so many blocks of keys, from `key` to `key_end`, whose weights are added up. With `n_heads`, of more
    than `ALL_ROWS` heads and means only so many heads are kept: those in which the `pair` differs most where its patterns can
    be compared, else each one's sharpest.

    Args:
        readings: The runs to compare.
        pair: The two readings that are compared, by number.
        n_heads: The most heads to keep; all by default.
        max_keys: The most blocks of keys in a row.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.decision_rows(readings)
        >>> list(table.columns)
        ['model', 'layer', 'head', 'key', 'key_end', 'token', 'weight', 'allowed']
    """
    frames = [_rows(reading, max_keys) for reading in readings]
    if n_heads is not None and max(frame.groupby(["layer", "head"]).ngroups for frame in frames) > ALL_ROWS:
        one, other = pair
        found = None
        if pattern_incompatibility(readings[one], readings[other]) is None:
            found = clearest_heads(frames[one], frames[other], n_heads)
        frames = [
            _only(frame, found if found and len(frame) == len(frames[one]) else clearest_heads(frame, None, n_heads))
            for frame in frames
        ]
    return pd.concat(frames, ignore_index=True)


def clearest_heads(one: pd.DataFrame, other: pd.DataFrame | None, n: int) -> list[tuple[str, int]]:
    """The n heads (layer, head) whose rows are furthest apart in two tables of one model, by half the summed differences.

    Of one table alone: those whose largest weight is largest. The means of layers are left out.
    """
    value = one["weight"] if other is None else (one["weight"] - other["weight"]).abs() / 2
    heads = one.assign(value=value).loc[one["head"] != MEAN].groupby(["layer", "head"], sort=False)["value"]
    scores = heads.max() if other is None else heads.sum()
    return scores.sort_values(ascending=False, kind="stable").index[:n].tolist()


def pattern_difference(
    readings: Sequence[Reading], layer: int, head: int = MEAN, max_blocks: int | None = None
) -> pd.DataFrame:
    """Compare two whole patterns of an attention layer cell by cell: difference = other − one.

    One row a cell: query, query_end, key, key_end, query_token, key_token, one, other, difference, one_allowed, other_allowed,
    decides (whether this row decided the step). With `max_blocks`, larger patterns are of at most so many blocks a side, from
    `query` to `query_end` and so on. Raises `InputError` where the shapes do not agree.

    Args:
        readings: The runs to compare.
        layer: The layer, from 0.
        head: The head, from 0; -1 for the mean.
        max_blocks: The most blocks in a row or a column.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.pattern_difference(readings, 1, 1)
        >>> list(table.columns)
        ['query', 'query_end', 'key', 'key_end', 'query_token', 'key_token', 'one', 'other', 'difference',
         'one_allowed', 'other_allowed', 'decides']
    """
    one, other = readings
    if reason := pattern_incompatibility(one, other):
        raise InputError(reason)
    site = one.attention_site(layer)
    path = site.path
    queries, keys = (
        [a if a == b else f"{a} / {b}" for a, b in zip(one.tokens_of(stack), other.tokens_of(stack), strict=True)]
        for stack in (site.query_stack, site.key_stack)
    )
    rows, columns = blocks(len(queries), max_blocks), blocks(len(keys), max_blocks)
    a, b = (pooled(pattern(reading, path, head).double(), max_blocks) for reading in readings)  # [query, key]
    may = [any_allowed_cells(_allowed(reading, path, head), max_blocks).flatten().tolist() for reading in readings]
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
            "one_allowed": may[0],
            "other_allowed": may[1],
            "decides": [first <= one.target_positions[-1] <= last for first, last in rows for _ in columns],
        }
    )


def pattern(reading: Reading, path: str, head: int = MEAN) -> Float[Tensor, "query key"]:
    """The weights of one head, or the mean of the layer's heads."""
    heads = reading[f"{path}.pattern"][0]
    if head == MEAN:
        return heads.mean(dim=0)
    if not 0 <= head < len(heads):
        raise EditError(f"{path} has heads 0 to {len(heads) - 1} and {MEAN} for their mean, got {head}.")
    return heads[head]


def pattern_incompatibility(one: Reading, other: Reading) -> str | None:
    """Why two patterns cannot be laid over each other, in one sentence; None where they can."""
    names = one.subject.name, other.subject.name
    layers = deciding_layers(one), deciding_layers(other)
    if layers[0] != layers[1]:
        one_in, other_in = (", ".join(of) if len(of) < 4 else f"{len(of)} layers" for of in layers)
        return (
            f"{names[0]} decides in {one_in} and {names[1]} in {other_in}, so there is no map of differences; compare two "
            "models of the same architecture and number of layers."
        )
    for path in layers[0]:
        shapes = [tuple(reading[f"{path}.pattern"].shape[1:]) for reading in (one, other)]
        if shapes[0] != shapes[1]:
            sizes = [f"{n_heads} heads of {n_query} × {n_key}" for n_heads, n_query, n_key in shapes]
            return (
                f"In {path} {names[0]} has {sizes[0]} and {names[1]} {sizes[1]}, so there is no map of differences; "
                "compare models with the same number of heads on inputs of one length."
            )
    first, second = (reading.target_positions[-1] for reading in (one, other))
    if first != second:
        return (
            f"{names[0]} decides at position {first} and {names[1]} at {second}, so there is no map of differences; compare "
            "the same step."
        )
    return None


def lens_divergence(table: pd.DataFrame) -> tuple[int, str] | None:
    """The depth and point of a `decision_lens` of two from which on their likeliest tokens differ to the end; None if they
    agree at the end.

    Raises `InputError` where the two do not pass the same points.
    """
    one, other = (frame for _, frame in table.groupby("model", sort=False))
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


def _rows(reading: Reading, max_keys: int | None) -> pd.DataFrame:
    """The rows of one model."""
    frames = []
    for path in deciding_layers(reading):
        weights = reading[f"{path}.pattern"][0, :, reading.target_positions[-1]].double()  # [head, key]
        mask = reading[f"{path}.mask"][0, :, reading.target_positions[-1]]  # [head, key]
        weights = pooled_keys(torch.cat((weights, weights.mean(dim=0, keepdim=True))), max_keys)
        mask = any_allowed(torch.cat((mask, mask.any(dim=0, keepdim=True))), max_keys)
        heads = [*range(len(weights) - 1), MEAN]
        texts = reading.tokens_of(Site.parse(path).key_stack)
        spans = blocks(len(texts), max_keys)
        columns = {
            "model": reading.subject.name,
            "layer": path,
            "head": [head for head in heads for _ in spans],
            "key": [first for first, _ in spans] * len(heads),
            "key_end": [last for _, last in spans] * len(heads),
            "token": [_span(texts, *span) for span in spans] * len(heads),
            "weight": weights.flatten().tolist(),
            "allowed": mask.flatten().tolist(),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _only(frame: pd.DataFrame, heads: Sequence[tuple[str, int]]) -> pd.DataFrame:
    """The rows of some heads, in their order."""
    by_head = dict(list(frame.groupby(["layer", "head"], sort=False)))
    return pd.concat([by_head[head] for head in heads if head in by_head])


def _allowed(reading: Reading, path: str, head: int) -> Bool[Tensor, "query key"]:
    """What the mask lets through; for the mean, what it lets through in some head."""
    mask = reading[f"{path}.mask"][0]  # [head, query, key]
    return mask.any(dim=0) if head == MEAN else mask[head]


def _span(texts: Sequence[str], first: int, last: int) -> str:
    """The text of a position, or of the ends of a block of several."""
    return texts[first] if first == last else f"{texts[first]} … {texts[last]}"


def decision_lens(readings: Sequence[Reading]) -> pd.DataFrame:
    """What each point of the stream would say at the deciding position: a `lens` with the column model.

    Without right answers, the columns answer, answer_probability and right are left out.

    Args:
        readings: The runs to compare.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", changes="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.decision_lens(readings)
        >>> list(table.columns)
        ['depth', 'point', 'position', 'token', 'probability', 'answer', 'answer_probability', 'right', 'model']
    """
    frames = [lens(reading, [reading.target_positions[-1]]).assign(model=reading.subject.name) for reading in readings]
    if not all(reading.has_right_answer for reading in readings):
        frames = [frame.drop(columns=["answer", "answer_probability", "right"]) for frame in frames]
    return pd.concat(frames, ignore_index=True)


AT_ONCE = 16
"""Positions whose distributions are in memory at a time; a vocabulary may have 150,000 tokens."""


def prediction_incompatibility(one: Reading, other: Reading) -> str | None:
    """Why two runs cannot be compared token by token, in one sentence; None where they can."""
    names = f"{one.subject.name} and {other.subject.name}"
    if one.subject.labels != other.subject.labels:
        return f"{names} have different vocabularies, so there is no distance between what they believe."
    if one.logits.shape != other.logits.shape:
        return (
            f"{names} predict at {one.logits.shape[1]} and {other.logits.shape[1]} positions; give both the same text."
        )
    return None


@torch.no_grad()
def prediction_difference(readings: Sequence[Reading]) -> pd.DataFrame:
    """One row a position: token, what each finds likeliest with its probability, KL both ways in nats, total variation.

    Raises `InputError` where the two have no common vocabulary, or read texts of different lengths.

    Args:
        readings: The runs to compare.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> texts = [
        ...     xformer.read("checkpoints/characters", "import os", changes=changes)
        ...     for changes in ("", "ablate:decoder.0.attn.1")
        ... ]
        >>> table = xformer.analysis.prediction_difference(texts)
        >>> list(table.columns)
        ['position', 'token', 'one_says', 'one_probability', 'other_says', 'other_probability', 'kl', 'kl_back',
         'total_variation']
    """
    one, other = readings
    if reason := prediction_incompatibility(one, other):
        raise InputError(reason)
    labels, frames = one.subject.labels, []
    tokens = one.tokens_of(one.output_stack)
    for first in range(0, one.logits.shape[1], AT_ONCE):
        p, q = (run.logits[0, first : first + AT_ONCE].double().softmax(dim=-1) for run in readings)  # [pos, vocab]
        columns: dict[str, object] = {
            "position": range(first, first + len(p)),
            "token": tokens[first : first + len(p)],
        }
        for name, of in (("one", p), ("other", q)):
            best = of.max(dim=-1)
            columns[f"{name}_says"] = [labels[token] for token in best.indices.tolist()]
            columns[f"{name}_probability"] = best.values.tolist()
        frames.append(
            pd.DataFrame(
                columns
                | {
                    "kl": kl(p, q).tolist(),
                    "kl_back": kl(q, p).tolist(),
                    "total_variation": total_variation(p, q).tolist(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def relabel(reading: Reading, name: str) -> Reading:
    """The same run as that of a model of another name: in a picture of several each has its own.

    Args:
        reading: The run.
        name: The name.

    Returns:
        The reading.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> xformer.analysis.relabel(reading, "as trained").subject.name
        'as trained'
    """
    subject = copy(reading.subject)  # any subject: it need not be a dataclass
    object.__setattr__(subject, "name", name)
    return replace(reading, subject=subject, recipe=f"xformer.analysis.relabel({reading.recipe}, {name!r})")


def at_position(reading: Reading, position: int) -> Reading:
    """The same run, of which one output alone is asked for. Raises `InputError` where there is no such position.

    Args:
        reading: The run.
        position: The position, from 0.

    Returns:
        The reading.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> xformer.analysis.at_position(reading, 2).target_positions
        (2,)
    """
    n = reading.example.labels.shape[1]
    if not 0 <= position < n:
        raise InputError(f"This run has outputs 0 to {n - 1}, got {position}.")
    labels = torch.full_like(reading.example.labels, IGNORED)
    labels[0, position] = reading.explained(position)
    return replace(
        reading,
        example=replace(reading.example, labels=labels),
        recipe=f"xformer.analysis.at_position({reading.recipe}, {position})",
    )


@torch.no_grad()
def gap_fillings(readings: Sequence[Reading], *, k: int = 6) -> pd.DataFrame:
    """One row for each gap, model and token that is among the `k` likeliest of one of them: gap, model, token, probability.

    Gaps are counted, as the same one may stand at different positions. A model without that token has no row for it.

    Args:
        readings: The runs to compare.
        k: The number of tokens of each variant.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> texts = [
        ...     xformer.read("checkpoints/characters", "import os", changes=changes)
        ...     for changes in ("", "ablate:decoder.0.attn.1")
        ... ]
        >>> table = xformer.analysis.gap_fillings(texts)
        >>> list(table.columns)
        ['gap', 'model', 'token', 'probability']
    """
    n = min(len(reading.target_positions) for reading in readings)
    rows = []
    for gap in range(n):
        believed = [reading.probabilities[gap] for reading in readings]
        shown: dict[str, float] = {}
        for reading, p in zip(readings, believed, strict=True):
            top = p.topk(min(k, len(p)))
            for token, value in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                label = reading.subject.labels[token]
                shown[label] = max(shown.get(label, 0.0), value)
        for label in sorted(shown, key=shown.__getitem__, reverse=True):
            for reading, p in zip(readings, believed, strict=True):
                if label in reading.subject.labels:
                    token = reading.subject.labels.index(label)
                    rows.append((gap, reading.subject.name, label, p[token].item()))
    return pd.DataFrame(rows, columns=["gap", "model", "token", "probability"])


@dataclass(frozen=True)
class GeneratedText:
    """A text, where its tokens end in it, and how likely each of them was."""

    text: str
    ends: tuple[int, ...]
    probability: tuple[float, ...]

    @classmethod
    def of(cls, plain: Callable[[Sequence[int]], str], tokens: Sequence[tuple[int, float]]) -> GeneratedText:
        """The text of tokens, each with its probability; `plain` says what text some of them are."""
        ids = [token for token, _ in tokens]
        text = plain(ids)
        ends = tuple(min(len(plain(ids[: index + 1])), len(text)) for index in range(len(ids)))
        return cls(text, ends, tuple(p for _, p in tokens))


def first_difference(one: GeneratedText, other: GeneratedText) -> int | None:
    """The character at which two texts part; None where one of them only goes on further, or not even that."""
    pairs = zip(one.text, other.text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def pieces(one: GeneratedText, other: GeneratedText) -> pd.DataFrame:
    """The common text, cut where both have the end of a token: text, from, to, tokens and probability of each.

    Their last row is where they part: what each says from the last common end to the end of the token at which it parts.
    """
    apart = first_difference(one, other)
    last = min(len(one.text), len(other.text)) if apart is None else apart
    common = sorted(end for end in {*one.ends} & {*other.ends} if 0 < end <= last)
    rows = [_row(one, other, start, end, end) for start, end in zip([0, *common], common, strict=False)]
    if apart is not None:
        start = common[-1] if common else 0
        ends = [next(end for end in text.ends if end > apart) for text in (one, other)]
        rows.append(_row(one, other, start, *ends))
    return pd.DataFrame(rows)


def _row(one: GeneratedText, other: GeneratedText, start: int, end: int, other_end: int) -> dict[str, object]:
    row: dict[str, object] = {"from": start}
    for name, text, to in (("A", one, end), ("B", other, other_end)):
        inside = [at for at, token_end in enumerate(text.ends) if start < token_end <= to]
        row |= {
            f"{name} says": text.text[start:to],
            f"tokens of {name}": len(inside),
            f"p of {name}": math.prod(text.probability[at] for at in inside),
        }
    return row


def bits_per_character(loss: float, n_tokens: int, n_characters: int) -> float:
    """A mean loss in nats over some tokens as bits for each of the characters that they are: that knows no tokens."""
    return loss * n_tokens / math.log(2) / n_characters if n_characters else math.nan
