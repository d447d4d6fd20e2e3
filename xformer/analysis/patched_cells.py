"""Which part of a model carries the difference of two inputs: each part is given what it was in the other run.

    measured     what the measure becomes then, from 0 (as in this run) to 1 (as in the other): one run for each part
                 (activation patching: Meng et al. 2022, arXiv:2202.05262, §2)
    estimated    mean gradient × difference, for all parts from a few passes back. The gradient is averaged over inputs between
                 the two (integrated gradients: Sundararajan et al. 2017, arXiv:1703.01365; EAP-IG: Hanna et al. 2024,
                 arXiv:2403.17806, §3): where a softmax is saturated, that of one run is zero.

Parts are the stream at a position after a layer ("stream"), a head at all positions ("head"), and a group of neighbouring
neurons of a feed-forward layer at all positions ("neurons").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from xformer import edits
from xformer.analysis.ablation import Where, logits_with, order_to_measure, rows_at_once
from xformer.analysis.minimal_pairs import MinimalPair, Token, stacks_of
from xformer.errors import InputError, UnavailableError
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.subjects.gradients import gradients

Part = Literal["stream", "head", "neurons"]
GROUPS = 8
"""The neurons of a layer are cut into so many groups."""
POINTS = (0.0, 0.25, 0.5)
"""Where between the two inputs the gradients of the estimate are taken: 0 is this run, 1 the other. With one part patched the
model stays nearer to this run, and in trials these three ranked the parts better than points along the whole way."""


@dataclass(frozen=True)
class Cell:
    """A part of an activation: what is replaced in it, and what a table says of it."""

    name: str
    where: Where
    """The index of the part in the activation, behind that of the batch."""
    said: dict[str, Any]


def cells(pair: MinimalPair, part: Part, groups: int = GROUPS) -> list[Cell]:
    """All parts of a kind, in the order in which they are computed. Raises `InputError` for a kind that is none.

    Raises `UnavailableError` where the model has none.
    """
    if part not in get_args(Part):
        raise InputError(f"part is one of {', '.join(get_args(Part))}, got {part!r}.")
    if groups < 1:
        raise InputError(f"groups must be at least 1, got {groups}; for example {GROUPS}.")
    found = list({"stream": _stream, "head": _heads, "neurons": _neurons}[part](pair, groups))
    if not found:
        what = {"stream": "residual stream", "head": "heads", "neurons": "neurons"}[part]
        raise UnavailableError(f"{pair.reading.subject.name} has no {what} that could be patched.")
    return found


def _stream(pair: MinimalPair, _: int) -> Iterator[Cell]:
    for stack in stacks_of(pair.reading):
        n_layers = 1 + max(site.layer for site in pair.reading.subject.shape.sites if site.stack == stack)
        tokens = list(zip(pair.reading.tokens_of(stack), pair.source.tokens_of(stack), strict=True))
        prefix = f"{stack} " if pair.reading.is_pair else ""
        for layer in range(n_layers + 1):
            name = f"{stack}.{layer - 1}.resid_post" if layer else f"{stack}.0.resid_pre"
            if name not in pair.reading:
                continue
            title = f"{prefix or 'layer '}{layer}" if layer else f"{prefix}embedding"
            for position, (token, other) in enumerate(tokens):
                said = {"position": position, "token": token, "source_token": other}
                yield Cell(name, (position,), {"stack": stack, "layer": layer, "where": title, **said})


def _heads(pair: MinimalPair, _: int) -> Iterator[Cell]:
    for layer, site in enumerate(pair.reading.attention):
        title = layer_title(site.path, is_pair=pair.reading.is_pair)
        for head in range(pair.reading.subject.shape.heads[site.path]):
            said = {"stack": site.stack, "layer": layer, "where": title, "head": head}
            yield Cell(f"{site.path}.z", (head,), said)


def _neurons(pair: MinimalPair, groups: int) -> Iterator[Cell]:
    for layer, site in enumerate(pair.reading.feed_forward):
        n, name = pair.reading.subject.shape.neurons.get(site.path, 0), f"{site.path}.post"
        if not n or name not in pair.reading:
            continue
        title = layer_title(site.path, is_pair=pair.reading.is_pair)
        k = min(groups, n)
        for group in range(k):
            first, end = group * n // k, (group + 1) * n // k
            said = {"group": group, "first_neuron": first, "last_neuron": end - 1}
            where = (Ellipsis, slice(first, end))
            yield Cell(name, where, {"stack": site.stack, "layer": layer, "where": title, **said})


def patching_map(
    reading: Reading,
    source: Reading,
    *,
    part: Part = "stream",
    answers: Sequence[Token] | None = None,
    position: int | None = None,
    exact: bool | Sequence[int] = False,
    groups: int = GROUPS,
) -> pd.DataFrame:
    """How much of the difference between two inputs each part carries: put from `source` into `reading`, all else left alone.

    The measure is the difference of the logits of two `answers` at an output; see `MinimalPair.of` for the usual ones.

    Args:
        reading: The run that is patched.
        source: The run of the other input, of equal length.
        part: What a row is: the stream at a position after a layer, a head, or a group of neighbouring neurons of a layer. Of
            a head and of neurons all positions are patched.
        answers: The two tokens, by number or as they are written.
        position: The output at which the answers are compared.
        exact: Whether the parts are measured too, or the numbers of those that are.
        groups: The number of groups that the neurons of a layer are cut into.

    Returns:
        A row for each part: stack, layer, where (the layer in words), what the part is, and estimated; with `exact` measured
        too, NaN where it is not. `layer` counts the points of the stream from 0, the embedding, and else the attention (or
        feed-forward) layers from 0.

    Raises:
        InputError: If the two inputs are no pair, or their measures hardly differ.
    """
    pair = MinimalPair.of(reading, source, answers, position)
    found = cells(pair, part, groups)
    table = pd.DataFrame([cell.said for cell in found]).assign(estimated=estimated(pair, found))
    if exact is False:
        return table
    chosen = list(range(len(found)) if exact is True else exact)
    values = measured(pair, [found[at] for at in chosen])
    return table.assign(measured=pd.Series(values, index=chosen, dtype=float))


def estimated(pair: MinimalPair, of: Sequence[Cell]) -> list[float]:
    """What each cell carries, as a share of the difference: the mean gradient over `POINTS`, times the difference."""
    names = list(dict.fromkeys(cell.name for cell in of))
    here, there = (activations(run, names) for run in (pair.reading, pair.source))
    total = {name: torch.zeros_like(value) for name, value in here.items()}
    ends = [f"{stack}.0.resid_pre" for stack in stacks_of(pair.reading)]
    starts, goals = (activations(run, ends) for run in (pair.reading, pair.source))
    points = POINTS if starts else (0.0,)
    for point in points:
        mixed = [edits.replace(name, torch.lerp(starts[name], goals[name], point)) for name in starts if point]
        changes = [*pair.reading.edits, *mixed]
        found = gradients(pair.reading.subject, pair.reading.example, pair.measure, names, changes)
        for name in names:
            total[name] += found[name] / len(points)
    gap, moved = pair.gap, {name: total[name] * (there[name] - here[name]) for name in names}
    return [moved[cell.name][0][cell.where].sum().item() / gap for cell in of]


def measured(pair: MinimalPair, of: Sequence[Cell]) -> list[float]:
    """What each cell carries, measured by a run for each."""
    *_, last = measuring(pair, of)
    return [last.shares[at] for at in range(len(of))]


@dataclass(frozen=True, eq=False)
class Measured:
    """The cells that have been measured so far."""

    shares: dict[int, float]
    """By the number of the cell."""
    total: int
    """The number of cells."""
    n_equal: int
    """The number of cells that are equal in both runs: they carry nothing and need no run."""

    @property
    def done(self) -> int:
        """The number of cells for which the model ran."""
        return len(self.shares) - self.n_equal

    @property
    def to_do(self) -> int:
        """The number of cells for which it runs in all."""
        return self.total - self.n_equal

    @property
    def is_final(self) -> bool:
        return len(self.shares) == self.total


def measuring(pair: MinimalPair, of: Sequence[Cell], estimates: Sequence[float] | None = None) -> Iterator[Measured]:
    """Measure cells, with a report before the first run and after each; a run measures several.

    With `estimates` the cells are measured in the order of `order_to_measure`.
    """
    gap, start = pair.gap, pair.start
    names = list(dict.fromkeys(cell.name for cell in of))
    here, there = (activations(run, names) for run in (pair.reading, pair.source))
    shares = {
        at: 0.0
        for at, cell in enumerate(of)
        if torch.equal(here[cell.name][0][cell.where], there[cell.name][0][cell.where])
    }
    n_equal = len(shares)
    yield Measured(dict(shares), len(of), n_equal)
    left = [at for at in range(len(of)) if at not in shares]
    if estimates is not None:
        left = [left[at] for at in order_to_measure([estimates[at] for at in left])]
    n_rows = rows_at_once(pair.reading)
    for begin in range(0, len(left), n_rows):
        batch = left[begin : begin + n_rows]
        runs = logits_with(pair.reading, [(of[at].name, of[at].where) for at in batch], there)
        shares |= {
            at: (pair.measure(logits[None]).item() - start) / gap for at, logits in zip(batch, runs, strict=True)
        }
        yield Measured(dict(shares), len(of), n_equal)


def activations(reading: Reading, names: Sequence[str]) -> dict[str, Tensor]:
    """Those of some activations that the model has, recorded again where the run did not keep them."""
    if all(name in reading for name in names):
        return {name: reading[name] for name in names}
    trace = reading.subject.record(reading.example, edits=reading.edits, keep=names)
    return {name: trace[name] for name in names if name in trace.activations}
