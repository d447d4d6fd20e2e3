"""Activation patching: copy one activation of run A into run B, and measure how much of the difference it restores.

    LD = logit[A's answer] − logit[B's answer]         at the deciding position, in each run
    restored = (LD_patched − LD_B) / (LD_A − LD_B)     0: B unchanged, 1: as in A; it can be below 0 or above 1

(Meng et al. 2022, arXiv:2202.05262, §2; the normalisation is that of Wang et al. 2022, arXiv:2211.00593, §3.)

The answer of a run is its likeliest token, since no activation carries the chance of sampling. Copied one at a time: the
residual stream before the first and after each layer, each attention and feed-forward output, and each head's z, either at the
deciding position only or at all positions. B keeps its own edits; the copy is applied after them.

A copy is meaningful only if both models use the same basis: they have the same weights, or one was trained from the other.
Models of different seeds have no common basis, so nothing is copied between them:

    kinship = cos(W_A, W_B)      over all matrices, flattened and concatenated      (1: same weights, about 0: independent)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer import edits
from xformer.adapters import own_model
from xformer.adapters.adapter import gradients
from xformer.analysis.ablation import Where, logits_with_replacements, order_to_measure
from xformer.analysis.minimal_pairs import LEAST, MinimalPair, Token, stacks_of
from xformer.analysis.residual import deciding_position
from xformer.analysis.tables import TableSoFar
from xformer.arguments import Count, two
from xformer.edits import Edit, patch_from
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_indices
from xformer.layer_path import layer_title
from xformer.reading import Reading

KIN = 0.1
"""Kinship from which two models share a basis. For independently trained models it stayed within ±0.005 in every trial."""


@dataclass(frozen=True)
class Part:
    """An activation that can be copied, or one head of it."""

    name: str
    title: str
    component: str
    layer: int
    """From 1; 0 for the residual stream before the first layer."""
    head: int = 0
    """From 1; 0 if the part is not a head."""

    def patch(self, source: Reading, *, everywhere: bool) -> Edit:
        heads = (self.head - 1,) if self.head else None
        positions = None if everywhere else (deciding_position(source),)
        return patch_from(source.trace, self.name, heads=heads, positions=positions)


def parts(reading: Reading, *, everywhere: bool = False) -> list[Part]:
    """Return the parts of a run that can be copied, in the order in which they are computed.

    The encoder of an encoder-decoder has no deciding position: its parts are included only if all positions are copied.
    """
    is_encoder_decoder = reading.trace.target is not None
    found = []
    shape = reading.adapter.shape
    stacks = dict.fromkeys(site.stack for site in shape.layer_paths)
    for stack, (index, sites) in ((one, block) for one in stacks for block in shape.blocks(one).items()):
        if is_encoder_decoder and not everywhere and stack == "encoder":
            continue
        layer, where = index + 1, f"{stack if is_encoder_decoder else 'layer'} {index + 1}"
        if index == 0:
            found.append(
                Part(f"{stack}.0.resid_pre", f"{stack} embedding" if is_encoder_decoder else "embedding", "residual", 0)
            )
        for site in sites:
            if site.is_attention:
                cross = " · cross" if site.is_cross else ""
                found += [
                    Part(f"{site.path}.z", f"{where}{cross} · head {head}", "head", layer, head)
                    for head in range(1, 1 + reading[f"{site.path}.z"].shape[1])
                ]
            found.append(Part(f"{site.path}.out", f"{where} · {site.kind_label}", site.kind_label, layer))
        found.append(Part(f"{stack}.{index}.resid_post", f"{where} · residual", "residual", layer))
    return found


def patching(readings: Sequence[Reading], *, everywhere: bool = False) -> pd.DataFrame:
    """Copy each part of the first run into the second and vice versa, and measure how much of the difference it restores.

    The measure LD is the logit of the source's prediction minus that of the other run's, at the deciding position (the last
    target position); restored = (LD_patched − LD_into) / (LD_source − LD_into). Each row takes one forward pass.

    Args:
        readings: The two runs to compare, for example the same step of two variants of a model.
        everywhere: Copy parts at every position instead of the deciding one only.

    Returns:
        A row per direction and part, sorted within each direction by |restored|, largest first: source and into (names of the
        models), part (its title), component, layer (from 1; 0 for the embedding), head (from 1; 0 if the part is not a head),
        restored (0: unchanged, 1: as in the source), difference (LD_patched, in logits), says (the token that the patched run
        predicts) and turns (whether that is the source's prediction).

    Raises:
        InputError: If the two runs cannot be patched into one another, or predict the same token.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> readings = [run[1] for run in runs]  # at the second step
        >>> table = xformer.analysis.patching(readings)
        >>> list(table.columns)
        ['source', 'into', 'part', 'component', 'layer', 'head', 'restored', 'difference', 'says', 'turns']
    """
    *_, last = copying(readings, everywhere=everywhere)
    return last.table


def copying(readings: Sequence[Reading], *, everywhere: bool = False) -> Iterator[TableSoFar]:
    """Compute `patching` with a report before each copy; only the last report is sorted."""
    one, other = two("readings", readings)
    work = []
    for source, into in ((one, other), (other, one)):
        if reason := patching_incompatibility(source, into):
            raise InputError(reason)
        work += [(source, into, part) for part in parts(source, everywhere=everywhere)]
    rows: list[dict[str, Any]] = []
    for source, into, part in work:
        yield TableSoFar(pd.DataFrame(rows), len(rows), len(work))
        rows.append(_row(source, into, part, everywhere))
    order = sorted(range(len(work)), key=lambda at: (work[at][0] is other, -abs(rows[at]["restored"])))
    yield TableSoFar(pd.DataFrame([rows[at] for at in order]), len(work), len(work))


def _row(source: Reading, into: Reading, part: Part, everywhere: bool) -> dict[str, Any]:
    """Copy one part, and measure the difference of the two answers again."""
    a, b = source.predicted[-1], into.predicted[-1]
    goal, start = (_difference(deciding_logits(run), a, b) for run in (source, into))  # goal ≥ 0 ≥ start
    logits = patched_logits(into, [part.patch(source, everywhere=everywhere)])
    difference, says = _difference(logits, a, b), int(logits.argmax())
    names = {"source": source.adapter.name, "into": into.adapter.name, "part": part.title}
    where = {"component": part.component, "layer": part.layer, "head": part.head}
    found = {"restored": (difference - start) / (goal - start), "difference": difference}
    return names | where | found | {"says": into.adapter.token_labels[says], "turns": says == a}


@torch.no_grad()
def kinship(one: nn.Module, other: nn.Module) -> float:
    """Return the cosine similarity between all matrices of two models; 0 if their shapes differ.

    Vectors are left out, because the gains of norms start at 1 in every model.
    """
    matrices = [[weight for weight in model.parameters() if weight.dim() > 1] for model in (one, other)]
    if len({tuple(weight.shape for weight in weights) for weights in matrices}) > 1:
        return 0.0
    first, second = (torch.cat([weight.flatten() for weight in weights]).double() for weights in matrices)
    return F.cosine_similarity(first, second, dim=0).item()


def deciding_logits(reading: Reading) -> Float[Tensor, " vocab"]:
    """Return the logits at a run's deciding position, the last of its target positions."""
    return reading.logits[0, deciding_position(reading)]


def patched_logits(into: Reading, patches: Sequence[Edit]) -> Float[Tensor, " vocab"]:
    """Return `deciding_logits` of a run to which `patches` are applied after its own edits."""
    run = into.adapter.record(into.example, edits=[*into.edits, *patches], keep=("logits",))
    return run.logits[0, deciding_position(into)]


def patching_incompatibility(source: Reading, into: Reading) -> str | None:
    """Return the reason why nothing can be copied from one run into another, in one sentence; None if it can be."""
    names, runs = (source.adapter.name, into.adapter.name), (source, into)
    labels = source.adapter.token_labels
    shapes = [{part.name: run[part.name].shape for part in parts(run, everywhere=True)} for run in runs]
    for what, is_equal in (
        ("tokens", labels == into.adapter.token_labels),
        ("activations", shapes[0] == shapes[1]),
        ("deciding positions", deciding_position(source) == deciding_position(into)),
    ):
        if not is_equal:
            return (
                f"{names[0]} and {names[1]} have different {what}, so nothing can be copied; compare the same step of two "
                "models with the same task, architecture and size, on inputs of equal length."
            )
    if (kin := kinship(own_model(source.adapter), own_model(into.adapter))) < KIN:
        return (
            f"{names[0]} and {names[1]} were trained independently: their weights have a cosine of {kin:+.2f}, so they share "
            "no basis and a copy means nothing; compare two training steps of one run, or one model with different changes."
        )
    a, b = source.predicted[-1], into.predicted[-1]
    if a == b:
        return f"Both runs predict {labels[a]} here; choose a step at which they differ."
    apart = [_difference(deciding_logits(run), a, b) for run in runs]
    if abs(apart[0] - apart[1]) < LEAST:
        return (
            f"{labels[a]} is about as far ahead of {labels[b]} in both runs: {apart[0]:+.2f} and {apart[1]:+.2f} logits, so "
            "there is no difference to restore."
        )
    return None


def _difference(logits: Float[Tensor, " vocab"], a: int, b: int) -> float:
    return logits[a].item() - logits[b].item()


PartKind = Literal["stream", "head", "neurons"]

GROUPS = 8
"""Number of groups into which the neurons of a layer are divided."""

POINTS = (0.0, 0.25, 0.5)
"""Points between the two inputs at which the estimate takes its gradients: 0 is this run, 1 the other one. With a single part
patched the model stays closer to this run: in trials these three points ranked parts better than points all along the path."""


@dataclass(frozen=True)
class PatchedCell:
    """A part of an activation to replace, with its columns of the table."""

    name: str
    where: Where
    """The index of the part in the activation, without the batch axis."""
    columns: dict[str, Any]


def cells(pair: MinimalPair, part: PartKind, groups: int = GROUPS) -> list[PatchedCell]:
    """Return all parts of a kind, in the order in which they are computed.

    Raises `InputError` for an unknown kind and `UnavailableError` if the model has no such parts.
    """
    if part not in get_args(PartKind):
        raise InputError(f"part is one of {', '.join(get_args(PartKind))}, got {part!r}.")
    if groups < 1:
        raise InputError(f"groups must be at least 1, got {groups}; for example {GROUPS}.")
    found = list({"stream": _stream, "head": _heads, "neurons": _neurons}[part](pair, groups))
    if not found:
        what = {"stream": "residual stream", "head": "heads"}.get(part, part)
        raise UnavailableError(f"{pair.reading.adapter.name} has no {what} that could be patched.")
    return found


def _stream(pair: MinimalPair, _: int) -> Iterator[PatchedCell]:
    for stack in stacks_of(pair.reading):
        n_layers = 1 + max(pair.reading.adapter.shape.blocks(stack))
        tokens = list(zip(pair.reading.tokens_of(stack), pair.source.tokens_of(stack), strict=True))
        prefix = f"{stack} " if pair.reading.is_encoder_decoder else ""
        for layer in range(n_layers + 1):
            name = f"{stack}.{layer - 1}.resid_post" if layer else f"{stack}.0.resid_pre"
            if name not in pair.reading:
                continue
            title = f"{prefix or 'layer '}{layer}" if layer else f"{prefix}embedding"
            for position, (token, other) in enumerate(tokens):
                columns = {"position": position, "token": token, "source_token": other}
                yield PatchedCell(name, (position,), {"stack": stack, "layer": layer, "where": title, **columns})


def _heads(pair: MinimalPair, _: int) -> Iterator[PatchedCell]:
    for layer, site in enumerate(pair.reading.attention):
        title = layer_title(site.path, is_encoder_decoder=pair.reading.is_encoder_decoder)
        for head in range(pair.reading.adapter.shape.heads[site.path]):
            columns = {"stack": site.stack, "layer": layer, "where": title, "head": head}
            yield PatchedCell(f"{site.path}.z", (head,), columns)


def _neurons(pair: MinimalPair, groups: int) -> Iterator[PatchedCell]:
    for layer, site in enumerate(pair.reading.feed_forward):
        n, name = pair.reading.adapter.shape.neurons.get(site.path, 0), f"{site.path}.post"
        if not n or name not in pair.reading:
            continue
        title = layer_title(site.path, is_encoder_decoder=pair.reading.is_encoder_decoder)
        k = min(groups, n)
        for group in range(k):
            first, end = group * n // k, (group + 1) * n // k
            columns = {"group": group, "first_neuron": first, "last_neuron": end - 1}
            where = (Ellipsis, slice(first, end))
            yield PatchedCell(name, where, {"stack": site.stack, "layer": layer, "where": title, **columns})


def patching_map(
    reading: Reading,
    source: Reading,
    *,
    part: PartKind = "stream",
    answers: Sequence[Token] | None = None,
    position: int | None = None,
    exact: bool | Sequence[int] = False,
    groups: Count = GROUPS,
) -> pd.DataFrame:
    """Measure how much of the difference between two inputs each part carries, by patching it from `source` into `reading`.

    The measure is the difference of the logits of two `answers` at one output. A part's share is how far patching it moves the
    measure from `reading`'s value (0) to `source`'s (1).

    Args:
        reading: The run that is patched.
        source: The run on the other input, which has the same length.
        part: What to patch: "stream" (the residual stream after a layer, at one position), "head" (the output of a head, at all
            positions) or "neurons" (a group of neighbouring neurons of a layer, at all positions).
        answers: The two tokens, by id or label; by default each run's likeliest token.
        position: The output, from 0, at which the answers are compared; by default the one at which the runs diverge.
        exact: True to also measure each part with a run of its own, or the row numbers of the parts to measure; False only
            estimates the shares from gradients.
        groups: The number of groups into which the neurons of a layer are divided.

    Returns:
        A row per part: stack, layer, where (the layer's title), the columns that identify the part, and estimated (a share).
        The stream has position, token and source_token; a head has head; neurons have group, first_neuron and last_neuron.
        With `exact` there is also measured, NaN for parts that were not. `layer` counts from 0: for the stream, 0 is the
        embedding and n is after the n-th layer; for heads and neurons it counts attention or feed-forward layers.

    Raises:
        InputError: If the two inputs do not form a pair, their measures hardly differ, or an argument is invalid.
        UnavailableError: If the model has no such parts.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> other = xformer.read("checkpoints/reverse", "3 7 5 9 1")
        >>> table = xformer.analysis.patching_map(reading, other)
        >>> list(table.columns)
        ['stack', 'layer', 'where', 'position', 'token', 'source_token', 'estimated']
    """
    pair = MinimalPair.of(reading, source, answers, position)
    found = cells(pair, part, groups)
    table = pd.DataFrame([cell.columns for cell in found]).assign(estimated=estimated(pair, found))
    if exact is False:
        return table
    chosen = list(range(len(found)) if exact is True else exact)
    check_indices("exact", chosen, len(found))
    values = measured(pair, [found[at] for at in chosen])
    return table.assign(measured=pd.Series(values, index=chosen, dtype=float))


def estimated(pair: MinimalPair, selection: Sequence[PatchedCell]) -> list[float]:
    """Estimate the share that each cell carries: the mean gradient over `POINTS` × the difference of its activations."""
    names = list(dict.fromkeys(cell.name for cell in selection))
    here, there = (activations(run, names) for run in (pair.reading, pair.source))
    total = {name: torch.zeros_like(value) for name, value in here.items()}
    ends = [f"{stack}.0.resid_pre" for stack in stacks_of(pair.reading)]
    starts, goals = (activations(run, ends) for run in (pair.reading, pair.source))
    points = POINTS if starts else (0.0,)
    for point in points:
        mixed = [edits.replace(name, torch.lerp(starts[name], goals[name], point)) for name in starts if point]
        changes = [*pair.reading.edits, *mixed]
        found = gradients(pair.reading.adapter, pair.reading.example, pair.measure, names, changes)
        for name in names:
            total[name] += found[name] / len(points)
    gap, moved = pair.gap, {name: total[name] * (there[name] - here[name]) for name in names}
    return [moved[cell.name][0][cell.where].sum().item() / gap for cell in selection]


def measured(pair: MinimalPair, selection: Sequence[PatchedCell]) -> list[float]:
    """Measure the share of the difference that each cell carries, with one run each."""
    *_, last = measuring(pair, selection)
    return [last.shares[at] for at in range(len(selection))]


@dataclass(frozen=True, eq=False)
class Measured:
    """The shares known so far, by the number of the cell, and the numbers of runs done and planned."""

    shares: dict[int, float]
    done: int
    to_do: int

    @property
    def is_final(self) -> bool:
        return self.done == self.to_do


def measuring(
    pair: MinimalPair, selection: Sequence[PatchedCell], estimates: Sequence[float] | None = None
) -> Iterator[Measured]:
    """Measure cells, with a report before the first one and after each.

    A cell that is equal in both runs carries nothing and needs no run. With `estimates`, cells are measured in the order of
    `order_to_measure`.
    """
    gap, start = pair.gap, pair.start
    names = list(dict.fromkeys(cell.name for cell in selection))
    here, there = (activations(run, names) for run in (pair.reading, pair.source))
    moved = [not torch.equal(here[cell.name][0][cell.where], there[cell.name][0][cell.where]) for cell in selection]
    shares = {at: 0.0 for at in range(len(selection)) if not moved[at]}
    left = [at for at in range(len(selection)) if moved[at]]
    if estimates is not None:
        left = [left[at] for at in order_to_measure([estimates[at] for at in left])]
    yield Measured(dict(shares), 0, len(left))
    runs = logits_with_replacements(pair.reading, [(selection[at].name, selection[at].where) for at in left], there)
    for done, (at, logits) in enumerate(zip(left, runs, strict=True), start=1):
        shares[at] = (pair.measure(logits[None]).item() - start) / gap
        yield Measured(dict(shares), done, len(left))


def activations(reading: Reading, names: Sequence[str]) -> dict[str, Tensor]:
    """Return those of the activations that the model has; they are recorded again if the run did not keep all of them."""
    if all(name in reading for name in names):
        return {name: reading[name] for name in names}
    trace = reading.adapter.record(reading.example, edits=reading.edits, keep=names)
    return {name: trace[name] for name in names if name in trace.activations}
