"""How two runs differ: attention and logit lens at the position that decides a step, and predictions along a text.

The deciding position of a reading is its last target position. Patterns are compared only if their shapes agree; otherwise
`pattern_incompatibility` gives the reason.
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

from xformer.analysis.attention_patterns import names_at, token_names
from xformer.analysis.generation import kl, total_variation
from xformer.analysis.residual import deciding_position, holds_from, lens
from xformer.analysis.tables import array_table
from xformer.arguments import Count, two
from xformer.errors import EditError, InputError
from xformer.formatting import check_index, check_indices
from xformer.layer_path import LayerPath
from xformer.pooling import block_names, blocks, pool_keys, pool_pattern
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED

MEAN = -1
"""The value of a column `head` for the mean over the layer's heads."""
ALL_ROWS = 16
"""The most rows per model, heads and means, up to which all are kept."""


def deciding_layers(reading: Reading) -> tuple[str, ...]:
    """Return the attention layers of the output stack, to which the deciding position belongs."""
    return tuple(site.path for site in reading.layer_paths if site.stack == reading.output_stack)


def decision_rows(
    readings: Sequence[Reading],
    *,
    pair: tuple[int, int] = (0, 1),
    n_heads: Count | None = None,
    max_blocks: Count | None = None,
) -> pd.DataFrame:
    """Tabulate the attention at the deciding position: a row per model, attention layer, head (and the mean) and key.

    Args:
        readings: The runs to compare.
        pair: The indices of the two readings from whose difference the heads to keep are chosen.
        n_heads: If there are more than `ALL_ROWS` heads and means, the number of heads to keep: those in which the `pair`
            differs most if its patterns can be compared, else those with the largest weight in each model. None keeps all.
        max_blocks: The most blocks of keys per row; the weights of the keys in a block are summed.

    Returns:
        The columns model, layer (its path), head (from 0; −1 for the mean), key and key_end (first and last position of the
        block), token, weight and allowed (whether the mask permits any key of the block).

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.decision_rows(readings)
        >>> list(table.columns)
        ['model', 'layer', 'head', 'key', 'key_end', 'token', 'weight', 'allowed']
    """
    if n_heads is not None:
        check_indices("pair", pair, len(readings))
    frames = [_rows(reading, max_blocks) for reading in readings]
    if n_heads is not None and max(frame.groupby(["layer", "head"]).ngroups for frame in frames) > ALL_ROWS:
        one, other = (frames[at] for at in pair)
        alike = pattern_incompatibility(*(readings[at] for at in pair)) is None
        found = clearest_heads(one, other, n_heads) if alike else None
        for at, frame in enumerate(frames):
            heads = found if found and len(frame) == len(one) else clearest_heads(frame, None, n_heads)
            frames[at] = pd.DataFrame(heads, columns=["layer", "head"]).merge(frame).reindex(columns=frame.columns)
    return pd.concat(frames, ignore_index=True)


def clearest_heads(one: pd.DataFrame, other: pd.DataFrame | None, n: int) -> list[tuple[str, int]]:
    """Return the n heads (layer, head) whose rows differ most between two tables of one model, by half the summed |difference|.

    With one table only, return those with the largest single weight. The means over heads are left out.
    """
    value = one["weight"] if other is None else (one["weight"] - other["weight"]).abs() / 2
    heads = one.assign(value=value).loc[one["head"] != MEAN].groupby(["layer", "head"], sort=False)["value"]
    scores = heads.max() if other is None else heads.sum()
    return scores.sort_values(ascending=False, kind="stable").index[:n].tolist()


