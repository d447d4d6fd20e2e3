"""How two runs differ: attention and logit lens at the position that decided a step, and predictions along a text.

The deciding position of a reading is its last target position. Patterns are compared only where their shapes agree; where
they do not, `pattern_incompatibility` gives the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.attention_patterns import blocks, pooled, pooled_keys, span
from xformer.analysis.generation import kl, total_variation
from xformer.analysis.residual import holds_from, lens
from xformer.analysis.tables import array_table
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
        whole, other = (frames[at] for at in pair)
        alike = pattern_incompatibility(*(readings[at] for at in pair)) is None
        found = clearest_heads(whole, other, n_heads) if alike else None
        for at, frame in enumerate(frames):
            heads = found if found and len(frame) == len(whole) else clearest_heads(frame, None, n_heads)
            frames[at] = pd.DataFrame(heads, columns=["layer", "head"]).merge(frame).reindex(columns=frame.columns)
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
    axes = (_axis("query", "query_token", queries, max_blocks), _axis("key", "key_token", keys, max_blocks))
    a, b = (pooled(_of_head(reading, f"{path}.pattern", head), max_blocks) for reading in readings)  # [query, key]
    may = [pooled(_of_head(reading, f"{path}.mask", head), max_blocks) > 0 for reading in readings]
    table = array_table(*axes, one=a, other=b, difference=b - a, one_allowed=may[0], other_allowed=may[1])
    position, ends = one.target_positions[-1], ["query", "query_end", "key", "key_end"]
    table["decides"] = (table["query"] <= position) & (position <= table["query_end"])
    return table.reindex(columns=[*ends, *table.columns.drop(ends)])


def _axis(name: str, token: str, texts: Sequence[str], most: int | None) -> dict[str, list[Any]]:
    """The columns of an axis of tokens in at most `most` blocks: the first and the last position of each, and its text."""
    first, last = map(list, zip(*blocks(len(texts), most), strict=True))
    return {name: first, f"{name}_end": last, token: [span(texts, *ends) for ends in zip(first, last, strict=True)]}


def _of_head(reading: Reading, name: str, head: int) -> Float[Tensor, "query key"]:
    """The weights (or the mask) of one head, or the mean of the layer's heads."""
    heads = reading[name][0].float()
    if not MEAN <= head < len(heads):
        raise EditError(f"{name} has heads 0 to {len(heads) - 1} and {MEAN} for their mean, got {head}.")
    return (heads.mean(dim=0) if head == MEAN else heads[head]).double()


def pattern_incompatibility(one: Reading, other: Reading) -> str | None:
    """The reason why the patterns of two runs have no difference, in one sentence; None where they have one."""
    for what, of in (
        ("attention layers", deciding_layers),
        (
            "heads × queries × keys",
            lambda run: [tuple(run[f"{path}.pattern"].shape[1:]) for path in deciding_layers(run)],
        ),
        ("deciding positions", lambda run: run.target_positions[-1]),
    ):
        if of(one) != of(other):
            return (
                f"{one.subject.name} and {other.subject.name} have different {what}, so there is no map of differences; "
                "compare the same step of two models of one architecture and size, on inputs of one length."
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
    depth = holds_from((one["token"].to_numpy() != other["token"].to_numpy()).tolist())
    return None if depth is None else (depth, one["point"].iloc[depth])


def _rows(reading: Reading, max_keys: int | None) -> pd.DataFrame:
    """The rows of one model."""
    frames = []
    for path in deciding_layers(reading):
        weights = reading[f"{path}.pattern"][0, :, reading.target_positions[-1]].double()  # [head, key]
        mask = reading[f"{path}.mask"][0, :, reading.target_positions[-1]]  # [head, key]
        weights = pooled_keys(torch.cat((weights, weights.mean(dim=0, keepdim=True))), max_keys)
        mask = pooled_keys(torch.cat((mask, mask.any(dim=0, keepdim=True))).double(), max_keys) > 0
        keys = _axis("key", "token", reading.tokens_of(Site.parse(path).key_stack), max_keys)
        table = array_table({"head": [*range(len(weights) - 1), MEAN]}, keys, weight=weights, allowed=mask)
        table.insert(0, "layer", path)
        frames.append(table)
    whole = pd.concat(frames, ignore_index=True)
    whole.insert(0, "model", reading.subject.name)
    return whole


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


def prediction_incompatibility(one: Reading, other: Reading) -> str | None:
    """The reason why two runs cannot be compared token by token, in one sentence; None where they can be."""
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
    labels, tokens = one.subject.labels, one.tokens_of(one.output_stack)
    rows = []
    for position in range(one.logits.shape[1]):
        p, q = (run.logits[0, position].double().softmax(dim=-1) for run in readings)  # [vocab]
        row: dict[str, object] = {"position": position, "token": tokens[position]}
        for name, of in (("one", p), ("other", q)):
            row |= {f"{name}_says": labels[int(of.argmax())], f"{name}_probability": of.max().item()}
        distances = {"kl": kl(p, q), "kl_back": kl(q, p), "total_variation": total_variation(p, q)}
        rows.append(row | {name: value.item() for name, value in distances.items()})
    return pd.DataFrame(rows)


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


def surprise_by_character(readings: Sequence[Reading]) -> pd.DataFrame:
    """By how many bits models of text are surprised along a text; their tokens may differ.

    Args:
        readings: The runs on the same text.

    Returns:
        A row for each token but the first: model, token, from, to (characters), bits, bits_per_character.

    Example:
        >>> import xformer
        >>> table = xformer.analysis.surprise_by_character([xformer.read("checkpoints/characters", "import os")])
        >>> list(table.columns)
        ['model', 'token', 'from', 'to', 'bits', 'bits_per_character']
    """
    rows = []
    for reading in readings:
        ids, plain = reading.ids(), reading.subject.input.plain
        for position, token in zip(reading.target_positions, reading.answer, strict=True):
            start, end = (len(plain(ids[: position + n])) for n in (1, 2))
            bits = -reading.logits[0, position].log_softmax(dim=-1)[token].item() / math.log(2)
            row = {"model": reading.subject.name, "token": reading.subject.labels[token], "from": start, "to": end}
            rows.append(row | {"bits": bits, "bits_per_character": bits / max(1, end - start)})
    return pd.DataFrame(rows)
