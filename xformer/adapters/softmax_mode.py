"""Attention found by its softmax (rung 2), in models that call no registered function: `torch.nn`'s and hand-written ones.

While a run is on, PyTorch's own functions are watched inside the modules that hold an attention:

    scaled_dot_product_attention    written out step by step in its place: everything can be read and changed
    multi_head_attention_forward    likewise
    softmax over the keys           its input are the scores, its output the pattern
    matmul of that pattern          its output is z
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from xformer.adapters.attention import FORBIDDEN, Limits, Terms, attend, can_be_written_out, multi_head_attention
from xformer.adapters.probe import ActiveRun
from xformer.errors import EditError
from xformer.tape import SILENT, AnyTape

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_PRODUCT = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)


class SoftmaxMode(TorchFunctionMode):
    """Watches one run. `everywhere` also outside of known attention modules: while they are being found."""

    def __init__(self, run: ActiveRun, *, everywhere: bool = False) -> None:
        super().__init__()
        self._run, self._everywhere = run, everywhere
        self._pattern: Tensor | None = None
        self._tape: AnyTape = SILENT

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if not (self._everywhere or self._run.inside):
            return func(*args, **options)
        if func is F.multi_head_attention_forward and can_be_written_out(args, options):
            return multi_head_attention(self._attend, args, options)
        if func is F.scaled_dot_product_attention:
            return self._sdpa(*args, **options)
        if func in _SOFTMAX and self._is_over_keys(func, args, options):
            return self._softmax(func, args, options)
        if func in _PRODUCT and self._pattern is not None and _is_same(args[0], self._pattern):
            self._pattern = None
            return self._heads("z", func(*args, **options), is_end=True)
        return func(*args, **options)

    def _sdpa(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if query.dim() != 4:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        n_query, n_key = query.shape[-2], key.shape[-2]
        allowed = attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else None
        added = attn_mask if attn_mask is not None and allowed is None else None
        if is_causal:
            allowed = torch.ones(n_query, n_key, dtype=torch.bool, device=query.device).tril()
        terms = Terms(
            scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            added=added,
            allowed=allowed,
            is_causal=n_query == n_key and _is_causal(added, allowed),
        )
        return self._attend(query, key, value, terms)[0]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
        limits = Limits.of(terms, query.shape[-2], key.shape[-2], query.device)
        self._begin(query.shape[-2], key.shape[-2], sees_later=_sees_later(limits.allowed))
        z, pattern = attend(query, key, value, terms, self._tape, limits)
        self._end(z)
        return z, pattern

    def _is_over_keys(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        scores = args[0] if args else options["input"]
        dim = options.get("dim", args[1] if len(args) > 1 else None)
        return scores.dim() in (3, 4) and scores.is_floating_point() and dim in (-1, scores.dim() - 1)

    def _softmax(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        scores = args[0] if args else options["input"]
        allowed = scores > FORBIDDEN  # what a mask added to the scores is all that is left of it here
        self._begin(*scores.shape[-2:], sees_later=_sees_later(allowed))
        wanted = self._heads("mask", allowed)
        if wanted is not allowed:
            if bool((wanted & ~allowed).any()):
                raise EditError(
                    "This model's attention is read at its softmax, where a masked score is lost: a cell can be masked there, "
                    "but not opened."
                )
            scores = scores.masked_fill(~wanted, -math.inf)
        scores = self._heads("scores", scores)
        pattern = func(scores, *args[1:], **{name: value for name, value in options.items() if name != "input"})
        self._pattern = self._heads("pattern", pattern)
        return self._pattern

    def _begin(self, n_query: int, n_key: int, *, sees_later: bool) -> None:
        path = self._run.next_attention()
        self._tape = SILENT if path is None else self._run.tape.at(path)
        if self._run.observer is not None:
            self._run.observer.attention_begins(n_query, n_key, sees_later=sees_later)

    def _end(self, z: Tensor) -> None:
        if self._run.observer is not None:
            self._run.observer.attention_ends(z)

    def _heads(self, name: str, value: Tensor, *, is_end: bool = False) -> Tensor:
        """Through the tape as [batch, head, …], and back into its own shape."""
        if self._tape is not SILENT:
            apart = value if value.dim() == 4 else value.unflatten(0, (self._run.n_batch, -1))
            changed = self._tape(name, apart)
            value = value if changed is apart else changed.reshape(value.shape)
        if is_end:
            self._end(value)
        return value


def _is_same(one: Any, other: Tensor) -> bool:
    """Whether both are the same numbers in the same place, perhaps in another shape."""
    return isinstance(one, Tensor) and one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def _is_causal(added: Tensor | None, allowed: Tensor | None) -> bool:
    """Whether a mask keeps every query from what is later than itself."""
    sees = allowed if allowed is not None else None if added is None else added > FORBIDDEN
    return sees is not None and not _sees_later(sees)


def _sees_later(allowed: Tensor) -> bool:
    """Whether any query may look at a later key."""
    return bool(allowed.triu(1).any())
