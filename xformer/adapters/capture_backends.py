"""The three ways to capture the attention of external models: `attention_function`, `softmax` and `returned_weights`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xformer.adapters.attention import (
    FORBIDDEN,
    SOFTMAXES,
    MaskLimits,
    Terms,
    attend,
    fused,
    multi_head_arguments,
    multi_head_attention,
    sdpa_arguments,
)
from xformer.adapters.module_map import ModuleMap
from xformer.adapters.on_demand import DeferredAttention, SpyTape, tensors_in
from xformer.adapters.probe import ActiveRun, active_run
from xformer.errors import EditError, InputError
from xformer.layer_path import Kind, LayerPath, Stack
from xformer.tape import SILENT, AnyTape, Tape

Backend = Literal["attention_function", "softmax", "returned_weights"]
BACKENDS: tuple[Backend, ...] = ("attention_function", "softmax", "returned_weights")
"""The capture backends, in the order in which they are tried."""
NAME = "xformer"
"""The name under which our attention is registered in Transformers; that of SDPA models ends in "_sdpa"."""


@cache
def register(*, like_sdpa: bool = False) -> str:
    """Register our attention function with Transformers, once per process, and return its name.

    Transformers' own functions treat masks differently. Eager attention adds them, also boolean ones, so a row without an
    allowed key gets uniform weights. SDPA reads boolean masks, and such a row gets no weight.

    A mask function must be registered as well, as a model would silently run without a causal mask otherwise.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    def whole_mask(*args: Any, **options: Any) -> Tensor | None:
        """The mask of SDPA, even where its kernel could hide later keys by itself."""
        return sdpa_mask(*args, **(options | {"allow_is_causal_skip": False}))

    name = f"{NAME}_sdpa" if like_sdpa else NAME
    AttentionInterface.register(name, partial(attention, like_sdpa=like_sdpa))
    AttentionMaskInterface.register(name, whole_mask if like_sdpa else eager_mask)
    return name


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    like_sdpa: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that Transformers models call instead of their own.

    Transformers passes q and k after rotation, and k and v before grouped heads are repeated. `like_sdpa`: treat masks as
    SDPA does; see `register`.

    Returns:
        z [batch, query, head, d_value] and the pattern, like every attention function of Transformers.
    """
    run = active_run()
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    mask, allowed = _cut(attention_mask, key), None
    if mask is None and like_sdpa and causal and query.shape[-2] > 1:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and like_sdpa and mask.dtype == torch.bool:
        if position_bias is None:
            mask, allowed = None, mask
        else:  # SDPA takes one mask, so both become one that is added
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    elif mask is not None and not mask.is_floating_point():
        mask = mask.to(query.dtype)
    terms = Terms(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        added=mask,
        allowed=allowed,
        bias=_cut(position_bias, key),
        softcap=softcap,
        sinks=s_aux if s_aux is not None else getattr(module, "sinks", None),
        is_causal=causal and query.shape[-2] == key.shape[-2],
        is_safe=like_sdpa,
    )
    if run is None:  # another caller's pass, perhaps in training
        return fused(query, key, value, terms, dropout).transpose(1, 2).contiguous(), None
    path = run.next_attention()
    tape = SILENT if path is None else run.tape.at(path)
    limits = run.limits_of(terms, query.shape[-2], key.shape[-2], query.device)
    can_fuse = (
        like_sdpa or limits.empty is None
    )  # in rows without an allowed key, the kernel is not like eager attention
    if tape is SILENT and run.observer is None and run.later is None and can_fuse:
        return fused(query, key, value, terms).transpose(1, 2).contiguous(), None
    if run.later is not None and path is not None and isinstance(run.tape, Tape):
        spy = SpyTape(run.tape.without_keeping().at(path))
        z, _ = attend(query, key, value, terms, spy, limits)
        run.tape.names.extend(f"{path}.{one}" for one in spy.names)
        reduced = None if run.reduce is None else run.reduce(path, spy.seen)
        run.later[path] = DeferredAttention(query, key, value, terms, limits, tuple(spy.names), reduced)
        return z.transpose(1, 2).contiguous(), None
    if run.observer is not None:
        run.observer.attention_begins(query.shape[-2], key.shape[-2], sees_later=sees_later(limits.allowed))
    z, pattern = attend(query, key, value, terms, tape, limits)
    out = z.transpose(1, 2).contiguous()  # [batch, query, head, d_value]
    if run.observer is not None:
        run.observer.attention_ends(out)
    return out, pattern


def _cut(added: Tensor | None, key: Tensor) -> Tensor | None:
    """Cut a mask or bias to the given keys; some models prepare it for more keys."""
    return None if added is None else added[..., : key.shape[-2]]


_PRODUCT = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)


class SoftmaxMode(TorchFunctionMode):
    """Captures attention in models that call no registered function: `torch.nn`'s and hand-written ones.

    Inside attention modules, or everywhere while they are still unknown, it watches

        scaled_dot_product_attention    computed step by step instead: everything can be read and edited
        multi_head_attention_forward    the same
        softmax over the keys           its input is the scores, its output the pattern
        matmul with that pattern        its output is z
    """

    def __init__(self, run: ActiveRun, *, everywhere: bool = False) -> None:
        super().__init__()
        self._run, self._everywhere = run, everywhere
        self._pattern: Tensor | None = None
        self._tape: AnyTape = SILENT

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if not (self._everywhere or self._run.depth):
            return func(*args, **options)
        if func is F.multi_head_attention_forward and (given := multi_head_arguments(args, options)):
            return multi_head_attention(partial(self._attend, is_safe=not given["need_weights"]), given)
        if func is F.scaled_dot_product_attention:
            given = sdpa_arguments(*args, **options)
            return self._attend(*given)[0] if given[0].dim() == 4 else func(*args, **options)
        if func in SOFTMAXES:
            return self._softmax(func, *args, **options)
        if func in _PRODUCT and self._pattern is not None and _is_same(args[0], self._pattern):
            self._pattern = None
            return self._heads("z", func(*args, **options), is_end=True)
        return func(*args, **options)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_safe: bool = True
    ) -> tuple[Tensor, Tensor]:
        """z and the pattern; a mask that is not boolean is added to the scores. `is_safe`: see `Terms`."""
        n_query, n_key = query.shape[-2], key.shape[-2]
        is_boolean = mask is not None and mask.dtype == torch.bool
        terms = Terms(scale, *((None, mask) if is_boolean else (mask, None)), is_safe=is_safe)
        if mask is not None and n_query == n_key:
            terms = replace(terms, is_causal=not sees_later(mask if is_boolean else mask > FORBIDDEN))
        limits = MaskLimits.of(terms, n_query, n_key, query.device)
        self._begin(n_query, n_key, sees_later=sees_later(limits.allowed))
        z, pattern = attend(query, key, value, terms, self._tape, limits)
        self._end(z)
        return z, pattern

    def _softmax(
        self, func: Callable[..., Any], input: Tensor, dim: int | None = None, *args: Any, **options: Any
    ) -> Tensor:
        scores = input
        if scores.dim() not in (3, 4) or not scores.is_floating_point() or dim not in (-1, scores.dim() - 1):
            return func(scores, dim, *args, **options)
        allowed = scores > FORBIDDEN  # the mask itself is gone; only its effect on the scores remains
        self._begin(*scores.shape[-2:], sees_later=sees_later(allowed))
        wanted = self._heads("mask", allowed)
        if wanted is not allowed:
            if bool((wanted & ~allowed).any()):
                raise EditError(
                    "This model's attention is captured at its softmax, where masked scores are lost. Edits can mask cells "
                    "there, but not unmask them."
                )
            scores = scores.masked_fill(~wanted, -math.inf)
        scores = self._heads("scores", scores)
        self._pattern = self._heads("pattern", func(scores, dim, *args, **options))
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
        """Pass a value through the tape as [batch, head, …], and return it in its own shape."""
        if self._tape is not SILENT:
            apart = value if value.dim() == 4 else value.unflatten(0, (self._run.n_batch, -1))
            changed = self._tape(name, apart)
            value = value if changed is apart else changed.reshape(value.shape)
        if is_end:
            self._end(value)
        return value


def _is_same(one: Any, other: Tensor) -> bool:
    """Whether two tensors share the same memory, possibly in different shapes."""
    return isinstance(one, Tensor) and one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def sees_later(allowed: Tensor) -> bool:
    """Whether any query may attend to a later key. The last query is at the last key."""
    return bool(allowed.triu(1 + max(0, allowed.shape[-1] - allowed.shape[-2])).any())


Pattern = Float[Tensor, "batch head query key"]

_NAMED: tuple[tuple[str, Stack, Kind], ...] = (
    ("encoder_attentions", "encoder", "attn"),
    ("decoder_attentions", "decoder", "self_attn"),
    ("cross_attentions", "decoder", "cross_attn"),
)
"""The attributes that hold an encoder-decoder's attention in Transformers."""


