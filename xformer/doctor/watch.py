"""Capture the queries, keys, scores, softmax and weights of attention from a model's own code.

    for seen in watch(model, run):
        seen.layer, seen.q, seen.k, seen.scores, seen.weights

`TokenModel.record` replaces the attention of Transformers models by xformer's. Here the model's own attention runs, and the
PyTorch functions that it calls are intercepted: the product of q and k, the softmax, the product with v, or an SDPA kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xformer.adapters import attention as written_out
from xformer.adapters.attention import FORBIDDEN, for_each_head
from xformer.adapters.module_map import Chain, Layers
from xformer.adapters.on_demand import tensors_in
from xformer.doctor.token_model import ModelCall, TokenModel
from xformer.model import Transformer

PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, Tensor.matmul, Tensor.bmm, Tensor.baddbmm, Tensor.__matmul__)


@dataclass(eq=False)
class Watched:
    """One attention operation of a run.

    Attributes:
        path: The module that computes it.
        layer: Its layer in its stack, from 0; None if it could not be determined.
        entered: The input of the innermost module with a stream as input, [batch, pos, features]; None if there is none.
        q: The queries in the product with the keys; None if they could not be identified.
        k: The keys, per query head or per group; None if they could not be identified.
        v: The values, per query head or per group; None if they could not be identified.
        scores: The input of the softmax, masked.
        axis: The axis of the softmax; −1 is the key axis.
        softmax: The output of the softmax.
        weights: The weights that are multiplied with the values; None if the product was not seen.
        has_sink: Whether the softmax includes one extra score that belongs to no key (an attention sink).
        is_kernel: Whether an SDPA kernel computed the attention; softmax and weights are then computed from q and k.
    """

    path: str
    layer: int | None
    entered: Float[Tensor, "batch pos features"] | None
    q: Float[Tensor, "batch head query d_head"] | None
    k: Float[Tensor, "batch kv_head key d_head"] | None
    scores: Float[Tensor, "batch head query key"]
    axis: int
    softmax: Float[Tensor, "batch head query key"]
    weights: Float[Tensor, "batch head query key"] | None = None
    v: Float[Tensor, "batch kv_head key d_value"] | None = None
    has_sink: bool = False
    is_kernel: bool = False

    @property
    def pattern(self) -> Float[Tensor, "batch head query key"]:
        """The weights that are multiplied with the values, or the softmax if the product was not seen."""
        return self.softmax if self.weights is None else self.weights

    @property
    def is_square(self) -> bool:
        """Whether there are as many keys as queries."""
        return self.key_scores.shape[-1] == self.key_scores.shape[-2]

    @property
    def key_scores(self) -> Float[Tensor, "batch head query key"]:
        """The scores without the sink's."""
        return self.scores[..., :-1] if self.has_sink else self.scores

    @property
    def allowed(self) -> Tensor:
        """True where the mask lets a query attend to a key."""
        return self.key_scores > FORBIDDEN