def pattern_difference(
    readings: Sequence[Reading], layer: int, head: int = MEAN, max_blocks: Count | None = None
) -> pd.DataFrame:
    """Compare two patterns of an attention layer cell by cell: difference = other − one.

    Args:
        readings: The two runs to compare.
        layer: The attention layer, from 0.
        head: The head, from 0; −1 for the mean over heads.
        max_blocks: The most blocks of positions per side; keys are summed and queries averaged within a block.

    Returns:
        A row per cell: query, query_end, key and key_end (first and last position of each block), query_token, key_token, one,
        other and difference (weights), one_allowed and other_allowed (whether the mask permits the cell), and decides (whether
        the deciding position is in this row).

    Raises:
        EditError: If the layer or head does not exist.
        InputError: If the patterns have different shapes.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.pattern_difference(readings, 1, 1)
        >>> list(table.columns)
        ['query', 'query_end', 'key', 'key_end', 'query_token', 'key_token', 'one', 'other', 'difference',
         'one_allowed', 'other_allowed', 'decides']
    """
    one, other = two("readings", readings)
    if reason := pattern_incompatibility(one, other):
        raise InputError(reason)
    site = one.attention_path(layer)
    path = site.path
    queries, keys = (
        [a if a == b else f"{a} / {b}" for a, b in zip(*names, strict=True)]
        for names in zip(*(token_names(run, site, run[f"{path}.pattern"].shape) for run in readings), strict=True)
    )
    axes = (_axis("query", "query_token", queries, max_blocks), _axis("key", "key_token", keys, max_blocks))
    a, b = (
        pool_pattern(_head_values(reading, f"{path}.pattern", head), max_blocks) for reading in readings
    )  # [query, key]
    may = [pool_pattern(_head_values(reading, f"{path}.mask", head), max_blocks) > 0 for reading in readings]
    table = array_table(*axes, one=a, other=b, difference=b - a, one_allowed=may[0], other_allowed=may[1])
    position, ends = deciding_position(one), ["query", "query_end", "key", "key_end"]
    table["decides"] = (table["query"] <= position) & (position <= table["query_end"])
    return table.reindex(columns=[*ends, *table.columns.drop(ends)])


def _axis(name: str, token: str, texts: Sequence[str], most: int | None) -> dict[str, list[Any]]:
    """Return the columns of an axis of tokens in at most `most` blocks: first and last position of each, and its text."""
    first, last = map(list, zip(*blocks(len(texts), most), strict=True))
    return {name: first, f"{name}_end": last, token: block_names(texts, most)}


def _head_values(reading: Reading, name: str, head: int) -> Float[Tensor, "query key"]:
    """Return the weights (or the mask) of one head, or the mean over the layer's heads."""
    heads = reading[name][0].float()
    if not MEAN <= head < len(heads):
        raise EditError(f"{name} has heads 0 to {len(heads) - 1} and {MEAN} for their mean, got {head}.")
    return (heads.mean(dim=0) if head == MEAN else heads[head]).double()


def pattern_incompatibility(one: Reading, other: Reading) -> str | None:
    """Return the reason why the patterns of two runs cannot be subtracted, in one sentence; None if they can be."""
    for what, value_of in (
        ("attention layers", deciding_layers),
        ("heads × queries × keys", lambda run: [run[f"{path}.pattern"].shape[1:] for path in deciding_layers(run)]),
        ("deciding positions", lambda run: deciding_position(run)),
    ):
        if value_of(one) != value_of(other):
            return (
                f"{one.adapter.name} and {other.adapter.name} have different {what}, so there is no map of differences; "
                "compare the same step of two models with the same architecture and size, on inputs of equal length."
            )
    return None


def lens_divergence(table: pd.DataFrame) -> tuple[int, str] | None:
    """Return the depth and point from which the likeliest tokens of a two-model `decision_lens` differ to the end.

    None if they agree at the end. Raises `InputError` if the two models do not have the same points.
    """
    frames = [frame for _, frame in table.groupby("model", sort=False)]
    if len(frames) != 2:
        raise InputError("The lens compares two runs with different names; rename one with analysis.relabel.")
    one, other = frames
    if one["point"].tolist() != other["point"].tolist():
        raise InputError(
            f"The two models have {len(one)} and {len(other)} points, so their layers cannot be compared side by side; "
            "choose two with the same architecture and number of layers."
        )
    depth = holds_from((one["token"].to_numpy() != other["token"].to_numpy()).tolist())
    return None if depth is None else (depth, one["point"].iloc[depth])


def _rows(reading: Reading, max_blocks: int | None) -> pd.DataFrame:
    """Tabulate the attention of one model at its deciding position."""
    frames = []
    for path in deciding_layers(reading):
        weights = reading[f"{path}.pattern"][0, :, deciding_position(reading)].double()  # [head, key]
        mask = reading[f"{path}.mask"][0, :, deciding_position(reading)]  # [head, key]
        weights = pool_keys(torch.cat((weights, weights.mean(dim=0, keepdim=True))), max_blocks)
        mask = pool_keys(torch.cat((mask, mask.any(dim=0, keepdim=True))).double(), max_blocks) > 0
        names = token_names(reading, LayerPath.parse(path), reading[f"{path}.pattern"].shape)
        keys = _axis("key", "token", names[1], max_blocks)
        table = array_table({"head": [*range(len(weights) - 1), MEAN]}, keys, weight=weights, allowed=mask)
        table.insert(0, "layer", path)
        frames.append(table)
    table = pd.concat(frames, ignore_index=True)
    table.insert(0, "model", reading.adapter.name)
    return table


