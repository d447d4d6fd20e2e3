"""Positions that are added to the embeddings or to the scores, or that are in none of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.doctor.formulas.flow import COPIES, Flow, called_with, is_stream
from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.numbers import constants_before
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Watched, watch
from xformer.program.record import Operation, SourceLine, Value

LEARNED, NONE, OF_STACK = "one learned vector for each position", "none", " in the "


def added(operation: Operation, weights: Collection[str]) -> Formula | None:
    """What an operation adds for each position; None if it adds something else.

    Args:
        operation: A sum before the first attention.
        weights: The names of the learned weights.
    """
    for value in operation.inputs:
        table = value.tensor
        if table is None or not table.is_floating_point() or table.dim() < 2:
            continue
        sizes = [size for size in table.shape[:-1] if size > 1]
        n, width = (
            sizes[-1] if len(sizes) == 1 else table.shape[-2],
            table.shape[-1],
        )  # positions may come before the batch
        rows = table.reshape(-1, n, width)
        if n < 3 or width < 2 or not (rows == rows[:1]).all():
            continue
        name, is_reversed = _table(value, n)
        if value.is_from_inputs and not name:
            continue
        rows = rows[0].double()
        for sin, cos in ((rows[:, 0::2], rows[:, 1::2]), rows.chunk(2, dim=1)) if width >= 8 and width % 2 == 0 else ():
            if (found := _sinusoids(sin, cos, width)) is not None:
                by = next((one for one in constants_before(operation) if one.name in _POWERS), operation)
                return part_of("positions", *found, by, SINUSOIDS)
        if name in weights and is_reversed:
            return part_of("positions", f"{LEARNED}, counted from the last", "positions_reversed", operation, LEARNED)
        if name in weights:
            return part_of("positions", LEARNED, "", operation, LEARNED)
    return None


def _table(value: Value, n: int) -> tuple[str, bool]:
    """The name of the table of which a value is the rows of successive positions, "" for none, and if the last comes first."""
    is_indexed = is_reversed = False
    while (operation := value.operation) is not None and (operation.name in COPIES or operation.name == "embedding"):
        is_lookup = operation.name in ("getitem", "embedding") and len(operation.inputs) == 2
        index = operation.inputs[1 if operation.name == "getitem" else 0] if is_lookup else None
        if index is not None:
            at = index.tensor
            if is_indexed or index.operation is None or at is None or at.is_floating_point() or at.shape[-1:] != (n,):
                return "", False
            steps = at.diff(dim=-1)
            if not bool((steps == 1).all()) and not bool((steps == -1).all()):
                return "", False
            is_indexed, is_reversed = True, bool((steps == -1).all())
        value = operation.inputs[1 if operation.name == "embedding" else 0]
    rows = value.shape.numel() // max(1, value.shape[-1]) if value.shape else 0
    return (value.name, is_reversed) if not value.is_from_inputs and rows >= n else ("", False)


def from_batch(flow: Flow, operation: Operation, n_rows: int) -> Formula | None:
    """The sum that adds row b of a table to text b of a batch; None if it does not.

    Args:
        flow: The data flow.
        operation: A sum before the first attention.
        n_rows: The number of texts in the batch, at least 2.
    """
    streams = [one for one in operation.inputs if one.is_from_inputs and one.shape == operation.result.shape]
    for value in operation.inputs if streams else ():
        axes = flow.axes.of(streams[0])
        roots = [one[0].root.name.rpartition(":")[2] if [a.origin for a in one] == ["input"] else "" for one in axes]
        if "0" not in roots or "1" not in roots or value.is_from_inputs or value.tensor is None:
            continue
        rows = value.tensor.expand(operation.result.shape).movedim((roots.index("0"), roots.index("1")), (0, 1))
        if torch.equal(rows, rows[:, :1].expand_as(rows)) and not torch.equal(rows[0], rows[1]):
            formula = "row b of the positions for text b of the batch"
            return part_of("positions", formula, "positions_from_batch", _counted(operation, n_rows), LEARNED)
    return None


def _counted(operation: Operation, n: int) -> Operation:
    """The first operation of the same function that makes n entries from constants alone, for one that adds them."""
    function = None if operation.line is None else operation.line.function
    made = [one for one in constants_before(operation) if one.result.shape[:1] == (n,)]
    return next((one for one in reversed(made) if one.line is not None and one.line.function == function), operation)


def linear_bias(
    bias: Float[Tensor, "batch head query key"], allowed: Bool[Tensor, "batch head query key"], at: Operation
) -> Formula | None:
    """The slopes of a bias that grows linearly with the distance (ALiBi); None if it is no such bias.

    Args:
        bias: What is added to the scores.
        allowed: Where a query sees a key; a causal mask.
        at: The operation that adds it.
    """
    n = bias.shape[-1]
    past = torch.ones(n, n, dtype=torch.bool, device=bias.device).tril()
    if bias.shape[-2] != n or n < 4 or not (allowed == allowed[:1, :1]).all() or (allowed & ~past).any():
        return None
    past = allowed[0, 0]  # all of it, or a window
    if int(past.sum()) < 3 * n - 3:
        return None
    step = bias.double().masked_fill(~allowed, 0.0).diff(dim=-1)[..., 1:, :]  # towards the query
    inside = past[1:, :-1] & past[1:, 1:]
    each = step[..., inside]  # [batch, head, cell]
    slopes = each.mean(dim=(0, 2))
    error = 1e-5 * max(1.0, float(bias.masked_fill(~allowed, 0.0).abs().max()))
    if float(slopes.abs().max()) < 10 * error or float((each - slopes[:, None]).abs().max()) > error:
        return None
    known = [tuple(_slopes(len(slopes))), tuple(_slopes(len(slopes), is_interleaved=False))]
    is_usual = any(
        all(math.isclose(a, b, rel_tol=0.01, abs_tol=error) for a, b in zip(slopes.tolist(), one, strict=True))
        for one in known
    )
    shown = ", ".join(f"{one:.3g}" for one in slopes[:3].tolist()) + (", …" if len(slopes) > 3 else "")
    usual = ", ".join(f"{one:.3g}" for one in known[0][:3]) + (", …" if len(slopes) > 3 else "")
    formula, rest = "scores − slope · (query − key), with the slopes ", "" if is_usual else "alibi_slopes"
    return part_of("bias", f"{formula}{shown}", rest, at, f"{formula}{usual}")


def _slopes(n: int, *, is_interleaved: bool = True) -> Iterator[float]:
    """The slopes of n heads (Press et al. 2022, arXiv:2108.12409), and their order in MPT if n is no power of 2."""
    power = 2 ** math.floor(math.log2(n))
    if is_interleaved or power == n:
        yield from (2 ** (-8 * (h + 1) / power) for h in range(power))
        yield from (2 ** (-4 * (2 * h + 1) / power) for h in range(n - power))
        return
    every = [2 ** (-4 * (h + 1) / power) for h in range(2 * power)]
    yield from [*every[1::2], *every[::2]][:n]


def no_positions(model: TokenModel, run: ModelCall, flow: Flow, sums: Sequence[Operation]) -> Iterator[Formula]:
    """Which stacks do not depend on the positions: with one token everywhere, no layer tells them apart.

    `sums` are the sums before the first attention.
    """
    n = run.tokens.shape[1]
    n_target = 0 if run.target is None else run.target.shape[1]
    if n_target == n:
        n_target -= 1
    if model.reads_images or n < 4 or 0 < n_target < 4:
        return
    same = replace(run.with_read(run.tokens[:, :1]), tokens=run.tokens[:, :1].expand(-1, n).clone(), valid=None)
    if run.target is not None:
        same = replace(same, target=run.target[:, :1].expand(-1, n_target).clone())
    seen = watch(model, same)
    for length, is_last in {n: not n_target, n_target: True}.items():
        ones = [one for one in seen if one.scores.shape[-2:] == (length, length)]
        if not ones or not all(map(_has_no_positions, ones)):
            continue
        if is_last and not _is_constant(model.logits(same), -2):
            continue
        by, line = _unplaced(flow, sums, length)
        cause = "" if is_last and model.causal else "positions_missing"
        if len(run.tokens) == 1 and not _runs(model, same, 2) and _runs(model, same, n):  # [batch, d] + [batch, n, d]
            words = "row b of the positions for text b of the batch"
            yield part_of("positions", words, "positions_from_batch", by, LEARNED, line)
        else:
            stack = "" if run.target is None else f"{OF_STACK}{'encoder' if length == n else 'decoder'}"
            yield part_of("positions", f"{NONE}{stack}", cause, by, "positions that are added or rotated", line)


def _runs(model: TokenModel, run: ModelCall, n_rows: int) -> bool:
    """Whether a model runs on a batch of this many rows."""
    try:
        model.logits(run.each(lambda one: one[:1].expand(n_rows, *one.shape[1:]).clone()))
    except Exception:  # it may raise anything
        return False
    return True


def _has_no_positions(one: Watched) -> bool:
    """Whether an attention of equal tokens has equal queries, keys, values and scores."""
    if not one.allowed.any():
        return False
    scores = one.scores.masked_fill(~one.allowed, 0.0) + one.scores[..., :1, :1] * ~one.allowed
    parts = (one.q, one.k, one.v)
    return all(part is not None and _is_constant(part, -2) for part in parts) and _is_constant(scores.flatten(-2), -1)


def _unplaced(flow: Flow, sums: Sequence[Operation], n: int) -> tuple[Operation | None, SourceLine | None]:
    """What adds the same row at each position, or a sum that nothing reads, or else what embeds `n` tokens; its line."""
    for one in sums:
        if not flow.consumers[one.result]:
            return one, called_with(one, next(iter(flow.axes.products), one))
        rows = [value for value in one.inputs if not value.is_from_inputs and len(value.shape) > 1]
        if any(value.shape[-2:-1] == (n,) for value in rows):
            return (by := _counted(one, n)), by.line
        if any(value.operation is not None and value.shape.numel() == value.shape[-1] for value in rows):
            return (by := _counted(one, 1)), by.line
    embeds = [one for one in flow.program.operations if one.name in ("embedding", "getitem") and is_stream(one.result)]
    embeds = [
        one for one in embeds if any(value.is_from_inputs and not value.dtype.is_floating_point for value in one.inputs)
    ]
    by = next((one for one in embeds if n in one.result.shape), None)
    mixes = (one for one in flow.axes.products if by is not None and one.index > by.index and n in one.result.shape)
    return by, None if by is None else called_with(by, next(mixes, by))


def _is_constant(value: Tensor, dim: int) -> bool:
    """Whether a value is the same along an axis."""
    first = value.narrow(dim, 0, 1)
    return bool(value.isfinite().all()) and float((value - first).abs().max()) <= 1e-4 * float(value.abs().max())


_POWERS = {"pow", "exp", "exp2"}
SINUSOIDS = "sin and cos of pos / 10000^(2i/d)"


def _sinusoids(sin: Float[Tensor, "pos pair"], cos: Float[Tensor, "pos pair"], width: int) -> tuple[str, str] | None:
    """The formula of sinusoids with geometric frequencies, and its cause; None if these are no such sinusoids."""
    if float((sin.square() + cos.square() - 1).abs().max()) > CLOSE:  # Vaswani et al. 2017, section 3.5
        return None
    angle = torch.atan2(sin, cos)
    step = torch.remainder(angle[1:] - angle[:-1], 2 * math.pi)  # [pos, pair], the frequency of each pair
    frequency = step.mean(dim=0)
    if float((step - frequency).abs().max()) > CLOSE or not ((frequency > 0) & (frequency <= 1 + CLOSE)).all():
        return None
    decay = -frequency.log().diff()  # of the logarithm, from pair to pair
    rate = float(decay.mean())
    if rate <= 0 or float((decay - rate).abs().max()) > 0.01 * rate:
        return None
    usual = 2 * math.log(10_000) / width
    if any(math.isclose(rate, one, rel_tol=0.01) for one in (usual, usual * width / (width - 2))):
        return SINUSOIDS, ""
    if math.isclose(rate, 2 * usual, rel_tol=0.01):
        return "sin and cos of pos / 10000^(4i/d)", "sinusoid_exponent"
    return f"sin and cos of pos / {math.exp(rate * width / 2):.4g}^(2i/d)", ""