@dataclass(frozen=True, eq=False)
class Event:
    """What a run computed at one point: the inputs or outputs of a module, or an attention."""

    kind: Literal["input", "output", "attention"]
    chain: Chain
    number: int
    """The number of earlier events of this kind in this module."""
    module: nn.Module
    values: tuple[Tensor, ...] = ()
    """The floating-point tensors of an input or output."""
    attention: Watched | None = None

    @property
    def path(self) -> str:
        """The path of the innermost module."""
        return self.chain[-1][0]

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies the event in another run of the same model."""
        return self.kind, self.path, self.number


class AttentionWatcher(TorchFunctionMode):
    """Collect the attention operations of one run of a module, in forward order; with `keep`, all inputs and outputs too."""

    def __init__(self, module: nn.Module, n_batch: int, *, keep: bool = False) -> None:
        super().__init__()
        self.seen: list[Watched] = []
        self.events: list[Event] = []
        self._n_batch, self._keep, self._products = n_batch, keep, []
        self._open: Watched | None = None
        self._module = module
        self._stack: list[tuple[str, int, Tensor | None]] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._hooks = [hook for path, one in module.named_modules() for hook in self._follow(path, one)]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    @property
    def path(self) -> str:
        """The path of the innermost running module."""
        return self._stack[-1][0] if self._stack else ""

    def _follow(self, path: str, module: nn.Module) -> Sequence[Any]:
        def enter(_: nn.Module, args: Any, options: Any) -> None:
            given = [one for one in (*args, *options.values()) if isinstance(one, Tensor)]
            stream = next((one for one in given if one.dim() == 3 and one.is_floating_point()), None)
            number = self._counts["calls", path]
            self._counts["calls", path] += 1
            self._stack.append((path, number, stream))
            self._happens("input", module, given)

        def leave(_: nn.Module, __: Any, output: Any) -> None:
            self._happens("output", module, tensors_in(output))
            self._stack.pop()

        return (
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave, always_call=True),
        )

    def _happens(
        self,
        kind: Literal["input", "output", "attention"],
        module: nn.Module,
        values: Sequence[Tensor] = (),
        attention: Watched | None = None,
    ) -> None:
        if attention is None and (not self._keep or len(self._stack) == 1):  # the model's own are not a module's
            return
        chain = tuple((path, number) for path, number, _ in self._stack)
        key = (kind, self.path)
        # copied, because a later operation may modify them in place
        kept = tuple(one.detach().to("cpu", copy=True) for one in values if one.is_floating_point())
        self.events.append(Event(kind, chain, self._counts[key], module, kept, attention))
        self._counts[key] += 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention:
            output = func(*args, **options)
            self._kernel(*written_out.sdpa_arguments(*args, **options))
            return output
        given = written_out.multi_head_arguments(args, options) if func is F.multi_head_attention_forward else None
        if given is not None:
            return written_out.multi_head_attention(self._written_out, given)
        is_product = func is torch.einsum or func in PRODUCTS
        factors = [one for one in (*args, *options.values()) if isinstance(one, Tensor)][-2:] if is_product else []
        is_mixing = self._open is not None and self._weights(factors, has_layout=func in PRODUCTS)
        output = func(*args, **options)
        if is_product and not is_mixing:
            self._products.append((output.shape, factors if func in PRODUCTS else ()))
        elif func in (F.softmax, torch.softmax, Tensor.softmax):
            self._softmax(args, options, output)
        return output

    def _heads(self, value: Tensor) -> Tensor:
        """Convert any layout of heads to [batch, head, …]."""
        if value.dim() == 5:
            return value.flatten(1, 2)
        return value.unflatten(0, (self._n_batch, -1)) if value.dim() == 3 else value

    def _softmax(self, args: tuple[Any, ...], options: dict[str, Any], output: Tensor) -> None:
        scores = args[0] if args else options["input"]
        axis = options.get("dim", args[1] if len(args) > 1 else None)
        if scores.dim() not in (3, 4, 5) or axis is None or scores.shape[0] % self._n_batch:
            return
        n_query, n_key = scores.shape[-2:]
        fitting = [
            (shape[-1], factors)
            for shape, factors in self._products
            if shape.numel() in (scores.numel(), scores.numel() // n_key * (n_key - 1))
            and tuple(shape[-2:]) in ((n_query, n_key), (n_query, n_key - 1))
        ]
        if not fitting:  # the softmax of a router or of the output
            return
        self._products = []
        n_product, factors = fitting[0]
        q, k = (self._heads(one) for one in factors) if factors else (None, None)
        if k is not None and k.dim() == 4 and q is not None:
            k = k.transpose(-2, -1)
        axis = axis - scores.dim() if axis >= 0 else axis
        self._add(q, k, self._heads(scores), axis, self._heads(output.clone()))  # the model may modify it in place
        self._open = self.seen[-1]
        self._open.has_sink = n_product < n_key

    def _weights(self, factors: Sequence[Tensor], *, has_layout: bool) -> bool:
        """Return whether this product is weights · values of the open attention; if so, store both."""
        assert self._open is not None
        scores = self._open.key_scores
        for one in factors:
            if one.dim() in (3, 4, 5) and one.shape[-2:] == scores.shape[-2:] and one.numel() == scores.numel():
                self._open.weights = self._heads(one)
                self._open.v = self._heads(factors[-1]) if has_layout else None
                self._open = None
                return True
        return False

    def _add(self, q: Tensor | None, k: Tensor | None, scores: Tensor, axis: int, softmax: Tensor) -> None:
        entered = next((stream for *_, stream in reversed(self._stack) if stream is not None), None)
        one = Watched(self.path, None, entered, q, k, scores, axis, softmax)
        self.seen.append(one)
        self._happens("attention", self._module.get_submodule(self.path), attention=one)

    def _kernel(self, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> None:
        q, k = self._heads(query), self._heads(key)
        scores = q @ for_each_head(k, q.shape[1]).transpose(-2, -1) * scale
        if mask is not None:
            mask = self._heads(mask) if mask.dim() != 2 else mask
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        self._computed(q, k, self._heads(value), scores)

    def _computed(self, q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> Tensor:
        pattern = scores.softmax(dim=-1)
        self._products = []
        self._add(q, k, scores, -1, pattern)
        one = self.seen[-1]
        one.weights, one.v, one.is_kernel = pattern, v, True
        return pattern

    def _written_out(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, added: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        scores = q @ k.transpose(-2, -1) * scale
        pattern = self._computed(q, k, v, scores if added is None else scores + added)
        return pattern @ v, pattern


def watch(model: TokenModel, run: ModelCall, *, by_steps: bool = False) -> list[Watched]:
    """Return the attention operations of a run, in forward order; empty if none was seen.

    Args:
        model: The model.
        run: The arguments of the call.
        by_steps: Whether to take the path that computes the softmax explicitly, if the model has one.
    """
    if by_steps and isinstance(model.module, Transformer):
        return watch_outputs(model, replace(run, recorded=True))[0]
    return watch_outputs(stepwise(model) if by_steps else model, run)[0]


def watch_outputs(model: TokenModel, run: ModelCall) -> tuple[list[Watched], Float[Tensor, "batch out vocab"]]:
    """Return the attention operations of a run, as `watch` does, and the outputs of the run."""
    watching, outputs = _watched(model, run)
    return watching.seen, outputs


def watch_events(model: TokenModel, run: ModelCall) -> tuple[list[Event], Layers]:
    """Return everything that the modules of a run read and computed, in forward order, and the layers of the model."""
    watching, outputs = _watched(model, run, keep=True)
    events = [*watching.events, Event("output", (("output", 0),), 0, model.module, (outputs.cpu(),))]
    return events, Layers(model.module, [one.path for one in watching.seen])


@torch.no_grad()
def _watched(model: TokenModel, run: ModelCall, *, keep: bool = False) -> tuple[AttentionWatcher, Tensor]:
    model = model.shared()
    last_call = model.last_call(run)
    with AttentionWatcher(model.module, len(run.tokens), keep=keep) as watching:
        outputs = last_call()
    layers = Layers(model.module, [one.path for one in watching.seen])
    for event in watching.events:
        if event.attention is not None:
            event.attention.layer = layers.of(event.chain)
    return watching, outputs


def stepwise(model: TokenModel) -> TokenModel:
    """Return a copy that computes attention with an explicit softmax (eager), if the model has that path."""
    model = model.shared()
    if model.is_transformers and getattr(model.module.config, "_attn_implementation", "eager") != "eager":
        model.module.set_attn_implementation("eager")  # pyright: ignore[reportCallIssue]
    return model