def decision_lens(readings: Sequence[Reading]) -> pd.DataFrame:
    """Apply the logit lens at the deciding position of each run.

    Args:
        readings: The runs to compare.

    Returns:
        The columns of `lens`, and model. Unless all runs have a right answer, answer, answer_probability and right are omitted.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.decision_lens(readings)
        >>> list(table.columns)
        ['depth', 'point', 'position', 'token', 'probability', 'answer', 'answer_probability', 'right', 'model']
    """
    frames = [lens(reading, [deciding_position(reading)]).assign(model=reading.adapter.name) for reading in readings]
    if not all(reading.has_right_answer for reading in readings):
        frames = [frame.drop(columns=["answer", "answer_probability", "right"]) for frame in frames]
    return pd.concat(frames, ignore_index=True)


def prediction_incompatibility(one: Reading, other: Reading) -> str | None:
    """Return the reason why two runs cannot be compared token by token, in one sentence; None if they can be."""
    names = f"{one.adapter.name} and {other.adapter.name}"
    if one.adapter.token_labels != other.adapter.token_labels:
        return f"{names} have different vocabularies, so there is no distance between their predictions."
    if one.logits.shape[1:] != other.logits.shape[1:]:
        sizes = f"{one.logits.shape[1]} and {other.logits.shape[1]}"
        return f"{names} predict at {sizes} positions; give both the same text."
    return None


@torch.no_grad()
def prediction_difference(readings: Sequence[Reading]) -> pd.DataFrame:
    """Compare the next-token distributions of two runs at every position.

    Args:
        readings: The two runs to compare.

    Returns:
        A row per position: position (from 0), token, the likeliest token of each run (one_says, other_says) with its
        probability, kl (of one from other) and kl_back (of other from one) in nats, and total_variation (0 to 1).

    Raises:
        InputError: If the two models have different vocabularies, or the texts have different lengths.

    Example:
        >>> import xformer
        >>> texts = [
        ...     xformer.read("checkpoints/characters", "import os", edits=edits)
        ...     for edits in ("", "ablate:decoder.0.attn.1")
        ... ]
        >>> table = xformer.analysis.prediction_difference(texts)
        >>> list(table.columns)
        ['position', 'token', 'one_says', 'one_probability', 'other_says', 'other_probability', 'kl', 'kl_back',
         'total_variation']
    """
    one, other = two("readings", readings)
    if reason := prediction_incompatibility(one, other):
        raise InputError(reason)
    labels, tokens = one.adapter.token_labels, names_at(one, one.output_stack, one.logits.shape[1])
    rows = []
    for position in range(one.logits.shape[1]):
        p, q = (run.logits[0, position].double().softmax(dim=-1) for run in readings)  # [vocab]
        row: dict[str, object] = {"position": position, "token": tokens[position]}
        for name, probabilities in (("one", p), ("other", q)):
            best = int(probabilities.argmax())
            row |= {f"{name}_says": labels[best], f"{name}_probability": probabilities[best].item()}
        distances = {"kl": kl(p, q), "kl_back": kl(q, p), "total_variation": total_variation(p, q)}
        rows.append(row | {name: value.item() for name, value in distances.items()})
    return pd.DataFrame(rows)


def relabel(reading: Reading, name: str) -> Reading:
    """Return the same run under another model name, so that runs of one model can be distinguished in tables and charts.

    Args:
        reading: The run.
        name: The new name.

    Returns:
        A copy of the reading whose model has that name.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> xformer.analysis.relabel(reading, "as trained").adapter.name
        'as trained'
    """
    adapter = copy(reading.adapter)  # not replace(): an adapter need not be a dataclass
    object.__setattr__(adapter, "name", name)
    return replace(reading, adapter=adapter, code=f"xformer.analysis.relabel({reading.code}, {name!r})")


def at_position(reading: Reading, position: int) -> Reading:
    """Return the same run with a single target position.

    Args:
        reading: The run.
        position: The output position, from 0.

    Returns:
        A copy of the reading whose only label is at that position.

    Raises:
        InputError: If there is no such position.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> xformer.analysis.at_position(reading, 2).target_positions
        (2,)
    """
    check_index("position", position, reading.example.labels.shape[1])
    labels = torch.full_like(reading.example.labels, IGNORED)
    labels[0, position] = reading.explained(position)
    code = f"xformer.analysis.at_position({reading.code}, {position})"
    return replace(reading, example=replace(reading.example, labels=labels), code=code)


