"""What carries a difference: one activation of model A's run is copied into B's, and B's answer is read again.

    LD = logit[A's answer] − logit[B's answer]         at the deciding position, in each run
    restored = (LD_patched − LD_B) / (LD_A − LD_B)     0: B unmoved, 1: as in A; beyond both ends is possible

(Meng et al. 2022, arXiv:2202.05262, §2; the normalisation is that of Wang et al. 2022, arXiv:2211.00593, §3.)

An answer is the likeliest token of the run: what is drawn by chance no activation carries. What is copied, one row each: the
stream after each layer (and before the first), each attention and feed-forward output, and each head's z; at the deciding
position alone, or at all positions. B's own edits stay, and the copy comes after them.

A copy means something only where both models write in one basis: the same weights, or some that were trained from one another.
Models of different seeds share none, so nothing is copied between them:

    kinship = cos(W_A, W_B)      over all matrices, each flattened      (1: the same weights, about 0: trained apart)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.analysis.minimal_pairs import LEAST
from xformer.edits import AnyEdit, patch_from
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.subjects import own_model

KIN = 0.1
"""From this kinship on two models share a basis. Of models trained apart it stayed within ±0.005 in every trial."""


@dataclass(frozen=True)
class Part:
    """Something that can be copied: an activation, whole or one head of it."""

    name: str
    title: str
    component: str
    layer: int
    """From 1; 0 is what comes before the first."""
    head: int = 0
    """From 1; 0 for none."""

    def patch(self, source: Reading, *, everywhere: bool) -> AnyEdit:
        return patch_from(
            source.trace,
            self.name,
            heads=(self.head - 1,) if self.head else None,
            positions=None if everywhere else (source.asked[-1],),
        )


def parts(reading: Reading, *, everywhere: bool = False) -> list[Part]:
    """What can be copied out of a run, in the order in which it is computed.

    An encoder-decoder's encoder has no deciding position: it counts only where all positions are copied.
    """
    is_pair = reading.trace.target is not None
    found = []
    for (stack, index), sites in groupby(reading.subject.shape.sites, key=lambda site: (site.stack, site.layer)):
        if is_pair and not everywhere and stack == "encoder":
            continue
        layer, where = index + 1, f"{stack if is_pair else 'layer'} {index + 1}"
        if index == 0:
            found.append(Part(f"{stack}.0.resid_pre", f"{stack} embedding" if is_pair else "embedding", "residual", 0))
        for site in sites:
            if site.is_attention:
                cross = " · cross" if site.is_cross else ""
                found += [
                    Part(f"{site.path}.z", f"{where}{cross} · head {head}", "head", layer, head)
                    for head in range(1, 1 + reading[f"{site.path}.z"].shape[1])
                ]
            found.append(Part(f"{site.path}.out", f"{where} · {site.does}", site.does, layer))
        found.append(Part(f"{stack}.{index}.resid_post", f"{where} · residual", "residual", layer))
    return found


@dataclass(frozen=True, eq=False)
class Copied:
    """How many of the copies have been made; the frame is there with the last one."""

    done: int
    total: int
    frame: pd.DataFrame | None = None

    @property
    def is_final(self) -> bool:
        return self.frame is not None


def patching(readings: Sequence[Reading], *, everywhere: bool = False) -> pd.DataFrame:
    """Copy each part of the first run into the second, then of the second into the first, one forward pass a row.

    Columns: source, into, part, component, layer (from 1), head (from 1; 0 none), restored, difference (LD_patched), says,
    turns (whether the patched run says `source`'s answer). Each direction is sorted by how much a part carries.

    Raises `InputError` when the two cannot be patched, or agree so that there is nothing to carry.
    """
    *_, last = copying(readings, everywhere=everywhere)
    assert last.frame is not None
    return last.frame


def copying(readings: Sequence[Reading], *, everywhere: bool = False) -> Iterator[Copied]:
    """The same with a report after each copy; the last one has the frame."""
    one, other = readings
    directions = [(one, other), (other, one)]
    for source, into in directions:
        if reason := why_unpatchable(source, into):
            raise InputError(reason)
    work = [(source, into, part) for source, into in directions for part in parts(source, everywhere=everywhere)]
    rows = []
    for source, into, part in work:
        rows.append(_row(source, into, part, everywhere))
        if len(rows) < len(work):
            yield Copied(len(rows), len(work))
    frame = pd.DataFrame(rows).assign(
        way=[source is other for source, _, _ in work], size=lambda it: -it["restored"].abs()
    )
    frame = frame.sort_values(["way", "size"], kind="stable", ignore_index=True).drop(columns=["way", "size"])
    yield Copied(len(work), len(work), frame)


def _row(source: Reading, into: Reading, part: Part, everywhere: bool) -> dict[str, object]:
    """What one copy does."""
    a, b = source.predicted[-1], into.predicted[-1]
    goal, start = (
        _difference(deciding_logits(source), a, b),
        _difference(deciding_logits(into), a, b),
    )  # goal ≥ 0 ≥ start
    logits = patched_logits(into, [part.patch(source, everywhere=everywhere)])
    difference, says = _difference(logits, a, b), int(logits.argmax())
    return {
        "source": source.subject.name,
        "into": into.subject.name,
        "part": part.title,
        "component": part.component,
        "layer": part.layer,
        "head": part.head,
        "restored": (difference - start) / (goal - start),
        "difference": difference,
        "says": into.subject.labels[says],
        "turns": says == a,
    }


@torch.no_grad()
def kinship(one: nn.Module, other: nn.Module) -> float:
    """The cosine of the angle between the matrices of two models; 0 where their shapes differ."""
    if one is other:
        return 1.0
    mine, theirs = _matrices(one), _matrices(other)
    if [x.shape for x in mine] != [y.shape for y in theirs]:
        return 0.0
    product = sum((x * y).sum().item() for x, y in zip(mine, theirs, strict=True))
    squares = [sum(x.square().sum().item() for x in matrices) for matrices in (mine, theirs)]
    return product / (squares[0] * squares[1]) ** 0.5 if all(squares) else 0.0


def _matrices(model: nn.Module) -> list[Tensor]:
    """Vectors are left out: the gains of norms begin at 1 in every model."""
    return [parameter.double() for parameter in model.parameters() if parameter.dim() > 1]


def deciding_logits(reading: Reading) -> Float[Tensor, " vocab"]:
    """What a run says at its deciding position: the last output that it asks for."""
    return reading.logits[0, reading.asked[-1]]


def patched_logits(into: Reading, patches: Sequence[AnyEdit]) -> Float[Tensor, " vocab"]:
    """The same with `patches` put in, after the run's own edits."""
    run = into.subject.record(into.example, edits=[*into.edits, *patches], keep=("logits",))
    return run.logits[0, into.asked[-1]]


def why_unpatchable(source: Reading, into: Reading) -> str | None:
    """Why nothing can be copied from one run into another, in one sentence; None where it can."""
    names, runs = (source.subject.name, into.subject.name), (source, into)
    labels = source.subject.labels
    if labels != into.subject.labels:
        return f"{names[0]} and {names[1]} have different tokens; compare two models of one task and architecture."
    if source.asked[-1] != into.asked[-1]:
        return (
            f"{names[0]} decides at position {source.asked[-1]} and {names[1]} at {into.asked[-1]}; "
            "compare the same step on inputs of one length."
        )
    shapes = [{part.name: tuple(run[part.name].shape) for part in parts(run, everywhere=True)} for run in runs]
    for name in shapes[0] | shapes[1]:
        here, there = shapes[0].get(name), shapes[1].get(name)
        if here != there:
            said = [f"{list(shape)}" if shape else "none" for shape in (here, there)]
            return (
                f"{name} is {said[0]} in {names[0]} and {said[1]} in {names[1]}, so it cannot be copied; "
                "compare two models of the same architecture and sizes on inputs of one length."
            )
    if (kin := kinship(own_model(source.subject), own_model(into.subject))) < KIN:
        return (
            f"{names[0]} and {names[1]} were trained apart: their weights have a cosine of {kin:+.2f}, so what a direction "
            "means in one it does not mean in the other, and a copy would say nothing; compare two steps of one run, or one "
            "model under different changes."
        )
    a, b = source.predicted[-1], into.predicted[-1]
    if a == b:
        return (
            f"Both runs say {labels[a]} here, so no activation carries a difference; choose a step at which they part."
        )
    apart = [_difference(deciding_logits(run), a, b) for run in runs]
    if abs(apart[0] - apart[1]) < LEAST:
        return (
            f"{labels[a]} is about as far ahead of {labels[b]} in both runs: {apart[0]:+.2f} and {apart[1]:+.2f} logits, too "
            "near to say what part of the difference a copy restores."
        )
    return None


def _difference(logits: Float[Tensor, " vocab"], a: int, b: int) -> float:
    return logits[a].item() - logits[b].item()