def requesting_attention(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs, with attention weights requested from a Transformers model."""
    is_transformers = hasattr(getattr(module, "config", None), "output_attentions")
    return inputs | {"output_attentions": True} if is_transformers else inputs


def returned_patterns(output: Any, stack: Stack | None = None) -> dict[LayerPath, Pattern]:
    """Find the attention weights in a model's output, in the order of the layers.

    Tensors whose rows are not distributions are skipped. `stack` is the stack of a model that has only one. None: detect it; a
    model without weight on later keys counts as a decoder.
    """
    found: dict[LayerPath, Pattern] = {}
    if getattr(output, "encoder_attentions", None) is not None:
        for name, side, kind in _NAMED:
            given = getattr(output, name, None) or ()
            found |= {LayerPath(side, layer, kind): one for layer, one in enumerate(given) if is_pattern(one)}
    else:
        named = getattr(output, "attentions", None)
        every = [one for one in (tensors_in(output) if named is None else named) if is_pattern(one)]
        if stack is None:
            own = [one for one in every if one.shape[-1] == one.shape[-2] > 1]
            stack = "decoder" if own and not any(bool(one.triu(1).any()) for one in own) else "encoder"
        found = {LayerPath(stack, at, "attn"): one if one.dim() == 4 else one[:, None] for at, one in enumerate(every)}
    return dict(sorted(found.items(), key=lambda one: (one[0].stack != "encoder", one[0].layer, one[0].is_cross)))


def returned_layout(output: Any) -> ModuleMap:
    """The sites of the returned weights. Raises `InputError` if there are none."""
    sites = tuple(returned_patterns(output))
    if not sites:
        raise InputError("It returns no attention weights either.")
    is_encoder_decoder = len({site.stack for site in sites}) == 2
    return ModuleMap(sites, tuple(("", index) for index in range(len(sites))), is_encoder_decoder=is_encoder_decoder)


def is_pattern(one: Any) -> bool:
    """Whether each row is a distribution, or all zero. The average of several heads counts as one head."""
    if not isinstance(one, Tensor) or one.dim() not in (3, 4) or not one.is_floating_point() or not one.numel():
        return False
    total = one.detach().float().sum(dim=-1)
    is_normalised = torch.isclose(total, torch.ones(()), atol=1e-3) | (total == 0)
    return bool((one >= 0).all() and is_normalised.all() and total.any())