@torch.no_grad()
def gap_fillings(readings: Sequence[Reading], *, k: Count = 6) -> pd.DataFrame:
    """Compare the likeliest tokens for each gap of a text across several runs.

    Gaps are numbered, because the same gap may be at different positions in different models.

    Args:
        readings: The runs to compare.
        k: The number of likeliest tokens taken from each run.

    Returns:
        A row per gap, model and token that is among the `k` likeliest of any run: gap (from 0), model, token and probability.
        A model whose vocabulary lacks the token has no row for it.

    Example:
        >>> import xformer
        >>> texts = [
        ...     xformer.read("checkpoints/characters", "import os", edits=edits)
        ...     for edits in ("", "ablate:decoder.0.attn.1")
        ... ]
        >>> table = xformer.analysis.gap_fillings(texts)
        >>> list(table.columns)
        ['gap', 'model', 'token', 'probability']
    """
    n = min(len(reading.target_positions) for reading in readings)
    rows = []
    for gap in range(n):
        probabilities = [reading.probabilities[gap] for reading in readings]
        shown: dict[str, float] = {}
        for reading, p in zip(readings, probabilities, strict=True):
            top = p.topk(min(k, len(p)))
            for token, value in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                label = reading.adapter.token_labels[token]
                shown[label] = max(shown.get(label, 0.0), value)
        for label in sorted(shown, key=shown.__getitem__, reverse=True):
            for reading, p in zip(readings, probabilities, strict=True):
                if label in reading.adapter.token_labels:
                    token = reading.adapter.token_labels.index(label)
                    rows.append((gap, reading.adapter.name, label, p[token].item()))
    return pd.DataFrame(rows, columns=["gap", "model", "token", "probability"])


@dataclass(frozen=True)
class GeneratedText:
    """A text, the character at which each of its tokens ends, and the probability of each token."""

    text: str
    ends: tuple[int, ...]
    probability: tuple[float, ...]

    @classmethod
    def of(cls, decode: Callable[[Sequence[int]], str], tokens: Sequence[tuple[int, float]]) -> GeneratedText:
        """Build the text of tokens given with their probabilities; `decode` converts token ids to text."""
        ids = [token for token, _ in tokens]
        text = decode(ids)
        ends = tuple(min(len(decode(ids[: index + 1])), len(text)) for index in range(len(ids)))
        return cls(text, ends, tuple(p for _, p in tokens))


def first_difference(one: GeneratedText, other: GeneratedText) -> int | None:
    """Return the first character at which two texts differ; None if one text is the beginning of the other."""
    pairs = zip(one.text, other.text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def pieces(one: GeneratedText, other: GeneratedText) -> pd.DataFrame:
    """Divide the common beginning of two texts into pieces that end at a token boundary in both.

    Columns: from (the first character), and for A and B the text, the number of tokens and their probability. If the texts
    differ, the last row has the pieces from the last common boundary to the end of the tokens that differ first.
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
        each = [p for p, token_end in zip(text.probability, text.ends, strict=True) if start < token_end <= to]
        row |= {f"{name} says": text.text[start:to], f"tokens of {name}": len(each), f"p of {name}": math.prod(each)}
    return row


def surprise_by_character(readings: Sequence[Reading]) -> pd.DataFrame:
    """Measure how surprising each token of a text is to several language models, whose tokens may differ.

    Args:
        readings: The runs on the same text.

    Returns:
        A row for each token but the first: model, token, from and to (characters of the text), bits (−log₂ of the token's
        probability) and bits_per_character.

    Example:
        >>> import xformer
        >>> table = xformer.analysis.surprise_by_character([xformer.read("checkpoints/characters", "import os")])
        >>> list(table.columns)
        ['model', 'token', 'from', 'to', 'bits', 'bits_per_character']
    """
    rows = []
    for reading in readings:
        ids, decode = [max(0, token) for token in reading.ids()], reading.adapter.input.decode
        for position, token in zip(reading.target_positions, reading.answer, strict=True):
            start, end = (len(decode(ids[: position + n])) for n in (1, 2))
            bits = -reading.logits[0, position].log_softmax(dim=-1)[token].item() / math.log(2)
            label = reading.adapter.token_labels[token]
            rows.append((reading.adapter.name, label, start, end, bits, bits / max(1, end - start)))
    if not rows:
        raise InputError("No token of these runs has a next token, so there is no surprise.")
    return pd.DataFrame(rows, columns=["model", "token", "from", "to", "bits", "bits_per_character"])
