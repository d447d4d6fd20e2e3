"""What a run made of its positions, computed again: by their kind, from the weights where those are known.

Where a learned table is not known, equal rows of it must have left equal numbers behind, and different ones different numbers:
each row is given a number of its own, and the kind itself says which rows a position is made of.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.diagnosis.case import Case, Layer, Measurement, positions_of
from xformer.diagnosis.rounding import OTHER_ROUNDINGS, excess, unit
from xformer.diagnosis.stream import one_vector_each

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
            yield Measurement(name, float("inf"), f"The configuration says positions={kind.name!r}, which adds none.")
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
                yield Measurement(
                    layer.path, float("inf"), f"The configuration says positions={config.positions!r}: no angles."
                )
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
        yield Measurement(
            layer.path, float("inf"), f"The configuration says positions={config.positions!r}: no bias of scores."
        )
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
