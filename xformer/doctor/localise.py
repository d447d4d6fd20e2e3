"""Locate the first difference between two runs that should agree: layer, component, and in attention the head and cell.

    place = localise(context, pair)
    place.layer, place.head, place.query, place.key, place.cause

What every module reads and computes, and every attention, is compared in forward order, at the positions that should agree.
The first that differs determines the layer and the component. In an attention, a weight on a key outside those positions (a
later token, padding, another document) is itself the offending cell.

`compare_runs` does the same for two models that should be equivalent: a port and its original, or two checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from xformer.adapters.module_map import Layers
from xformer.doctor.check import CheckContext, FaultLocation, Pair, distance
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Event, Watched, watch_events
from xformer.errors import InputError

MASKED = -1e9
"""Scores below this count as masked, whether by −∞ or by a large negative constant."""
LEAK = 1e-6
"""The smallest attention weight on a forbidden key that counts."""
LONG = 512
"""A fault that shows in this number of first tokens is located there, as all patterns of a run are in memory."""


def localise(context: CheckContext, pair: Pair) -> FaultLocation | None:
    """Return the location where the runs of a pair first differ; None if no activation differs."""
    limit, pair = 1e2 * context.model.eps, with_other_length(_first_tokens(context, pair))
    first, layers = watch_events(context.model, pair.first)
    second, _ = watch_events(pair.second_model or context.model, pair.second)
    aligned = _Aligned(pair, limit)
    both = list(_paired_events(first, second))
    for index, (one, other) in enumerate(both):
        if one.attention is not None and other.attention is not None:
            place = aligned.attention_place(one.attention, other.attention)
            if place is not None:
                return place
        elif aligned.differs(one, other):
            return _place(context.model, aligned, both, index, layers)
    return None


def first_not_finite(model: TokenModel, run: ModelCall) -> FaultLocation | None:
    """Return the location of the first NaN or infinity, other than masked scores (−∞ by design); None if there is none."""
    short = run.each(lambda value: value[:, :LONG])
    is_short = run.read.shape[1] > LONG and not bool(model.logits(short).isfinite().all())
    events, layers = watch_events(model, short if is_short else run)
    for index, event in enumerate(events):
        one = event.attention
        if one is not None:
            bad = ~one.softmax.isfinite()  # [batch, head, query, key]
            if bool(bad.any()):
                _, head, query, _ = (int(i) for i in bad.nonzero()[0])
                return FaultLocation(f"{_name(event.path)}.pattern", "pattern", one.layer, head, query)
        elif event.kind == "output" and not all(bool(value.isfinite().all()) for value in event.values):
            return FaultLocation(_name(event.path), _cause(model, events, index, layers), layers.of(event.chain))
    return None


def _first_tokens(context: CheckContext, pair: Pair) -> Pair:
    """Return a long pair with its first tokens alone, if both runs read as many tokens and differ there too."""
    runs, n = (pair.first, pair.second), pair.first.read.shape[1]
    is_aligned = pair.at_second is None and all(
        run.read.shape[1] == n and run.target is None and not run.n_cached for run in runs
    )
    if n <= LONG or not is_aligned:
        return pair
    first, second = (run.each(lambda value: value[:, :LONG]) for run in runs)
    short = replace(pair, first=first, second=second, at=[at for at in pair.at if at < LONG])
    return short if short.at and context.apart(short) > context.limit else pair


def with_other_length(pair: Pair) -> Pair:
    """Return a pair whose sources have another length than the targets, so that the shapes tell which stream a value is of."""
    first, second = pair.first, pair.second
    if first.target is None or first.tokens.shape[1] not in (first.read.shape[1], second.read.shape[1]):
        return pair
    longer = 1 if first.tokens.shape[1] == 1 else 0

    def change(run: ModelCall) -> ModelCall:
        cut = [value if value is None or longer else value[:, 1:] for value in (run.tokens, run.valid)]
        cut = [None if value is None else torch.cat([value[:, :longer], value], dim=1) for value in cut]
        return replace(run, tokens=cut[0], valid=cut[1])

    return replace(pair, first=change(first), second=change(second))


def _paired_events(first: list[Event], second: list[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield corresponding events of two runs: by module, or if the models have different modules, the attentions by order."""
    found = {event.key: event for event in second}
    if sum(event.key in found for event in first) > len(first) / 2:
        yield from ((event, found[event.key]) for event in first if event.key in found)
        return
    attentions = [[event for event in events if event.attention is not None] for events in (first, second)]
    yield from zip(*attentions, strict=False)
    yield first[-1], second[-1]


