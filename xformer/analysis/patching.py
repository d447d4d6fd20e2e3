"""What carries a difference: one activation of player A's run is copied into B's, and B's answer is read again.

    LD = logit[A's answer] − logit[B's answer]         at the deciding position, in each run
    restored = (LD_patched − LD_B) / (LD_A − LD_B)     0: B unmoved, 1: as in A; beyond both ends is possible

(Meng et al. 2022, arXiv:2202.05262, §2; the normalisation is that of Wang et al. 2022, arXiv:2211.00593, §3.)

An answer is the likeliest token of the run: what dice add to it no activation carries. What is copied, one row each: the
stream after each layer (and before the first), each attention and feed-forward output, and each head's z; at the deciding
position alone, or at all positions. B's own edits stay, and the copy comes after them.

A copy means something only where both models write in one basis: the same weights, or some that were trained from one another.
Models of different seeds share none, so nothing is copied between them:

    kinship = cos(W_A, W_B)      over all matrices, each flattened      (1: the same weights, about 0: trained apart)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.deciding import Moment
from xformer.edits import AnyEdit, patch_from
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.site import Site
from xformer.trace import record

_PARTS = re.compile(
    r"(?P<stack>encoder|decoder)\.(?P<layer>\d+)\.(?P<what>resid_pre|resid_post|(?:attn|self_attn|cross_attn|ffn)\.(?P<end>z|out))"
)
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
    head: int
    """From 1; 0 for none."""

    def patch(self, source: Moment, *, everywhere: bool) -> AnyEdit:
        return patch_from(
            source.trace,
            self.name,
            heads=(self.head - 1,) if self.head else None,
            positions=None if everywhere else (source.position,),
        )


def parts(at: Moment, *, everywhere: bool = False) -> list[Part]:
    """What can be copied out of a run, in the order in which it is computed.

    An encoder-decoder's encoder has no deciding position: it counts only where all positions are copied.
    """
    is_pair = at.trace.target is not None
    found = []
    for name in at.trace:
        match = _PARTS.fullmatch(name)
        if match is None or (is_pair and not everywhere and match["stack"] == "encoder"):
            continue
        layer = int(match["layer"]) + 1
        where = f"{match['stack']} {layer}" if is_pair else f"layer {layer}"
        if match["what"] == "resid_pre":
            if layer == 1:
                title = f"{match['stack']} embedding" if is_pair else "embedding"
                found.append(Part(name, title, "residual", 0, 0))
        elif match["what"] == "resid_post":
            found.append(Part(name, f"{where} · residual", "residual", layer, 0))
        elif match["end"] == "out":
            does = Site.parse(name).does
            found.append(Part(name, f"{where} · {does}", does, layer, 0))
        else:
            cross = " · cross" if Site.parse(name).is_cross else ""
            found += [
                Part(name, f"{where}{cross} · head {head + 1}", "head", layer, head + 1)
                for head in range(at.trace[name].shape[1])
            ]
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


def patching(source: Moment, into: Moment, *, everywhere: bool = False) -> pd.DataFrame:
    """Copy each part of `source`'s run into that of `into`, one forward pass a row; sorted by how much each carries.

    Columns: source, into, part, component, layer (from 1), head (from 1; 0 none), restored, difference (LD_patched), says,
    turns (whether the patched run says `source`'s answer).

    Raises `InputError` when the two cannot be patched, or agree so that there is nothing to carry.
    """
    return _last(copying([(source, into)], everywhere=everywhere))


def patching_both_ways(one: Moment, other: Moment, *, everywhere: bool = False) -> pd.DataFrame:
    """`patching` of one into the other, then of the other into the one."""
    return _last(copying([(one, other), (other, one)], everywhere=everywhere))


def copying(directions: list[tuple[Moment, Moment]], *, everywhere: bool = False) -> Iterator[Copied]:
    """The same, for each (source, into), with a report after each copy; the last one has the frame."""
    for source, into in directions:
        if reason := unpatchable(source, into):
            raise InputError(reason)
    work = [(source, into, part) for source, into in directions for part in parts(source, everywhere=everywhere)]
    rows: list[list[dict[str, object]]] = [[] for _ in directions]
    for done, (source, into, part) in enumerate(work, start=1):
        rows[directions.index((source, into))].append(_row(source, into, part, everywhere))
        if done < len(work):
            yield Copied(done, len(work))
    frames = [
        pd.DataFrame(found).sort_values("restored", key=abs, ascending=False, kind="stable", ignore_index=True)
        for found in rows
    ]
    yield Copied(len(work), len(work), pd.concat(frames, ignore_index=True))


def _last(work: Iterator[Copied]) -> pd.DataFrame:
    *_, last = work
    assert last.frame is not None
    return last.frame


def _row(source: Moment, into: Moment, part: Part, everywhere: bool) -> dict[str, object]:
    """What one copy does."""
    a, b = int(source.logits.argmax()), int(into.logits.argmax())
    goal, start = _difference(source.logits, a, b), _difference(into.logits, a, b)  # goal ≥ 0 ≥ start: argmaxes
    logits = patched_logits(into, [part.patch(source, everywhere=everywhere)])
    difference, says = _difference(logits, a, b), int(logits.argmax())
    return {
        "source": source.name,
        "into": into.name,
        "part": part.title,
        "component": part.component,
        "layer": part.layer,
        "head": part.head,
        "restored": (difference - start) / (goal - start),
        "difference": difference,
        "says": into.play.labels[says],
        "turns": says == a,
    }


@torch.no_grad()
def kinship(one: Transformer, other: Transformer) -> float:
    """The cosine of the angle between the matrices of two models; 0 where their shapes differ."""
    if one is other:
        return 1.0
    mine, theirs = _matrices(one), _matrices(other)
    if [x.shape for x in mine] != [y.shape for y in theirs]:
        return 0.0
    product = sum((x * y).sum().item() for x, y in zip(mine, theirs, strict=True))
    squares = [sum(x.square().sum().item() for x in matrices) for matrices in (mine, theirs)]
    return product / (squares[0] * squares[1]) ** 0.5 if all(squares) else 0.0


def _matrices(model: Transformer) -> list[Tensor]:
    """Vectors are left out: the gains of norms begin at 1 in every model."""
    return [parameter.double() for parameter in model.parameters() if parameter.dim() > 1]


def patched_logits(into: Moment, patches: list[AnyEdit]) -> Float[Tensor, " vocab"]:
    """What a run says at its deciding position with `patches` put in, after its own edits."""
    trace = into.trace
    run = record(into.play.player.model, trace.tokens, trace.target, edits=[*trace.edits, *patches], keep=("logits",))
    return run.logits[0, into.position]


def unpatchable(source: Moment, into: Moment) -> str | None:
    """Why nothing can be copied from one run into another, in one sentence; None where it can."""
    a, b = int(source.logits.argmax()), int(into.logits.argmax())
    if source.play.labels != into.play.labels:
        return f"{source.name} and {into.name} have different tokens; compare two models of one task and architecture."
    if source.position != into.position:
        return (
            f"{source.name} decides at position {source.position} and {into.name} at {into.position}; "
            "compare the same step on inputs of one length."
        )
    shapes = [
        {name: tuple(value.shape) for name, value in at.trace.activations.items() if _PARTS.fullmatch(name)}
        for at in (source, into)
    ]
    for name in shapes[0] | shapes[1]:
        here, there = shapes[0].get(name), shapes[1].get(name)
        if here != there:
            said = [f"{list(shape)}" if shape else "none" for shape in (here, there)]
            return (
                f"{name} is {said[0]} in {source.name} and {said[1]} in {into.name}, so it cannot be copied; "
                "compare two models of the same architecture and sizes on inputs of one length."
            )
    if (kin := kinship(source.play.player.model, into.play.player.model)) < KIN:
        return (
            f"{source.name} and {into.name} were trained apart: their weights have a cosine of {kin:+.2f}, so what a direction "
            "means in one it does not mean in the other, and a copy would say nothing; compare two steps of one run, or one "
            "model under different changes."
        )
    if a == b:
        return (
            f"Both runs say {source.play.labels[a]} here, so no activation carries a difference; "
            "choose a step at which they part."
        )
    if _difference(source.logits, a, b) == _difference(into.logits, a, b):
        return "Both runs hold the two answers for equally likely, so no activation carries a difference."
    return None


def _difference(logits: Float[Tensor, " vocab"], a: int, b: int) -> float:
    return logits[a].item() - logits[b].item()
