"""Checks at both ends of a run: its positions, its order, its logits, and numbers that are not finite.

Positions are computed again by their registered scheme. Where a learned table is not known, equal rows of it must have left
equal numbers behind, and different rows different ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.diagnosis.case import Case, Finding, Layer, Measurement, broken, error, positions_of, relative
from xformer.diagnosis.rounding import OTHER_ROUNDINGS, excess, unit
from xformer.diagnosis.stream import one_vector_each
from xformer.trace import Trace

EQUAL_STREAMS = 1e-5


def check_finite(case: Case) -> Iterator[Finding]:
    """softmax-of-nothing · not-finite: the first activation that holds a NaN or an infinity (a masked score may be −∞)."""
    for name in case.trace:
        value = case[name]
        if not value.is_floating_point() or value.sum().isfinite():  # a NaN or an infinity is one in the sum too
            continue
        bad = ~value.isfinite()
        if name.endswith(".scores"):
            bad = bad & ~value.isneginf()
        if not bool(bad.any()):
            continue
        share = bad.double().mean().item()
        path, _, what = name.rpartition(".")
        if what == "pattern" and case.has(path, "scores"):
            empty = case[f"{path}.scores"].isneginf().all(dim=-1)  # [batch, head, query]
            if bool(empty[bad.any(dim=-1)].all()):
                sentence = "NaN first appears here, in rows whose every score is −∞: the softmax of nothing is 0/0."
                yield error("softmax-of-nothing", name, sentence, {"share": share})
                return
        yield error("not-finite", name, "NaN or infinity first appears here.", {"share": share})
        return


def check_positions(case: Case) -> Iterator[Finding]:
    """no-positions: what goes into the first layer is the embedding alone, or its attention lacks angles or bias.

    Sums are compared exactly but for rounding: no position has a vector below 10⁻⁵ of an embedding.
    """
    kind = case.trace.config.position_kind
    for stack in dict.fromkeys(block.split(".")[0] for block in case.blocks):
        prefix = f"{stack}." if case.trace.config.architecture == "encoder-decoder" else ""
        embed, first = f"{prefix}embed", f"{stack}.0.resid_pre"
        adds = kind.acts_on == "stream" and embed in case and first in case
        if adds and relative(case[first] - case[embed], case[embed]) < EQUAL_STREAMS:
            sentence = f"The first layer gets the embeddings as they are: no {kind.name} positions have been added."
            yield error("no-positions", first, sentence)
    for layer in case.layers:
        name, inside = kind.activation, kind.acts_on in ("queries and keys", "scores")
        if not inside or layer.is_cross or case[f"{layer.path}.pattern"].shape[-1] < 2:
            continue
        if f"{layer.path}.{name}" not in case or not bool(case[f"{layer.path}.{name}"].any()):
            sentence = (
                f"The configuration says positions={kind.name!r}, and nothing in this attention knows a position."
            )
            yield error("no-positions", layer.path, sentence)


def check_order(case: Case, rolled: Trace) -> Iterator[Finding]:
    """no-positions, by experiment: an encoder that reads its tokens moved round by one says the same, moved round by one.

    (Not backwards: distances alone, as ALiBi's, are the same in both directions.)
    """
    tokens, moved = case.trace.tokens, rolled.tokens
    if case.trace.config.architecture != "encoder" or case.trace.config.causal or tokens.shape[1] < 3:
        return
    if torch.equal(moved, tokens) or not torch.equal(moved, tokens.roll(1, dims=1)):
        return
    apart = relative(rolled.logits.roll(-1, dims=1) - case.trace.logits, case.trace.logits)
    if apart < 1e-4:
        sentence = (
            "The tokens moved round give the output moved round: the model does not know the order of its tokens."
        )
        severity = "note" if case.trace.config.position_kind.acts_on == "nothing" else "error"
        yield Finding("no-positions", ("logits",), severity, sentence, {"apart": apart})


def check_logits(case: Case) -> Iterator[Finding]:
    """softmax-before-loss: scores that are none below 0 and sum to 1 at every position."""
    if "logits" not in case or case.trace.config.vocab_size < 2:
        return
    logits = case["logits"].double()
    sums = logits.sum(dim=-1)
    if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        sentence = (
            "What should be scores are probabilities already: a loss that takes the softmax itself cannot come near 0."
        )
        yield error(
            "softmax-before-loss", "logits", sentence, {"sum": sums.mean().item(), "least": logits.min().item()}
        )


Tables = dict[str, Tensor]


def positions(case: Case) -> Iterator[Measurement]:
    """The vectors that are added are those of the kind that is configured; none where it adds none."""
    config = case.trace.config
    kind = config.position_kind
    for at in case.stacks:
        name = f"{at.prefix}pos_embed"
        if name not in case:
            continue
        if kind.acts_on != "stream":
            yield broken(name, f"The configuration says positions={kind.name!r}, which adds none.")
            continue
        made = case[name].expand(*at.valid.shape, -1)[at.valid]  # [token, d_model]
        index, mirrored = (place[at.valid] for place in positions_of(at.valid))
        tables = _tables(case, at.stack)
        expected = kind.add(config, _numbered(case) if tables is None else tables, index, mirrored)
        if expected is None:
            continue
        if tables is None:
            yield Measurement(name, one_vector_each(made, expected[:, 0].long()))
            continue
        size = torch.ones_like(expected)  # of a fixed wave
        if kind.learned(config):
            size = kind.add(config, {part: table.abs() for part, table in tables.items()}, index, mirrored)
        assert size is not None
        yield Measurement(name, excess(made, expected, OTHER_ROUNDINGS * unit(made) * size))


def turns(case: Case) -> Iterator[Measurement]:
    """The angles of queries and keys, and what is added to scores, are those of the kind that is configured."""
    config = case.trace.config
    for layer in case.layers:
        if layer.is_cross or layer.queries.shape != layer.keys.shape:
            continue
        index, _ = positions_of(layer.queries)
        if case.has(layer.path, "pos_angles"):
            made, expected = case[f"{layer.path}.pos_angles"], config.position_kind.angles(config, index)
            if expected is None:
                yield broken(layer.path, f"The configuration says positions={config.positions!r}: no angles.")
            else:
                here = layer.queries[..., None].expand_as(expected)
                made = made.expand(expected.shape) if made.shape[-2:] == expected.shape[-2:] else made
                yield _compared(layer.path, made, expected, here)
        if case.has(layer.path, "pos_bias"):
            yield from _bias(case, layer, index)


def _bias(case: Case, layer: Layer, index: Tensor) -> Iterator[Measurement]:
    config = case.trace.config
    stack = layer.path.partition(".")[0]
    tables = _tables(case, stack)
    numbered = _numbered(case) if tables is None else tables
    expected = config.position_kind.bias(config, numbered, index, index, causal=config.looks_back_only(stack))
    if expected is None:
        yield broken(layer.path, f"The configuration says positions={config.positions!r}: no bias of scores.")
        return
    made = case[f"{layer.path}.pos_bias"]
    here = (layer.queries[:, :, None] & layer.keys[:, None, :])[:, None].expand(expected.shape)
    made = made.expand(expected.shape) if made.shape[1:] == expected.shape[1:] else made
    if tables is not None or made.shape != expected.shape:
        yield _compared(layer.path, made, expected, here)
        return
    cells = here[:, 0]  # [batch, query, key]
    yield Measurement(
        layer.path, one_vector_each(made.movedim(1, -1)[cells], expected[:, 0][cells].long(), differ=False)
    )


def _compared(path: str, made: Tensor, expected: Tensor, here: Tensor) -> Measurement:
    size = unit(made)
    if made.shape == expected.shape:
        made, expected = made[here], expected[here]
    return Measurement(path, excess(made, expected, OTHER_ROUNDINGS * size * expected.abs()))


def _tables(case: Case, stack: str) -> Tables | None:
    """The tables of a stack in double precision; None where a learned one is not known."""
    config = case.trace.config
    tables = {name: table.double() for name, table in config.position_kind.fixed(config).items()}
    for name in config.position_kind.learned(config):
        table = case.weight(f"{stack}.positions.table.{name}")
        if table is None:
            return None
        tables[name] = table.double()
    return tables


def _numbered(case: Case) -> Tables:
    """Tables whose rows are numbers that no sum of rows of two tables mixes up."""
    config, scale, tables = case.trace.config, 1, {}
    for name, (rows, columns) in config.position_kind.learned(config).items():
        tables[name] = scale * torch.arange(rows, dtype=torch.float64)[:, None].expand(rows, columns)
        scale *= rows
    return tables
