"""Which part of a model carries the difference of two inputs: each part is given what it was in the other run.

    restored     what the measure becomes then, from 0 (as in this run) to 1 (as in the other): one run a part
                 (activation patching: Meng et al. 2022, arXiv:2202.05262, §2)
    attributed   the same to first order, gradient × difference, for all parts from one backward pass
                 (attribution patching: Nanda 2023; Syed et al. 2023, arXiv:2310.10348)

Parts are the stream at a position after a layer ("stream"), a head at all positions ("head"), and a group of neighbouring
neurons of a feed-forward layer at all positions ("neurons").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from xformer.analysis.many_at_once import Where, logits_with, replaced
from xformer.analysis.minimal_pair import MinimalPair, Token, stacks_of
from xformer.errors import InputError, UnavailableError
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.subjects.gradients import gradients

Part = Literal["stream", "head", "neurons"]
GROUPS = 8
"""Into so many groups the neurons of a layer are cut."""
AT_ONCE = 256
"""Tokens that go through the model together when cells are measured."""
FEWEST = 10
"""Of fewer cells that do anything no agreement is told."""
SOMETHING = 1e-3
"""A cell that moves the measure by less of the difference does nothing."""


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
    exact: bool = False,
    groups: int = GROUPS,
) -> pd.DataFrame:
    """What each part carries of the difference between two inputs: put from `source` into `reading`, all else left alone.

    The measure is the difference of the logits of two `answers` at an output; see `MinimalPair.of` for the usual ones. A row a
    part: stack, layer, where (the layer in words), what the part is, and attributed; with `exact` restored too, which takes a
    run a part. `layer` counts the points of the stream from 0, the embedding, and else the attention (or feed-forward) layers
    from 0. Of a head and of a group of neurons all positions are replaced; `groups` cut the neurons of a layer.

    Raises `InputError` where the two inputs are no pair, or their measures hardly differ.
    """
    pair = MinimalPair.of(reading, source, answers, position)
    found = cells(pair, part, groups)
    table = pd.DataFrame([cell.said for cell in found]).assign(attributed=attributed(pair, found))
    return table.assign(restored=restored(pair, found)) if exact else table


def attributed(pair: MinimalPair, of: Sequence[Cell]) -> list[float]:
    """What each cell carries to first order, as a share of the difference."""
    gap, names = pair.gap, list(dict.fromkeys(cell.name for cell in of))
    reading = pair.reading
    found = gradients(reading.subject, reading.example, pair.measure, names, reading.edits)
    there = activations(pair.source, names)
    moved = {name: found[name] * (there[name] - found.activations[name]) for name in names}
    return [moved[cell.name][0][cell.where].sum().item() / gap for cell in of]


def restored(pair: MinimalPair, of: Sequence[Cell]) -> list[float]:
    """What each cell carries, measured."""
    *_, last = restoring(pair, of)
    return last.shares


@dataclass(frozen=True, eq=False)
class Restored:
    """The shares of the cells that have been measured, the first ones."""

    shares: list[float]
    total: int

    @property
    def is_final(self) -> bool:
        return len(self.shares) == self.total


def restoring(pair: MinimalPair, of: Sequence[Cell]) -> Iterator[Restored]:
    """The same with a report every few cells. A cell that is equal in both runs needs none: it carries nothing."""
    gap, start = pair.gap, pair.start
    shares: list[float] = []
    n_rows = max(1, AT_ONCE // sum(len(pair.reading.tokens_of(stack)) for stack in stacks_of(pair.reading)))
    for name, together in groupby(of, key=lambda cell: cell.name):
        here, there = (activations(run, [name])[name] for run in (pair.reading, pair.source))
        alike = list(together)
        moves = [cell for cell in alike if not torch.equal(here[0][cell.where], there[0][cell.where])]
        found = {id(cell): 0.0 for cell in alike}
        for first in range(0, len(moves), n_rows):
            some = moves[first : first + n_rows]
            logits = logits_with(pair.reading, name, replaced(here, [cell.where for cell in some], there))
            values = [pair.measure(run[None]).item() for run in logits]
            found |= {id(cell): (value - start) / gap for cell, value in zip(some, values, strict=True)}
            if first + n_rows < len(moves):
                yield Restored([*shares, *(found[id(cell)] for cell in alike[: alike.index(some[-1]) + 1])], len(of))
        shares += found.values()
        yield Restored(list(shares), len(of))


def activations(reading: Reading, names: Sequence[str]) -> dict[str, Tensor]:
    """Some activations of a run, recorded again where it did not keep them."""
    if all(name in reading for name in names):
        return {name: reading[name] for name in names}
    trace = reading.subject.record(reading.example, edits=reading.edits, keep=names)
    return {name: trace[name] for name in names}


@dataclass(frozen=True)
class Agreement:
    """How far the quick values rank the parts as the exact ones do (Spearman's ρ), over n parts that do anything."""

    rho: float
    n: int


def agreement(table: pd.DataFrame) -> Agreement | None:
    """None where too few parts do anything, or one of the two does not tell them apart."""
    if "restored" not in table:
        return None
    two = table.filter(["attributed", "restored"])
    moving = two.loc[(two.abs() >= SOMETHING).any(axis=1)]
    rho = float(moving.corr("spearman", min_periods=FEWEST).to_numpy()[0, 1])
    return None if math.isnan(rho) else Agreement(rho, len(moving))
