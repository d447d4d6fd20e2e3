"""The mask of an attention: which keys a query sees, and the operations that made it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.attention import for_each_head
from xformer.doctor.formulas.flow import CASTS, Flow
from xformer.doctor.formulas.formula import CLOSE, Formula, part_of
from xformer.doctor.formulas.numbers import TIMES, factor_of
from xformer.doctor.watch import Watched
from xformer.program.attention import FoundAttention
from xformer.program.record import Operation, Value, source_of

USUAL, NO_KEY = "keys ≤ query", "no key"
PREFIX = "keys ≤ query, or keys < "
"""The mask of a prefix language model, up to the length of the prefix."""
APPLIED = {
    "masked_fill", "where", "add", "sub", "setitem", "tril", "triu", "maximum", "minimum", "baddbmm", "addbmm",
    "addmm", "scaled_dot_product_attention",
}  # fmt: skip
"""Operations that apply a mask to scores."""
_COMPARISONS = {"eq", "ne", "lt", "gt", "le", "ge", "logical_not", "bitwise_not", "invert", "rsub"}
_TRANSPOSES = {"T", "t", "mT", "transpose", "swapaxes", "permute", "swapdims", "adjoint", "H", "mH"}
_TRIANGLES = {"tril", "triu", "lt", "gt", "le", "ge", "tril_indices", "triu_indices"}
_MAKERS = {
    "padding_inverted": _COMPARISONS | {"sub", "masked_fill"},
    "padding_on_queries": {"getitem", "unsqueeze", "view", "reshape"},
    "padding_in_head_order": {"repeat", "tile", "cat", "stack", "repeat_interleave"},
    "cache_mask_misaligned": _TRIANGLES | {"cat", "concat", "hstack", "pad"},
    "cache_not_masked": {"cat", "concat", "hstack", "pad", "zeros", "ones", "full"},
    "mask_off_by_one": _TRIANGLES,
    "mask_added_as_bool": _TRIANGLES,
    "mask_excludes_itself": _TRIANGLES,
}
"""The operations that make a wrong mask, by its cause."""
LARGE = 1e3
"""Scores as large as this are those of a model, and none that a mask made."""
_FAR = 60
"""Largest number of operations between a mask and the tensors that it is made of."""


def maker(found: FoundAttention, cause: str, number: float = 0.0) -> Operation:
    """The operation that makes a mask wrong; that which applies the mask or computes the scores if none is known.

    Args:
        found: An attention.
        cause: What is wrong in its mask, a key of `CAUSES_OF_FORMULAS` or `CAUSES_OF_CHECKS`.
        number: What is added to masked scores or written there, for "mask_too_small" and "mask_added_as_bool".
    """
    applied = [one for one in found.chain if one.name in APPLIED]
    last, made = applied[-1] if applied else found.first, _made(found)
    if cause == "mask_too_small":
        is_maker = (one for one in (*applied[::-1], *made) if _has_number(one, number))
    elif cause == "mask_inverted" and (
        turned := [one for one in made if one.name in _TRANSPOSES and _hides_later(one)]
    ):
        return turned[0]
    elif cause == "mask_inverted" and _is_used_wrongly(last, made[:1]):
        return last  # the mask is a right one, and its use inverts it
    elif cause == "mask_inverted":
        is_maker = iter(_inverting(made) or [one for one in made if one.name in _TRIANGLES])
    elif cause == "padding_not_masked":
        hiding = [one for one in applied if one.name not in ("add", "sub")]
        is_maker = iter(hiding[-1:] or [one for one in made if one.name in APPLIED and one.result.is_from_inputs])
    elif cause == "mask_added_as_bool" and not (number > 0 and _is_triangle_added(last)):
        return last  # the mask is right for a function that hides what is 0
    else:
        names = _MAKERS.get(cause, set())
        is_maker = (one for one in made if one.name in names and not _keeps_axes(one, cause))
    return next(is_maker, last)


def _made(found: FoundAttention) -> list[Operation]:
    """The operations that made what masks the scores, the last first."""
    scores = {value for one in (found.first, *found.chain) for value in one.results}
    left: list[Value] = []
    for one in (found.first, *found.chain):
        if one is found.kernel:
            left += one.inputs[3:]
        elif one is not found.first:
            left += [value for value in one.inputs if value not in scores] if one.name in APPLIED else []
        elif one.name in ("baddbmm", "addbmm", "addmm"):
            left += one.inputs[:1]
    reached = list[Operation]()
    while left and len(reached) < _FAR:
        operation = source_of(left.pop(0)).operation
        if operation is not None and operation not in reached:
            reached.append(operation)
            left += operation.inputs
    return sorted(reached, key=lambda one: -one.index)


def _hides_later(operation: Operation) -> bool:
    """Whether an operation transposes a mask that hides later keys: 0 or true at what is seen, or 0 and −∞."""
    mask = operation.inputs[0].tensor if operation.inputs else None
    if mask is None or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 3:
        return False
    square = mask.reshape(-1, *mask.shape[-2:])[0].float()
    is_turned = operation.result.tensor is not None and torch.equal(
        operation.result.tensor.reshape(-1, *mask.shape[-2:])[0].float(), square.T
    )
    later = torch.ones_like(square).triu(1).bool()
    hidden, shown = square[later], square[~later]
    return is_turned and bool((hidden == hidden[0]).all() and (shown == shown[0]).all() and hidden[0] != shown[0])


def _is_used_wrongly(last: Operation, made: Sequence[Operation]) -> bool:
    """Whether a mask of 0 and 1 is right for a function that reads it otherwise than the one that applies it."""
    marks = [_marks(value) for one in made for value in one.results]
    is_compared = last.name == "masked_fill" and any(one.name in _COMPARISONS for one in made)
    return any(marks) and not (is_compared and "earlier" in marks)


def _inverting(made: Sequence[Operation]) -> list[Operation]:
    """The operations that may invert a mask, the likeliest first; none if the mask is right, and its use is not.

    If the last comparison reads what is 1 at later keys, and so takes 1 for what is shown, then it is the one before that is
    wrong.
    """
    found = [one for one in made if one.name in _COMPARISONS]
    squares = [one for one in found if one.inputs and _marks(one.inputs[0])]
    while len(squares) > 1 and _marks(squares[0].inputs[0]) == "later":
        squares.pop(0)
    return squares or found


def _marks(value: Value) -> str:
    """What a mask of 0 and 1 is 1 at: "earlier" keys and the query itself, "later" keys, or "" for something else."""
    mask = value.tensor
    if mask is None or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return ""
    square = mask.reshape(-1, *mask.shape[-2:])[0].float()
    every = torch.ones_like(square)
    return "earlier" if torch.equal(square, every.tril()) else "later" if torch.equal(square, every.triu(1)) else ""


def _is_triangle_added(operation: Operation) -> bool:
    """Whether an operation adds what a triangle or a comparison returned."""
    by = [source_of(value).operation for value in operation.inputs]
    return any(one is not None and one.name in _TRIANGLES | _COMPARISONS for one in by)


def _has_number(operation: Operation, number: float) -> bool:
    """Whether a number is an argument of an operation."""
    given = (*operation.args, *operation.kwargs.values())
    return any(
        isinstance(one, int | float)
        and not isinstance(one, bool)
        and math.isclose(abs(one), abs(number), rel_tol=CLOSE)
        for one in given
    )


def _keeps_axes(operation: Operation, cause: str) -> bool:
    """Whether an operation that may add axes to a padding mask [batch, key] adds none."""
    is_added = len(operation.inputs[0].shape) == 2 < len(operation.result.shape) if operation.inputs else False
    return cause == "padding_on_queries" and not is_added


def mask_of(flow: Flow, found: FoundAttention, seen: Watched, factor: float | None) -> Formula | None:
    """Which keys a query sees in a causal attention; None if that is no simple rule.

    Args:
        flow: The data flow.
        found: An attention of queries and keys over the same positions.
        seen: Its recorded tensors.
        factor: The factor between q·kᵀ and the scores; None if it is no number.
    """
    if not seen.is_square:
        return None
    product = None if seen.allowed.any() else product_of(seen)
    if product is not None and float((product * (factor or 1.0)).abs().max()) < LARGE:
        return part_of("mask", NO_KEY, "mask_inverted", maker(found, "mask_inverted"), USUAL)
    n, device = seen.allowed.shape[-1], seen.allowed.device
    back = torch.arange(n, device=device)[:, None] - torch.arange(n, device=device)
    if not (seen.allowed == seen.allowed[:1, :1]).all():
        is_open, is_right = seen.allowed.flatten(-2).all(dim=-1), (seen.allowed == (back >= 0)).flatten(-2).all(dim=-1)
        if not (is_open | is_right).all():
            return None
        words = "every key, in some texts of the batch" if is_open.all(dim=-1).any() else "every key, in some heads"
        return part_of("mask", words, "mask_not_applied", maker(found, "mask_not_applied"), USUAL)
    if _is_masked_later(found, seen, back >= 0):
        by = flow.root(found.pattern, CASTS).operation
        return part_of("mask", "softmax(scores), then the mask", "mask_after_softmax", by, USUAL)
    rules = [(USUAL, "", back >= 0)]
    rules += [(f"keys ≤ query + {m}", "mask_off_by_one", back >= -m) for m in range(1, min(n - 1, 4))]
    rules += [("keys < query", "mask_excludes_itself", back > 0), ("keys > query", "mask_inverted", back < 0)]
    rules += [("keys ≥ query", "mask_inverted", back <= 0)]
    rules += [(f"query − {w} < keys ≤ query", "", (back >= 0) & (back < w)) for w in range(2, n)]
    for w in range(2, n - 1):
        near, window = back < w, f"query − {w} < keys"
        rules += [(window, "mask_not_applied", near)]
        rules += [(f"{window} ≤ query + {m}", "mask_off_by_one", near & (back >= -m)) for m in (1, 2)]
        rules += [(f"{window} < query", "mask_excludes_itself", near & (back > 0))]
        rules += [(f"not {window} ≤ query", "mask_inverted", ~(near & (back >= 0)))]
    at = torch.arange(n, device=device)
    rules += [(f"{PREFIX}{p}", "", (back >= 0) | (at < p)) for p in range(2, n - 1)]
    for allowed in (seen.allowed, seen.pattern != 0):  # a number that is low enough hides as well as −∞
        for formula, cause, mask in rules:
            if bool((allowed == mask).all()):
                return part_of("mask", formula, cause, maker(found, cause), USUAL)
    return _weak_mask(flow, found, seen, back >= 0, factor) if seen.allowed.all() else None


def mask_of_encoder(seen: Watched) -> Formula | None:
    """A mask that hides every key, or later keys, in an attention that is not meant to be causal; None for another."""
    product = None if seen.allowed.any() else product_of(seen)
    if product is not None and float(product.abs().max()) < LARGE:
        return part_of("mask", NO_KEY, "mask_hides_every_key", None, "every token")
    n = seen.allowed.shape[-1]
    past = torch.ones(n, n, dtype=torch.bool, device=seen.allowed.device).tril()
    tokens = seen.allowed.any(dim=-2, keepdim=True)  # padding is hidden from every query
    if seen.is_square and bool((tokens.sum(dim=-1) > 2).all()) and bool((seen.allowed == past & tokens).all()):
        return part_of("mask", USUAL, "encoder_is_causal", None, "every token")
    return None


def _weak_mask(flow: Flow, found: FoundAttention, seen: Watched, past: Tensor, factor: float | None) -> Formula:
    """What is done to the scores where no key is hidden."""
    usual = "−∞ at masked scores"
    for one in found.chain:
        masks = [value for value in one.inputs if one.name in ("add", "sub") and value.dtype == torch.bool]
        if masks:
            return part_of("mask", "scores + mask", "mask_added_as_bool", one, usual)
    hidden = seen.scores.double()[..., ~past]
    if hidden.numel() > 2 and bool((hidden == hidden.flatten()[0]).all()):
        number = float(hidden.flatten()[0])
        if number > 0 and not _is_small(number, seen, past):
            by = maker(found, "mask_too_small", number)
            return part_of("mask", f"{number:+g} at masked scores", "mask_inverted", by, usual)
        if number:
            by = maker(found, "mask_too_small", number)
            return part_of("mask", f"{number:g} at masked scores", "mask_too_small", by, usual)
        products = [one for one in found.chain if one.name in TIMES and factor_of(one) is None]
        by = products[-1] if products else maker(found, "mask_multiplied")
        return part_of("mask", "scores · mask", "mask_multiplied", by, usual)
    product = product_of(seen)
    if factor is not None and product is not None:
        added = seen.scores.double() - product * factor
        (low, high), (low_seen, high_seen) = (map(float, added[..., where].aminmax()) for where in (~past, past))
        if max(high - low, high_seen - low_seen) < CLOSE and abs(low - low_seen) > CLOSE:
            number = low - low_seen
            if math.isclose(abs(number), 1, abs_tol=CLOSE):
                by = maker(found, "mask_added_as_bool", number)
                return part_of("mask", "scores + mask", "mask_added_as_bool", by, usual)
            cause = "mask_inverted" if number > 0 and not _is_small(number, seen, past) else "mask_too_small"
            by = maker(found, "mask_too_small", number)
            return part_of("mask", f"{number:+g} at masked scores", cause, by, usual)
    values = [one.results[0] for one in (found.first, *found.chain)]
    unused = _unused(flow, (one for value in values for one in flow.consumers[value]), found.chain)
    by = unused[-1] if unused else maker(found, "mask_not_applied")
    return part_of("mask", "every key", "mask_not_applied", by, USUAL)


def _is_small(number: float, seen: Watched, past: Tensor) -> bool:
    """Whether a number is no larger than the scores that a mask leaves as they are."""
    return abs(number) <= 2 * float(seen.scores[..., past].abs().max())


def _is_masked_later(found: FoundAttention, seen: Watched, past: Tensor) -> bool:
    """Whether a mask changes the weights of later keys, and the rows do not sum to 1."""
    pattern, softmax = seen.pattern.double(), seen.softmax.double()
    is_one = float((pattern.sum(dim=-1) - 1).nan_to_num(1.0, 1.0, 1.0).abs().max()) <= 0.01
    if is_one or found.is_masked_later or found.normalised != "key":
        return found.is_masked_later and not is_one
    added = (pattern - softmax).nan_to_num(1.0, 1.0, -1.0).clamp(-1.0, 1.0)
    (low, high), (low_later, high_later) = (map(float, added[..., where].aminmax()) for where in (past, ~past))
    return max(high - low, high_later - low_later) < CLOSE < abs(low - low_later)


def _unused(flow: Flow, operations: Iterable[Operation], chain: Collection[Operation]) -> list[Operation]:
    """Those of operations that mask scores, but whose result nothing reads."""
    masks = [one for one in operations if one.name in APPLIED and one not in chain]
    return [one for one in masks if not any(flow.consumers[value] for value in one.results)]


def product_of(seen: Watched) -> Float[Tensor, "batch head query key"] | None:
    """q·kᵀ, as recorded."""
    if seen.q is None or seen.k is None:
        return None
    product = seen.q.double() @ for_each_head(seen.k, seen.q.shape[1]).double().transpose(-2, -1)
    return product if product.shape == seen.scores.shape else None
