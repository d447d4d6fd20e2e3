"""The three ways to capture the attention of external models: `attention_function`, `softmax` and `returned_weights`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.attention import (
    UNDERFLOW,
    MaskLimits,
    Terms,
    attend,
    for_each_head,
    fused,
    kernel_arguments,
    multi_head_arguments,
    multi_head_attention,
    permitted,
)
from xformer.adapters.mask_rows import LazyMask
from xformer.adapters.module_map import ModuleMap
from xformer.adapters.on_demand import DeferredAttention, attend_and_reduce
from xformer.adapters.probe import ActiveRun, AttentionCall, active_run
from xformer.errors import EditError, InputError
from xformer.layer_path import Kind, LayerPath, Stack
from xformer.program.backwards import is_distribution
from xformer.program.plan import COUNTED, AttentionPlan, WatchedOperand, WatchedTensor
from xformer.program.record import Address, Watcher, tensors_in
from xformer.tape import SILENT, AnyTape, Tape, TapeAt

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

    A mask function must be registered as well, as a model would silently run without a causal mask otherwise. A run with sums
    gets a `LazyMask`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    def mask(*args: Any, **options: Any) -> Tensor | LazyMask | None:
        """The mask of SDPA, even where its kernel could hide later keys by itself, or the additive mask of eager attention."""
        whole = {**options, "allow_is_causal_skip": False}
        run = active_run()
        if run is None or run.sums is None or not run.sums.has_lazy_masks:
            return sdpa_mask(*args, **whole) if like_sdpa else eager_mask(*args, **options)

        def rows(begin: int, end: int) -> Tensor:
            part = {"q_length": end - begin, "q_offset": options.get("q_offset", 0) + begin}
            every: dict[str, Any] = {**whole, **part, "allow_is_bidirectional_skip": False}
            found = sdpa_mask(**every)
            assert found is not None  # nothing may be skipped
            return found

        return LazyMask(rows)

    name = f"{NAME}_sdpa" if like_sdpa else NAME
    AttentionInterface.register(name, partial(attention, like_sdpa=like_sdpa))
    AttentionMaskInterface.register(name, cast(Any, mask))
    return name


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | LazyMask | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
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
    sums = None if run is None else run.sums
    mask: Any = _cut(attention_mask, key)
    allowed: Any = None
    if isinstance(mask, LazyMask):
        mask, allowed = None, mask
    elif mask is None and like_sdpa and causal and query.shape[-2] > 1 and sums is None:
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
        sinks=next((one for one in (s_aux, sinks) if one is not None), getattr(module, "sinks", None)),
        is_causal=causal and query.shape[-2] == key.shape[-2],
        is_safe=like_sdpa,
    )
    if run is not None and sums is not None:
        is_causal = like_sdpa and causal and mask is None and allowed is None
        path = run.next_attention()
        z = sums.attend(path, query, key, value, replace(terms, is_causal=is_causal))
        z = z if path is None else run.tape.at(path)("z", z)
        return z.transpose(1, 2).contiguous(), None
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
    if run.later is not None and run.most and path is not None and isinstance(run.tape, Tape):
        inner = run.tape.without_keeping().at(path)
        z, names, reduced = attend_and_reduce(query, key, value, terms, limits, inner, run.most)
        run.tape.names.extend(f"{path}.{one}" for one in names)
        run.later[path] = DeferredAttention(query, key, value, terms, limits, tuple(names), reduced)
        return z.transpose(1, 2).contiguous(), None
    seen = None if run.observer is None else run.observer.attention_begins(query.shape[-2], key.shape[-2])
    z, pattern = attend(query, key, value, terms, tape, limits)
    if run.observer is not None and seen is not None:
        seen.sees_later = sees_later(limits.allowed)
        run.observer.attention_ends(seen, z)
    return z.transpose(1, 2).contiguous(), pattern  # [batch, query, head, d_value]


def _cut(added: Any, key: Tensor) -> Any:
    """Cut a mask or bias to the given keys; some models prepare it for more keys."""
    return added[..., : key.shape[-2]] if isinstance(added, Tensor) else added


class ChangedLayoutError(EditError):
    """A run computed other attention than the model did when it was opened; `what` says what changed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} since the model was opened, so its attention cannot be trusted; use an input like the first one, or a "
            "copy of the model."
        )
        self.what = what