class _Stream(NamedTuple):
    """The positions of one sequence of tokens in both runs: how many there are, and those that should agree."""

    n: tuple[int, int]
    at: tuple[list[int], list[int]]


class _Aligned:
    """Two runs, restricted to the positions that should agree."""

    def __init__(self, pair: Pair, limit: float) -> None:
        first, second = pair.first, pair.second
        self.pair, self.limit = pair, limit
        self.n_rows, self.row = len(second.tokens), pair.row_second
        n, n_second, n_cached = first.read.shape[1], second.read.shape[1], second.n_cached
        self.queries = _Stream((n, n_second), pair.positions)
        self.keys = self.queries
        if n_cached:  # the second run was watched from this position on
            rest = [at for at in pair.positions[0] if at >= n_cached]
            self.queries = _Stream((n, n_second - n_cached), (rest, [at - n_cached for at in rest]))
            self.keys = _Stream((n, n_second), (list(range(n)), list(range(n_second))))
        self.source = None
        if first.target is not None:
            lengths = first.tokens.shape[1], second.tokens.shape[1]
            self.source = _Stream(lengths, (_tokens(first, 0), _tokens(second, self.row)))

    def differs(self, one: Event, other: Event) -> bool:
        """Return whether a module's inputs or outputs differ at the positions that should agree."""
        pairs = zip(one.values, other.values, strict=False)
        return any(cut is not None and _apart(*cut) > self.limit for cut in (self._cut(*two) for two in pairs))

    def _cut(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return both values at those positions; None if they have no axis of positions."""
        for stream in self._streams():
            for form in FORMS:
                rows = form(one, 1, stream.n[0]), form(other, self.n_rows, stream.n[1])
                if rows[0] is None or rows[1] is None:
                    continue
                first, second = rows[0], rows[1]
                second = second[self.row if len(second) > 1 else 0][stream.at[1]]
                first = first[0][stream.at[0]]
                if first.shape == second.shape:
                    return first, second
                break
        return None

    def attention_place(self, one: Watched, other: Watched) -> FaultLocation | None:
        """Return the location if an attention differs, or if a query attends to a key that must not affect it."""
        (n_query, n_key), (n_query_second, n_key_second) = (seen.pattern.shape[-2:] for seen in (one, other))
        queries = next((stream for stream in self._streams() if stream.n == (n_query, n_query_second)), None)
        keys = next(
            (stream for stream in (self.keys, self.source) if stream and stream.n == (n_key, n_key_second)), None
        )
        if queries is not None and keys is not None:
            at = _At(self, one, other, queries, keys)
            return at.leak() or at.difference()
        if queries is self.queries and n_key == self.keys.n[0] and n_key_second == n_query_second != self.keys.n[1]:
            return FaultLocation(_name(one.path), "k", one.layer)  # the cached keys are missing
        if n_query == n_key == 1 and n_query_second == n_key_second == self.n_rows > 1:
            return FaultLocation(_name(one.path), "rows", one.layer)
        return None

    def _streams(self) -> list[_Stream]:
        return [self.queries, *([] if self.source is None else [self.source])]


class _At:
    """One attention of both runs, at the queries and keys that should agree."""

    def __init__(self, aligned: _Aligned, one: Watched, other: Watched, queries: _Stream, keys: _Stream) -> None:
        self.aligned, self.one, self.other, self.queries, self.keys = aligned, one, other, queries, keys

    def _row(self, value: Tensor) -> Tensor:
        return value[self.aligned.row] if len(value) == self.aligned.n_rows else value[0]

    def _tokens(self, run: ModelCall, row: int, n_key: int) -> tuple[int, ...]:
        stream = run.tokens if self.keys is self.aligned.source else run.read
        return tuple(stream[row].tolist()) if stream.shape[1] == n_key else ()

    def leak(self) -> FaultLocation | None:
        """Return the largest weight of a compared query on a key that must not affect it."""
        pair, one, other = self.aligned.pair, self.one, self.other
        for run, row, seen, index in ((pair.second, self.aligned.row, other, 1), (pair.first, 0, one, 0)):
            pattern = (self._row(seen.pattern) if index else seen.pattern[0])[..., : self.keys.n[index]]
            forbidden = torch.ones(self.keys.n[index], dtype=torch.bool)
            forbidden[self.keys.at[index]] = False
            queries = self.queries.at[index]
            weights = pattern.cpu()[:, queries].double().nan_to_num() * forbidden  # [head, query, key]
            if weights.numel() and float(weights.max()) > LEAK:
                head, query, key = (int(i) for i in torch.unravel_index(weights.argmax(), weights.shape))
                labels = self._tokens(run, row, pattern.shape[-1])
                return FaultLocation(
                    f"{_name(one.path)}.pattern", "mask", one.layer, head, queries[query], key, pattern[head], labels
                )
        return None

    def _cut(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return q, k, v, scores, softmax or pattern of both runs at the compared positions, [head, …]; None if unknown."""
        values = [getattr(seen, name) for seen in (self.one, self.other)]
        if any(value is None for value in values):
            return None
        cut = []
        for index, value in enumerate((values[0][0], self._row(values[1]))):
            query, key = self.queries.at[index], self.keys.at[index]
            n_query, n_key = self.queries.n[index], self.keys.n[index]
            value = value.cpu().double()
            if value.shape[1] != (n_key if name in ("k", "v") else n_query):
                return None
            if name in ("q", "k", "v"):
                cut.append(value[:, query if name == "q" else key])
            else:
                cut.append(value[:, query][..., key])
        return (cut[0], cut[1]) if cut[0].shape == cut[1].shape else None

    def difference(self) -> FaultLocation | None:
        """Return the first of q, k, v, scores and weights that differs."""
        for name in ("q", "k", "v", "scores", "softmax", "pattern"):
            cut = self._cut(name)
            if cut is None or _apart(*cut) <= self.aligned.limit or (name in ("q", "k") and self._is_scale(cut)):
                continue
            if name == "scores" and (place := self._other_mask(cut)) is not None:
                return place
            cause = "pattern" if name == "softmax" else name
            if name in ("q", "k") and self._is_turned(name):
                cause = "positions"
            return self._at_largest(cause, cut)
        return None

    def _other_mask(self, cut: tuple[Tensor, Tensor]) -> FaultLocation | None:
        """Return the cell with the largest weight among those that only one of two models masks; None if there is none."""
        cells, hidden = self._cut("pattern"), [scores < MASKED for scores in cut]
        if self.aligned.pair.second_model is None or cells is None:
            return None
        weights = torch.stack(cells).nan_to_num() * (hidden[0] != hidden[1])  # [model, head, query, key]
        if float(weights.max()) == 0:
            return None
        model, head, query, key = (int(i) for i in torch.unravel_index(weights.argmax(), weights.shape))
        pattern = (self.one, self.other)[model].pattern[0, head].cpu()
        at = self.queries.at[model][query], self.keys.at[model][key]
        labels = self._tokens(self.aligned.pair.first, 0, pattern.shape[-1])
        return FaultLocation(f"{_name(self.one.path)}.scores", "mask", self.one.layer, head, *at, pattern, labels)

    def _is_scale(self, cut: tuple[Tensor, Tensor]) -> bool:
        """Return whether queries or keys differ by a factor only, as where one path scales q and another the scores."""
        one, other = cut
        factor = (one * other).sum() / (other * other).sum().clamp(min=1e-30)
        return _apart(one, factor * other) <= self.aligned.limit

    def _is_turned(self, name: str) -> bool:
        """Return whether only the positions differ: the values agree, and of two models position 0, which is not rotated."""
        values, cut = self._cut("v"), self._cut(name)
        if values is None or cut is None or _apart(*values) > 1e-5:
            return False
        return self.aligned.pair.second_model is None or distance(cut[0][:, :1], cut[1][:, :1]) < 1e-5

    def _at_largest(self, cause: str, cut: tuple[Tensor, Tensor]) -> FaultLocation:
        """Return the location at the head in which a value changes most, and the cell of its pattern that changes most."""
        name = f"{_name(self.one.path)}.{cause}"
        head = int((cut[0].clamp(min=MASKED) - cut[1].clamp(min=MASKED)).nan_to_num().abs().amax(dim=(1, 2)).argmax())
        cells = self._cut("pattern")
        if cells is None or head >= len(cells[0]):  # heads may share keys and values
            return FaultLocation(name, cause, self.one.layer, head)
        change = (cells[0] - cells[1])[head].nan_to_num().abs()  # [query, key]
        query = key = None
        if float(change.max()) > 0:
            at = torch.unravel_index(change.argmax(), change.shape)
            query, key = self.queries.at[0][int(at[0])], self.keys.at[0][int(at[1])]
        pattern = self.one.pattern[0, head].cpu()
        return FaultLocation(
            name,
            cause,
            self.one.layer,
            head,
            query,
            key,
            pattern,
            self._tokens(self.aligned.pair.first, 0, pattern.shape[-1]),
        )


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the size; −∞ in both, as at masked cells, counts as equal."""
    if one.shape != other.shape:
        return float("inf")
    one, other = (value.cpu().double() for value in (one, other))
    one, other = (value.masked_fill(value < MASKED, float("-inf")) for value in (one, other))
    both = one.isfinite() & other.isfinite()
    if bool((one.isfinite() != other.isfinite()).any()):
        return float("inf")
    one, other = one[both], other[both]
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) if one.numel() else 0.0


def _tokens(run: ModelCall, row: int) -> list[int]:
    """Return the positions of the encoder's tokens, without padding."""
    valid = torch.ones_like(run.tokens).bool() if run.valid is None else run.valid
    return valid[row].nonzero().flatten().tolist()


def _batch_first(value: Tensor, n_rows: int, n: int) -> Tensor | None:
    """[batch, pos, …], or without a batch [1, pos, …]."""
    return value if value.dim() >= 3 and len(value) in (1, n_rows) and value.shape[1] == n else None


def _positions_first(value: Tensor, n_rows: int, n: int) -> Tensor | None:
    """[pos, batch, …]"""
    return value.transpose(0, 1) if value.dim() >= 3 and value.shape[:2] == (n, n_rows) else None


def _heads_first(value: Tensor, n_rows: int, n: int) -> Tensor | None:
    """[batch, head, pos, d_head]"""
    is_heads = value.dim() == 4 and len(value) in (1, n_rows) and value.shape[2] == n != value.shape[3]
    return value.transpose(1, 2) if is_heads else None


def _flat(value: Tensor, n_rows: int, n: int) -> Tensor | None:
    """[batch · pos, features], or a table [pos, features]."""
    if value.dim() != 2 or len(value) not in (n, n_rows * n):
        return None
    return value.unflatten(0, (-1, n))


FORMS = (_batch_first, _positions_first, _heads_first, _flat)
"""The ways in which a value may contain its positions; each returns [batch or 1, pos, …], or None for another shape."""


def _name(path: str) -> str:
    """Return the path of a module; in an xformer model, the name of its site."""
    return path.replace(".blocks.", ".")


def _place(
    model: TokenModel, aligned: _Aligned, both: list[tuple[Event, Event]], index: int, layers: Layers
) -> FaultLocation:
    """Return the location of the first module whose input or output differs."""
    event = both[index][0]
    layer = layers.of(event.chain)
    for one, other in both[index:]:
        if one.attention is not None and other.attention is not None:
            is_inside = one.path != event.path and event.path.startswith(f"{one.path}.") and not _is_norm(event)
            place = aligned.attention_place(one.attention, other.attention) if is_inside else None
            if place is not None and place.cause in PROJECTED:  # the module projects q, k or v
                return replace(place, name=_name(event.path))
            break
    return FaultLocation(_name(event.path), _cause(model, [one for one, _ in both], index, layers), layer)


PROJECTED = ("q", "k", "v", "positions")
FEED_FORWARD = re.compile(r"mlp|ffn?\d*$|ffwd|feed|fc|linear|moe|expert|dense", re.IGNORECASE)


def _is_norm(event: Event) -> bool:
    return "norm" in type(event.module).__name__.lower()


def _cause(model: TokenModel, events: Sequence[Event], index: int, layers: Layers) -> str:
    """Return the cause of a difference in a module's input or output, a key of `CAUSES`; "" if only the module is known."""
    event = events[index]
    layer, path = layers.of(event.chain), event.path
    before = [at for at, one in enumerate(events[:index]) if one.attention is not None]
    own = [at for at in before if layers.of(events[at].chain) == layer]
    is_first_since = bool(own) and all(one.kind == "input" for one in events[own[-1] + 1 : index])
    if event.kind == "input":
        return "z" if is_first_since and layer is not None else "input"
    if _is_norm(event):
        return "norm"
    if layer is None and not before:
        is_table = isinstance(event.module, nn.Embedding)
        is_named = any(word in path.lower() for word in ("pos", "rotary", "rope"))
        is_by_token = is_table and event.module.num_embeddings == model.n_tokens and not is_named
        is_positions = is_table or is_named
        return "embedding" if is_by_token else "positions" if is_positions else ""
    if layer is None:
        return "output" if all(one.attention is None for one in events[index:]) else ""
    if layers.is_layer(path):
        return "residual"
    if own and (is_first_since or path == events[own[-1]].path):
        return "out"
    return "feed-forward" if any(FEED_FORWARD.search(part) for part in path.split(".")) else ""


@dataclass(frozen=True, eq=False)
class RunComparison:
    """A comparison of two runs that should agree, module by module.

    Attributes:
        table: One row per pair of modules, in forward order: `module`, `other`, `shape`, `difference`.
        limit: The largest difference that counts as rounding.
        place: Where the runs first differ, with head and cell if both models' attention can be captured; None if they agree.

    Example:
        >>> import xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> comparison = xformer.compare_runs(model, model, [3, 7, 12, 9])
        >>> comparison.ok, comparison.first
        (True, None)
    """

    table: pd.DataFrame
    limit: float
    place: FaultLocation | None

    @property
    def ok(self) -> bool:
        """Whether no module differs by more than rounding."""
        return bool((self.table["difference"] <= self.limit).all())

    @property
    def first(self) -> str | None:
        """The first module whose output differs; None if all agree."""
        differing = self.table[self.table["difference"] > self.limit]
        return None if differing.empty else str(differing.iloc[0]["module"])


def compare_runs(
    first: nn.Module,
    second: nn.Module,
    inputs: Any,
    *,
    tokenizer: Any = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> RunComparison:
    """Compare two models that should be equivalent, module by module.

    Args:
        first: The original.
        second: The port, the copy, or the same model with another attention backend.
        inputs: A text, token ids, or a dict of arguments, for both models.
        tokenizer: The tokenizer, if `inputs` is a text.
        pairs: Paths of corresponding modules, the original's first; None pairs modules by order and output shape.

    Returns:
        The differences of all pairs, and where the models first differ by more than rounding.

    Raises:
        InputError: A given path is not a called module, or no modules could be paired.

    Example:
        >>> import copy, torch, xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> port = copy.deepcopy(model)
        >>> _ = port.get_submodule("encoder.blocks.1.ffn").bias_out.data.add_(0.1)
        >>> xformer.compare_runs(model, port, [3, 7, 12, 9]).first
        'encoder.blocks.1.ffn'
    """
    one, two = TokenModel.of(first, inputs, tokenizer), TokenModel.of(second, inputs, tokenizer)
    outputs, others = _module_outputs(one), _module_outputs(two)
    rows = [
        {"module": path, "other": path_two, "shape": tuple(value.shape), "difference": distance(value, value_two)}
        for (path, value), (path_two, value_two) in _paired(outputs, others, pairs)
    ]
    if not rows:
        raise InputError("No modules of these models could be paired by order and shape; give pairs=[('a', 'b')].")
    context = CheckContext(one)
    at = list(range(one.base.read.shape[1]))
    pair = Pair(one.base, two.base, at, second_model=two)
    limit = max(context.limit, 1e2 * one.eps)
    table = pd.DataFrame(rows)
    differs = bool((table["difference"] > limit).any())
    return RunComparison(table, limit, localise(context, pair) if differs else None)


def _module_outputs(model: TokenModel) -> list[tuple[str, Tensor]]:
    """Return the path and the output of every module, in the order of execution."""
    events, _ = watch_events(model, model.base)
    return [(event.path, event.values[0]) for event in events if event.kind == "output" and event.values]


def _paired(
    outputs: list[tuple[str, Tensor]], others: list[tuple[str, Tensor]], pairs: Sequence[tuple[str, str]] | None
) -> Iterator[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
    """Yield pairs of outputs: the given ones, or in order those of equal shape."""
    if pairs is not None:
        by_path, by_path_two = dict(outputs), dict(others)
        for path, path_two in pairs:
            if path not in by_path or path_two not in by_path_two:
                raise InputError(f"pairs must name modules that were called, like 'layers.0', got {(path, path_two)}.")
            yield (path, by_path[path]), (path_two, by_path_two[path_two])
        return
    start = 0
    for path, value in outputs:
        for index in range(start, len(others)):
            if others[index][1].shape == value.shape:
                yield (path, value), others[index]
                start = index + 1
                break
