"""The causal mask, and the mask of padding. True: may be attended to."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, wrong


def causal_mask_of(n: int, *, shown: str = "earlier", form: str = "bool") -> Bool[Tensor, "query key"]:
    """Which keys a query may attend to; the keyword arguments make it wrong."""
    query, key = torch.arange(n)[:, None], torch.arange(n)
    mask = {
        "earlier": lambda: key <= query, "one_more": lambda: key <= query + 1, "strictly_earlier": lambda: key < query,
        "later": lambda: key > query, "transposed": lambda: key >= query, "all": lambda: key < n + query,
        "itself": lambda: key == query,
    }[shown]()  # fmt: skip
    if form == "bool":
        return mask
    return mask.float() if form == "number" else torch.zeros(n, n).masked_fill(~mask, -math.inf)


_TRIL = "torch.ones(n, n, dtype=torch.bool).tril()"
CAUSAL_MASK = AssignmentTask(
    "causal_mask",
    "Causal mask",
    [
        TaskPart(
            "causal_mask",
            causal_mask_of,
            lambda: [TaskCase(f"n = {n}", {"n": n}) for n in (5, 7, 2, 1)],
            {"output": "query key"},
            "Print causal_mask(4): which keys does the query 0 see, and which the query 3?",
            [
                wrong("mask_off_by_one", _TRIL, shown="one_more"),
                wrong("mask_excludes_itself", _TRIL, shown="strictly_earlier"),
                wrong("mask_inverted", _TRIL, "the mask is True where attention is forbidden", shown="later"),
                wrong("mask_transposed", _TRIL, "rows and columns are exchanged: a query sees itself and what is later",
                      shown="transposed"),
                wrong("mask_not_applied", _TRIL, "the mask hides nothing", shown="all"),
                wrong("mask_only_itself", _TRIL, "a query sees only itself", shown="itself"),
                wrong("mask_is_additive", _TRIL, "the mask is made of 0 and −inf, to be added; it should be bool",
                      form="additive"),
                wrong("mask_is_additive", _TRIL, "the mask is made of 0 and −inf, to be added; it should be bool",
                      form="additive", shown="one_more"),
                wrong("mask_not_bool", _TRIL, "the mask is made of numbers; it should be bool, since ~ is another "
                      "operation for numbers", form="number"),
                wrong("mask_not_bool", _TRIL, "the mask is made of numbers; it should be bool, since ~ is another "
                      "operation for numbers", form="number", shown="later"),
            ],
        )
    ],
)  # fmt: skip


def padding_mask_of(
    lengths: Int[Tensor, "batch"], n: int, *, shown: str = "tokens", axes: str = "keys"
) -> Bool[Tensor, "batch 1 1 key"]:
    """Which keys are tokens, not padding; the keyword arguments make it wrong."""
    at, length = torch.arange(n), lengths[:, None]
    mask = {
        "tokens": lambda: at < length, "one_more": lambda: at <= length, "one_less": lambda: at < length - 1,
        "padding": lambda: at >= length, "left": lambda: at >= n - length, "all": lambda: at < length + n,
    }[shown]()  # fmt: skip
    return {
        "keys": lambda: mask[:, None, None, :], "queries": lambda: mask[:, None, :, None], "none": lambda: mask,
        "query_key": lambda: mask[:, None, :], "number": lambda: mask[:, None, None, :].float(),
        "head_first": lambda: mask[None, :, None, :],
    }[axes]()  # fmt: skip


_BEFORE = "torch.arange(n) < lengths[:, None]"
_AXES = "mask[:, None, None, :]"
PADDING_MASK = AssignmentTask(
    "padding_mask",
    "Padding mask",
    [
        TaskPart(
            "padding_mask",
            padding_mask_of,
            lambda: [
                TaskCase(f"lengths {given}, n = {n}", {"lengths": torch.tensor(given), "n": n})
                for given, n in (((5, 3, 1), 5), ((7, 2), 7), ((0, 4, 6), 7), ((3, 3, 2), 3))
            ],
            {"output": "batch 1 1 key"},
            "Print padding_mask(torch.tensor([4, 2]), 5)[:, 0, 0]: the first `length` keys of a text are True.",
            [
                wrong("padding_inverted", _BEFORE, "the mask is True at the padding", shown="padding"),
                wrong("padding_off_by_one", _BEFORE, "one padded key counts as a token", shown="one_more"),
                wrong("padding_off_by_one", _BEFORE, "the last token counts as padding", shown="one_less"),
                wrong("padding_on_the_left", _BEFORE, "the mask is that of padding on the left", shown="left"),
                wrong("padding_not_masked", _BEFORE, "the mask hides no padded key", shown="all"),
                wrong("padding_on_queries", _AXES, "the mask hides rows of queries, not columns of keys", axes="queries"),
                wrong("mask_axes_missing", _AXES, "the axes of heads and queries are missing, so that the mask does not "
                      "broadcast to [batch, head, query, key]", axes="none"),
                wrong("mask_axes_missing", _AXES, "the axis of heads or of queries is missing, so that the batch is taken "
                      "for the heads", axes="query_key"),
                wrong("mask_axes_missing", _AXES, "the batch is at the place of the heads", axes="head_first"),
                wrong("mask_not_bool", "at < lengths[:, None], without .float()", "the mask is made of numbers; it should be "
                      "bool, since ~ is another operation for numbers", axes="number"),
            ],
        )
    ],
)  # fmt: skip