class PlannedAttention(Watcher):
    """Captures attention in models that call no registered function: `torch.nn`'s and hand-written ones.

    At the operations of a plan, made when the model was opened, scores, pattern and z pass through the tape as
    [batch, head, …], in whatever layout the model computes them. Fused functions are computed step by step instead.
    """

    def __init__(self, run: ActiveRun, plan: AttentionPlan) -> None:
        super().__init__()
        self._run, self._plan = run, plan
        self._places: dict[Address, list[tuple[int, int, str, WatchedTensor]]] = defaultdict(list)
        self._operands: dict[Address, list[tuple[int, int, WatchedOperand]]] = defaultdict(list)
        for layer, pieces in enumerate(plan.layers):
            for number, piece in enumerate(pieces):
                for name in ("z",) if piece.kernel else ("scores", "pattern", "z"):
                    watched: WatchedTensor = getattr(piece, name)
                    self._places[watched.address].append((layer, number, name, watched))
                for operand in piece.operands:
                    self._operands[operand.address].append((layer, number, operand))
        self._heads: dict[tuple[int, str], dict[int, Tensor]] = defaultdict(dict)
        """The values of the heads of a layer that are computed one by one."""
        self._attentions: dict[int, AttentionCall] = {}
        self._low: dict[tuple[int, int], Tensor] = {}
        """Where the mask comes later: whether each score of a running attention is too low for a weight."""
        self._begun: set[tuple[int, int]] = set()
        """The attentions whose scores were computed."""
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def is_paused(self) -> bool:
        """Whether a hook of the run is being served."""
        return self._run.is_aside

    def on_operation(self, address: Address, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a function, with its result passed through the tape if it is part of an attention."""
        self._counts[address.module, address.name] += 1
        places = self._places.get(address, [])
        if places and self._plan.layers[places[0][0]][places[0][1]].kernel:
            return self._kernel(*places[0][:2], places[0][3], func, args, kwargs)
        for layer, number, operand in self._operands.get(address, []):
            args = self._with_operand(args, layer, number, operand)
        returned = func(*args, **kwargs)
        for layer, number, name, watched in places:
            returned = self._replaced(returned, args, layer, number, name, watched)
        return returned

    def check_complete(self) -> None:
        """Raise `ChangedLayoutError` if the run computed more or less around its attention than when the model was opened."""
        wanted = self._plan.counts
        for place in {*wanted, *(one for one in self._counts if one[1] in COUNTED)}:
            n, known = self._counts[place], wanted.get(place, 0)
            if known is not None and n != known:
                where = place[0] or "the model"
                raise ChangedLayoutError(f"Calls of {place[1]} in {where} changed from {known} to {n}")

    def _fits(self, value: Any, watched: WatchedTensor | WatchedOperand) -> Tensor:
        """The tensor at a place of the plan.

        Raises:
            ChangedLayoutError: It has another number of axes.
            InputError: It is empty, as where an input is shorter than a patch.
        """
        where = watched.address.module or "the model"
        if not isinstance(value, Tensor) or value.dim() != len(watched.layout.factors):
            raise ChangedLayoutError(f"What {watched.address.name} computes in {where} changed")
        if not value.numel():
            raise InputError(f"The attention in {where} has no positions for this input; give a longer one.")
        return value

    def _with_operand(self, args: tuple[Any, ...], layer: int, number: int, operand: WatchedOperand) -> tuple[Any, ...]:
        """The arguments of a product, with its queries, keys or values passed through the tape, one for each head."""
        given = self._fits(args[operand.argument] if operand.argument < len(args) else None, operand)
        try:
            own = operand.layout.to_heads(given).clone()  # a cache of keys changes in later runs
        except InputError:  # with one text and one position, axes of size 1 are not distinguished
            return args
        heads = for_each_head(own, self._plan.layers[layer][number].pattern.layout.n_heads)
        changed = self._passed(layer, number, operand.name, heads)
        if changed is heads:
            return args
        new = operand.layout.from_heads(changed[:, :: heads.shape[1] // own.shape[1]], args[operand.argument])
        return (*args[: operand.argument], new, *args[operand.argument + 1 :])

    def _replaced(
        self, returned: Any, args: tuple[Any, ...], layer: int, number: int, name: str, watched: WatchedTensor
    ) -> Any:
        """A function's return value, with one tensor of it passed through the tape."""
        every = tensors_in(returned)
        value = self._fits((every[watched.result : watched.result + 1] or [*args, None])[0], watched)
        if name == "scores":
            self._begun.add((layer, number))
        elif (layer, number) not in self._begun:
            raise ChangedLayoutError("The operation that computes scores changed")
        heads = watched.layout.to_heads(value)
        changed = getattr(self, f"_{name}")(layer, number, heads)
        if changed is heads:
            return returned
        new = watched.layout.from_heads(changed, value)
        if not every or (args and value is args[0]):  # changed in place
            value.copy_(new)
            return returned
        if isinstance(returned, Tensor):
            return new
        return type(returned)(new if one is value else one for one in returned)

    def _scores(self, layer: int, number: int, scores: Tensor) -> Tensor:
        piece = self._plan.layers[layer][number]
        axis = -1 if piece.normalised == "key" else -2
        self._begin(layer, number, *scores.shape[-2:])
        if piece.is_masked_later:
            self._low[layer, number] = scores < scores.amax(dim=axis, keepdim=True) - UNDERFLOW
        else:
            allowed = permitted(scores, axis)  # the mask itself is gone; only its effect on the scores remains
            wanted = self._passed(layer, number, "mask", allowed)
            self._saw(layer, allowed)
            if wanted is not allowed:
                _check_only_masks(wanted, allowed)
                scores = scores.masked_fill(~wanted, -math.inf)
        return self._passed(layer, number, "scores", scores)

    def _pattern(self, layer: int, number: int, pattern: Tensor) -> Tensor:
        if self._plan.layers[layer][number].is_masked_later:
            allowed = (pattern != 0) | self._low.pop((layer, number))
            self._saw(layer, allowed)
            wanted = self._passed(layer, number, "mask", allowed)
            if wanted is not allowed:
                _check_only_masks(wanted, allowed)
                kept = pattern.masked_fill(~wanted, 0.0)
                total = kept.sum(dim=-1, keepdim=True)
                pattern = torch.where(total > 0, kept / total * pattern.sum(dim=-1, keepdim=True), kept)
        return self._passed(layer, number, "pattern", pattern)

    def _z(self, layer: int, number: int, z: Tensor) -> Tensor:
        changed = self._passed(layer, number, "z", z)
        self._end(layer, number, changed)
        return changed

    def _kernel(
        self,
        layer: int,
        number: int,
        watched: WatchedTensor,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        """A fused function, computed step by step."""

        def stepwise(
            query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, *, is_safe: bool = True
        ) -> tuple[Tensor, Tensor]:
            n_query, n_key = query.shape[-2], key.shape[-2]
            is_boolean = mask is not None and mask.dtype == torch.bool
            terms = Terms(scale, *((None, mask) if is_boolean else (mask, None)), is_safe=is_safe)
            if mask is not None and n_query == n_key:
                terms = replace(terms, is_causal=not sees_later(mask if is_boolean else permitted(mask)))
            limits = MaskLimits.of(terms, n_query, n_key, query.device)
            self._begin(layer, number, n_query, n_key)
            self._saw(layer, limits.allowed)
            is_alone = len(self._plan.layers[layer]) == 1
            tape = self._tape(layer) if is_alone else _PieceTape(self, layer, number)
            z, pattern = attend(query, key, value, terms, tape, limits)
            self._end(layer, number, z)
            return z, pattern

        if func is F.multi_head_attention_forward:
            given = multi_head_arguments(args, kwargs)
            if given is None:
                raise InputError("nn.MultiheadAttention with add_bias_kv or add_zero_attn is not supported.")
            return multi_head_attention(partial(stepwise, is_safe=not given["need_weights"]), given)
        name = self._plan.layers[layer][number].kernel
        arguments = kernel_arguments(name, watched.layout, args, kwargs)
        assert arguments is not None
        z, _ = stepwise(*arguments)
        query = args[0] if args else kwargs["query"]
        out = watched.layout.from_heads(z, query.new_empty((*query.shape[:-1], z.shape[-1]), device="meta"))
        return (out, *func(*args, **kwargs)[1:]) if name == "flex_attention" else out

    def _tape(self, layer: int) -> AnyTape:
        paths = self._run.attention_paths
        return self._run.tape.at(paths[layer]) if layer < len(paths) else SILENT

    def _begin(self, layer: int, number: int, n_query: int, n_key: int) -> None:
        observer = self._run.observer
        if number == 0:
            self._run.n_attentions += 1
            if observer is not None:
                self._attentions[layer] = observer.attention_begins(n_query, n_key)
        elif observer is not None:
            observer.attention_goes_on(self._attentions[layer])

    def _saw(self, layer: int, allowed: Tensor) -> None:
        if self._run.observer is not None:
            self._attentions[layer].sees_later |= sees_later(allowed)

    def _end(self, layer: int, number: int, z: Tensor) -> None:
        if self._run.observer is None:
            return
        self._heads[layer, "end"][number] = z
        if number == len(self._plan.layers[layer]) - 1:
            every = torch.cat(list(self._heads[layer, "end"].values()), dim=1)
            self._run.observer.attention_ends(self._attentions[layer], every)

    def _passed(self, layer: int, number: int, name: str, value: Tensor) -> Tensor:
        """Pass a value through the tape, with those of the other heads of its layer so far, and zeros for later ones."""
        tape, n = self._tape(layer), len(self._plan.layers[layer])
        if tape is SILENT or n == 1:
            return tape(name, value)
        heads = self._heads[layer, name]
        heads[number] = value
        every = torch.cat([heads.get(one, torch.zeros_like(value)) for one in range(n)], dim=1)
        changed = tape(name, every)
        return value if changed is every else changed[:, number : number + 1]


class _PieceTape(TapeAt):
    """The tape of one head of a layer whose heads are computed one by one."""

    def __init__(self, attention: PlannedAttention, layer: int, number: int) -> None:
        self._pass = partial(attention._passed, layer, number)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value if name == "causal" else self._pass(name, value)


def _check_only_masks(wanted: Tensor, allowed: Tensor) -> None:
    if bool((wanted & ~allowed).any()):
        raise EditError(
            "This model's attention is captured at its softmax, where masked scores are lost. Edits can mask cells there, "
            "but not unmask them."
        )


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
    return is_distribution(one.detach())
