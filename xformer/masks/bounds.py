"""Decide whole blocks of a mask function from the bounds of its positions, without evaluating their cells.

A mask function is called once with the first position of each block. On the way, the least and the largest value of each
intermediate tensor over the cells of a block are computed from those of its operands. Where the result is true at least and at
most, all cells of the block are true; where the bounds differ, the block has to be evaluated.

Only operations that act on each cell by itself are followed. Any other one raises `NotFollowedError`, and the caller evaluates
cells one by one, as FlexAttention does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int8
from torch import Tensor
from torch.overrides import TorchFunctionMode

UNKNOWN = -1
"""The state of a block whose cells must be evaluated; 0 means that all are forbidden, 1 that all are allowed."""
LIMIT = 2**31 - 1
"""Integers beyond this could overflow in a kernel with 32-bit positions; their bounds are not followed."""
MARGIN = 1e-3
"""Floats are compared only if they are apart by more than this fraction, far above any rounding."""
Pair = tuple[Tensor, Tensor]
"""The least and the largest value in each block, or the first and the last position."""


class NotFollowedError(Exception):
    """An operation does not act on each cell by itself, or is not known to."""


def block_states(
    function: Callable[..., Any], leading: Sequence[Tensor], queries: Pair, keys: Pair, *, is_score: bool = False
) -> tuple[Int8[Tensor, "*block"], bool]:
    """Return the state of each block of a mask function, and whether it computes with integers only.

    Args:
        function: A `mask_mod(b, h, q, k)` or `score_mod(score, b, h, q, k)`.
        leading: Its arguments before the positions, as scalars.
        queries: The first and the last query of each block; with the keys, they broadcast to one shape.
        keys: The first and the last key of each block.
        is_score: Whether the result is a score, which forbids a cell by −∞.

    Returns:
        0 where all cells are forbidden, 1 where all are allowed, `UNKNOWN` where they must be evaluated. If the function
        computes with integers only, then a call with columns of queries and rows of keys gives the cells of one call per cell.

    Raises:
        NotFollowedError: If an operation of the function is not followed.
    """
    follower = _Follower()
    q, k = (follower.track(pair[0].clone(), pair) for pair in (queries, keys))
    with follower:
        result = function(*leading, q, k)
    low, high = follower.bounds(result)
    if is_score:
        allowed, forbidden = low > -torch.inf, high == -torch.inf
    else:
        allowed, forbidden = low != 0, high == 0
    shape = torch.broadcast_shapes(queries[0].shape, keys[0].shape)
    states = torch.full(shape, UNKNOWN, dtype=torch.int8)
    states[allowed.expand(shape)] = 1
    states[forbidden.expand(shape)] = 0
    return states, not follower.saw_floats


class _Follower(TorchFunctionMode):
    """Compute the bounds of each tensor that depends on positions, while a function runs."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked: dict[int, tuple[Tensor, Pair]] = {}  # keeps the tensors alive, so that ids are not reused
        self.saw_floats = False

    def track(self, tensor: Tensor, pair: Pair) -> Tensor:
        self.tracked[id(tensor)] = (tensor, pair)
        return tensor

    def is_tracked(self, value: Any) -> bool:
        return isinstance(value, Tensor) and id(value) in self.tracked

    def bounds(self, value: Any) -> Pair:
        """Return the bounds of an operand: those of a tracked tensor, or a constant twice."""
        if self.is_tracked(value):
            return self.tracked[id(value)][1]
        if isinstance(value, Tensor):
            if value.dim():
                raise NotFollowedError("a constant with axes")
            value = value.item()
        if not isinstance(value, bool | int | float):
            raise NotFollowedError(type(value).__name__)
        constant = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        return constant, constant

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = [*args, *kwargs.values()]
        nested = [one for value in operands for one in (value if isinstance(value, tuple | list) else [value])]
        if not any(self.is_tracked(one) for one in nested):
            return func(*args, **kwargs)  # a constant
        name = func.__name__.strip("_")
        if name == "get":  # an attribute, such as `q.device`
            if func.__self__ in (torch.Tensor.device, torch.Tensor.dtype, torch.Tensor.is_cuda):
                return func(*args, **kwargs)
            raise NotFollowedError("a size")
        if name in CONSTANTS:
            result = func(*args, **kwargs)
            return self.track(result, self.bounds(result.flatten()[0])) if result.dim() else result
        if name == "getitem":
            pair = self._entries(*args)
        elif name in CASTS:
            pair = self._cast(args[0], func(*args, **kwargs).dtype)
        elif name in RULES:
            if set(kwargs) - {"input", "other", "min", "max", "right", "rounding_mode"}:
                raise NotFollowedError(f"{name} with {', '.join(kwargs)}")
            pair = self._apply(name, args, kwargs)
        else:
            raise NotFollowedError(name)
        result = func(*args, **kwargs)
        if result.is_floating_point():
            self.saw_floats = True
        return self.track(result, _within(pair, result.dtype))

    def _apply(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Pair:
        if name in ("bucketize", "searchsorted"):
            values, edges = (args[0], args[1]) if name == "bucketize" else (args[1], args[0])
            if self.is_tracked(edges) or edges.dim() != 1:
                raise NotFollowedError(name)
            low, high = (
                torch.bucketize(one, edges, right=bool(kwargs.get("right", False))) for one in self.bounds(values)
            )
            return low, high
        if kwargs:
            raise NotFollowedError(f"{name} with {', '.join(kwargs)}")
        is_boolean = all(not isinstance(one, Tensor) or one.dtype == torch.bool for one in args)
        is_boolean &= all(isinstance(one, Tensor | bool) for one in args)
        rule = RULES[name]
        if name in BITWISE and not is_boolean:
            return _bits(name, [self.bounds(one) for one in args])
        return rule(*(self.bounds(one) for one in args))

    def _cast(self, value: Any, dtype: torch.dtype) -> Pair:
        low, high = self.bounds(value)
        if dtype == torch.bool:
            return _compared((low > 0) | (high < 0), (low == 0) & (high == 0))
        if not dtype.is_floating_point and low.is_floating_point():
            return low.trunc().to(torch.int64), high.trunc().to(torch.int64)
        return (low.double(), high.double()) if dtype.is_floating_point else (low, high)

    def _entries(self, table: Any, index: Any) -> Pair:
        """Return the bounds of the entries of a table at tracked positions, as in `documents[q]` or `valid[b, k]`."""
        indices = index if isinstance(index, tuple) else (index,)
        if self.is_tracked(table) or len(indices) != table.dim():
            raise NotFollowedError("an index of another form")
        for one in indices:
            is_position = isinstance(one, Tensor) and (self.is_tracked(one) or not one.dim())
            if not (is_position or (isinstance(one, int) and not isinstance(one, bool))) or (
                isinstance(one, Tensor) and one.dtype == torch.bool
            ):
                raise NotFollowedError("an index of another form")
        tracked = [one for one in indices if self.is_tracked(one)]
        everything = _extremes(table.dtype)
        if len(tracked) > 1:
            return everything
        line = table[tuple(slice(None) if self.is_tracked(one) else int(one) for one in indices)]
        low, high = torch.broadcast_tensors(*self.bounds(tracked[0]))
        if int(low.min()) < 0 or int(high.max()) >= len(line) or bool((low > high).any()):
            return everything
        line = line.double() if line.is_floating_point() else line.to(torch.int64)
        return _over_ranges(line, low, high, torch.minimum), _over_ranges(line, low, high, torch.maximum)


def _over_ranges(line: Tensor, low: Tensor, high: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the minimum or maximum of entries low … high: of two powers of 2 that cover them, which are computed first."""
    powers = [line]
    while 2 ** len(powers) <= int((high - low).max()) + 1:
        half = 2 ** (len(powers) - 1)
        powers.append(torch.cat([function(powers[-1][:-half], powers[-1][half:]), powers[-1][-half:]]))
    level = torch.floor(torch.log2((high - low + 1).double())).long()
    stacked = torch.stack(powers)  # [power, position]
    return function(stacked[level, low], stacked[level, high + 1 - 2**level])


def _extremes(dtype: torch.dtype) -> Pair:
    """Return bounds that say nothing."""
    if dtype.is_floating_point:
        return torch.tensor(-torch.inf, dtype=torch.float64), torch.tensor(torch.inf, dtype=torch.float64)
    if dtype == torch.bool:
        return torch.tensor(0), torch.tensor(1)
    info = torch.iinfo(dtype)
    return torch.tensor(info.min), torch.tensor(info.max)


def _within(pair: Pair, dtype: torch.dtype) -> Pair:
    """Return the bounds, or none where the values may not fit their type or the bounds are not numbers."""
    low, high = torch.broadcast_tensors(*pair)
    least, largest = _extremes(dtype)
    if dtype.is_floating_point:
        low, high = low.double(), high.double()
        is_lost = (
            low.isnan() | high.isnan() | (low.abs() > 1e30) & low.isfinite() | (high.abs() > 1e30) & high.isfinite()
        )
    elif dtype == torch.bool:
        return low.to(torch.int64), high.to(torch.int64)
    else:
        limit = min(LIMIT, torch.iinfo(dtype).max)
        is_lost = (low < -limit) | (high > limit)
    return torch.where(is_lost, least, low), torch.where(is_lost, largest, high)


def _compared(surely: Tensor, never: Tensor) -> Pair:
    return surely.to(torch.int64), (~never).to(torch.int64)


def _gap(one: Tensor, other: Tensor) -> Tensor | int:
    """Return how far two values must be apart for a comparison: 0 for integers."""
    if not (one.is_floating_point() or other.is_floating_point()):
        return 0
    return (MARGIN * torch.maximum(one.double().abs(), other.double().abs())).nan_to_num(torch.inf)


def _less(a: Pair, b: Pair) -> Pair:
    gap = _gap(a[1], b[0]), _gap(a[0], b[1])
    if isinstance(gap[0], int):
        return _compared(a[1] < b[0], a[0] >= b[1])
    return _compared(a[1] + gap[0] < b[0], a[0] > b[1] + gap[1])


def _equal(a: Pair, b: Pair) -> Pair:
    apart = _less(a, b)[0].bool() | _less(b, a)[0].bool()
    same = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    if a[0].is_floating_point() or b[0].is_floating_point():
        same = torch.zeros_like(same)
    return _compared(same, apart)


def _not(a: Pair) -> Pair:
    return 1 - (a[1] != 0).long(), 1 - (a[0] != 0).long()


def _and(a: Pair, b: Pair) -> Pair:
    return a[0] & b[0], a[1] & b[1]


def _or(a: Pair, b: Pair) -> Pair:
    return a[0] | b[0], a[1] | b[1]


def _logical(rule: Callable[..., Pair]) -> Callable[..., Pair]:
    """Return a rule for operands that may be numbers, of which all but 0 are true."""

    def truth(a: Pair) -> Pair:
        return _compared((a[0] > 0) | (a[1] < 0), (a[0] == 0) & (a[1] == 0))

    return lambda *operands: rule(*map(truth, operands))


def _product(a: Pair, b: Pair) -> Pair:
    corners = torch.stack(torch.broadcast_tensors(*(x * y for x in a for y in b)))
    return corners.amin(dim=0), corners.amax(dim=0)


def _floor_divide(a: Pair, b: Pair) -> Pair:
    _need_positive(b)
    corners = torch.stack(torch.broadcast_tensors(*(torch.floor_divide(x, y) for x in a for y in b)))
    return corners.amin(dim=0), corners.amax(dim=0)


def _divide(a: Pair, b: Pair) -> Pair:
    _need_positive(b)
    corners = torch.stack(torch.broadcast_tensors(*(x.double() / y for x in a for y in b)))
    return corners.amin(dim=0), corners.amax(dim=0)


def _remainder(a: Pair, b: Pair) -> Pair:
    _need_positive(b)
    if bool((b[0] != b[1]).any()) or a[0].is_floating_point() or b[0].is_floating_point():
        raise NotFollowedError("a remainder by a number that varies")
    n = b[0]
    is_one_round = torch.floor_divide(a[0], n) == torch.floor_divide(a[1], n)
    return torch.where(is_one_round, a[0] % n, 0), torch.where(is_one_round, a[1] % n, n - 1)


def _need_positive(b: Pair) -> None:
    if bool((b[0] <= 0).any()):
        raise NotFollowedError("a division by a number that may not be positive")


def _absolute(a: Pair) -> Pair:
    low, high = a
    both = torch.maximum(low.abs(), high.abs())
    return torch.where((low <= 0) & (high >= 0), torch.zeros_like(low), torch.minimum(low.abs(), high.abs())), both


def _where(condition: Pair, a: Pair, b: Pair) -> Pair:
    first = torch.where(condition[1] == 0, b[0], torch.where(condition[0] != 0, a[0], torch.minimum(a[0], b[0])))
    second = torch.where(condition[1] == 0, b[1], torch.where(condition[0] != 0, a[1], torch.maximum(a[1], b[1])))
    return first, second


def _minus(a: Pair, b: Pair) -> Pair:
    return a[0] - b[1], a[1] - b[0]


def _plus(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def _bits(name: str, operands: Sequence[Pair]) -> Pair:
    """Return the bounds of an operation on the bits of integers; of most, nothing is known."""
    if name in ("invert", "bitwise_not"):
        return -operands[0][1] - 1, -operands[0][0] - 1
    return _extremes(torch.int64)


def _clamp(a: Pair, least: Pair, largest: Pair) -> Pair:
    low, high = (torch.minimum(torch.maximum(x, y), z) for x, y, z in zip(a, least, largest, strict=True))
    return low, high


def _increasing(function: Callable[[Tensor], Tensor]) -> Callable[[Pair], Pair]:
    return lambda a: (function(a[0].double()), function(a[1].double()))


RULES: dict[str, Callable[..., Pair]] = {
    **dict.fromkeys(("add", "radd"), _plus),
    **dict.fromkeys(("sub", "subtract"), _minus),
    "rsub": lambda a, b: _minus(b, a),
    **dict.fromkeys(("mul", "rmul", "multiply"), _product),
    **dict.fromkeys(("floordiv", "floor_divide"), _floor_divide),
    **dict.fromkeys(("truediv", "div", "divide", "true_divide"), _divide),
    **dict.fromkeys(("mod", "remainder"), _remainder),
    **dict.fromkeys(("neg", "negative"), lambda a: (-a[1], -a[0])),
    **dict.fromkeys(("abs", "absolute"), _absolute),
    **dict.fromkeys(("lt", "less"), _less),
    **dict.fromkeys(("gt", "greater"), lambda a, b: _less(b, a)),
    **dict.fromkeys(("ge", "greater_equal"), lambda a, b: _not(_less(a, b))),
    **dict.fromkeys(("le", "less_equal"), lambda a, b: _not(_less(b, a))),
    "eq": _equal,
    **dict.fromkeys(("ne", "not_equal"), lambda a, b: _not(_equal(a, b))),
    **dict.fromkeys(("and", "rand", "bitwise_and"), _and),
    **dict.fromkeys(("or", "ror", "bitwise_or"), _or),
    **dict.fromkeys(("xor", "rxor", "bitwise_xor"), lambda a, b: _not(_equal(a, b))),
    **dict.fromkeys(("invert", "bitwise_not"), _not),
    "logical_and": _logical(_and),
    "logical_or": _logical(_or),
    "logical_xor": _logical(lambda a, b: _not(_equal(a, b))),
    "logical_not": _logical(_not),
    **dict.fromkeys(("lshift", "rshift", "bitwise_left_shift", "bitwise_right_shift"), _and),
    "minimum": lambda a, b: (torch.minimum(a[0], b[0]), torch.minimum(a[1], b[1])),
    "maximum": lambda a, b: (torch.maximum(a[0], b[0]), torch.maximum(a[1], b[1])),
    "clamp": _clamp,
    "where": _where,
    "tanh": _increasing(torch.tanh),
    "exp": _increasing(torch.exp),
    "exp2": _increasing(torch.exp2),
    "bucketize": _and,  # computed in `_apply`
    "searchsorted": _and,
}
"""The rule of each operation that acts on each cell by itself, by its name without underscores."""
SHIFTS = ("lshift", "rshift", "bitwise_left_shift", "bitwise_right_shift")
BITWISE = frozenset({"and", "rand", "or", "ror", "xor", "rxor", "invert", *SHIFTS} | {
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not",
})  # fmt: skip
"""Operations on the bits of integers, which are logical ones on booleans."""
CASTS = frozenset({"to", "type", "long", "int", "bool", "float", "double", "type_as", "clone", "contiguous", "detach"})
CONSTANTS = frozenset({"new_ones", "new_zeros", "ones_like", "zeros_like"})
