"""Changes of the activations of one run, passed as `edits=`; the model itself is not changed.

    record(model, tokens, edits=[edits.ablate_head("encoder.1.attn", 2)])

Each edit selects activations by a glob (`*` matches anything, dots included), returns new tensors, and raises `EditError`
when it does not fit an activation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.errors import EditError
from xformer.tape import Edit

__all__ = [
    "Edit", "ablate_head", "ablate_neuron", "apply", "mask_edges", "patch_from", "replace", "replace_pattern", "scale",
    "set_causal", "set_mask", "steer", "unmask_edges", "zero_positions",
]  # fmt: skip

Edges = Sequence[tuple[int, int]]
"""Pairs (query, key)."""


@runtime_checkable
class Activations(Protocol):
    """A mapping from names to the activations of a run, such as a `Trace`."""

    def __getitem__(self, name: str, /) -> Tensor: ...


@dataclass(frozen=True)
class AblateHead(Edit):
    """Ablate a head: its z becomes 0 before the output projection."""

    head: int

    def apply(self, name: str, value: Tensor) -> Tensor:
        return _at_heads(name, value, (self.head,), torch.zeros_like(value))


@dataclass(frozen=True)
class AblateNeuron(Edit):
    """Ablate a neuron: its activation after the nonlinearity becomes 0 at every position."""

    neuron: int

    def apply(self, name: str, value: Tensor) -> Tensor:
        if not 0 <= self.neuron < value.shape[-1]:
            raise EditError(f"{name} has neurons 0 to {value.shape[-1] - 1}, got {self.neuron}.")
        chosen = torch.arange(value.shape[-1], device=value.device) == self.neuron  # [d_ff]
        return value.masked_fill(chosen, 0.0)


@dataclass(frozen=True)
class SetEdges(Edit):
    """Forbid or allow single (query, key) cells of the mask; the rest of the mask is unchanged."""

    edges: tuple[tuple[int, int], ...]
    allowed: bool
    heads: tuple[int, ...] | None = None
    grows: bool = False
    """Whether edges of positions that do not exist yet, as during decoding, are ignored; otherwise they are an error."""

    def apply(self, name: str, value: Tensor) -> Tensor:
        n_query, n_key = value.shape[-2:]
        chosen = torch.zeros(n_query, n_key, dtype=torch.bool, device=value.device)  # [query, key]
        for query, key in self.edges:
            if 0 <= query < n_query and 0 <= key < n_key:
                chosen[query, key] = True
            elif not self.grows:
                raise EditError(
                    f"{name} has queries 0 to {n_query - 1} and keys 0 to {n_key - 1}, so there is no edge "
                    f"({query}, {key}); for example (0, 0)."
                )
        changed = value | chosen if self.allowed else value & ~chosen
        return _at_heads(name, value, self.heads, changed)


@dataclass(frozen=True)
class SetMask(Edit):
    """Replace the whole mask of an attention layer, padding included, by another mask [query, key]."""

    mask: Tensor = field(repr=False)
    heads: tuple[int, ...] | None = None

    def apply(self, name: str, value: Tensor) -> Tensor:
        return _at_heads(name, value, self.heads, _fit(name, self.mask, value))


@dataclass(frozen=True)
class SetCausal(Edit):
    """Impose or remove the causal mask; padding stays masked either way."""

    on: bool

    def apply(self, name: str, value: Tensor) -> Tensor:
        everything = torch.ones_like(value)  # [query, key]
        return everything.tril(value.shape[-1] - value.shape[-2]) if self.on else everything


@dataclass(frozen=True)
class Replace(Edit):
    """Replace an activation (or some of its heads or positions) by another tensor."""

    value: Tensor = field(repr=False)
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None

    def apply(self, name: str, value: Tensor) -> Tensor:
        new = _fit(name, self.value, value)
        return _at_heads(name, value, self.heads, _at_positions(name, value, self.positions, new))


@dataclass(frozen=True)
class Scale(Edit):
    """Multiply an activation (or some of its heads) by a factor; a masked score stays masked."""

    factor: float
    heads: tuple[int, ...] | None = None

    def apply(self, name: str, value: Tensor) -> Tensor:
        scaled = torch.where(value.isneginf(), value, value * self.factor)
        return _at_heads(name, value, self.heads, scaled)


@dataclass(frozen=True)
class Steer(Edit):
    """Add a scaled vector to an activation at all or some positions."""

    vector: Tensor = field(repr=False)
    scale: float
    positions: tuple[int, ...] | None = None

    def apply(self, name: str, value: Tensor) -> Tensor:
        if self.vector.shape != value.shape[-1:]:
            raise EditError(
                f"{name} has the shape {list(value.shape)}, so a vector of {value.shape[-1]} numbers can be added at its "
                f"positions, got one of shape {list(self.vector.shape)}."
            )
        added = value + self.scale * self.vector.to(value.device, value.dtype)
        return _at_positions(name, value, self.positions, added)


@dataclass(frozen=True, eq=False)
class Apply(Edit):
    """Replace an activation by the result of a function."""

    function: Callable[[Tensor], Tensor]

    def apply(self, name: str, value: Tensor) -> Tensor:
        changed = self.function(value.clone())  # the function may write into its argument
        if not isinstance(changed, Tensor):
            raise EditError(f"The function applied to {name} must return a tensor, got {type(changed).__name__}.")
        if changed.shape != value.shape:
            raise EditError(
                f"The function applied to {name} must return the shape {list(value.shape)}, got {list(changed.shape)}."
            )
        return changed.to(value.device, value.dtype)


@dataclass(frozen=True)
class ZeroPositions(Edit):
    """Set the position encoding to 0: added vectors, rotation angles, score biases."""

    def apply(self, name: str, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Watch(Edit):
    """Change nothing, and keep each matching activation as a point at which a gradient can be computed."""

    seen: dict[str, Tensor] = field(repr=False)
    needs_graph = True

    def apply(self, name: str, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        point = self.seen.setdefault(name, value if value.requires_grad else value.detach().requires_grad_())
        return point.clone()  # the model may modify the returned tensor in place


@dataclass(frozen=True, eq=False)
class ReplaceParts(Edit):
    """Replace parts of an activation, each in a single row of the batch; other rows are unchanged."""

    parts: tuple[tuple[int, tuple[Any, ...]], ...]
    """Pairs of a row and the index of the part within that row."""
    value: Tensor | None = field(default=None, repr=False)
    """An activation whose first row supplies the new values; None: they are 0."""

    def apply(self, name: str, value: Tensor) -> Tensor:
        changed = value.clone()
        for row, part in self.parts:
            changed[row][part] = 0.0 if self.value is None else self.value[0][part].to(value)
        return changed


def ablate_head(attention: str, head: int) -> AblateHead:
    """Set the output of one head to zero, before the output projection.

    Args:
        attention: The path of an attention layer, or a glob: "encoder.1.attn".
        head: The head, from 0.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> edit = xformer.edits.ablate_head("encoder.1.attn", 2)
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
        >>> float(changed["encoder.1.attn.z"][0, 2].abs().sum())
        0.0
    """
    return AblateHead(f"{attention}.z", _whole(head))


def ablate_neuron(feed_forward: str, neuron: int) -> AblateNeuron:
    """Set one neuron of a feed-forward layer to zero at every position, after the nonlinearity.

    Args:
        feed_forward: The path of a feed-forward layer: "encoder.0.ffn".
        neuron: The neuron, from 0.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> edit = xformer.edits.ablate_neuron("encoder.0.ffn", 17)
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
        >>> float(changed["encoder.0.ffn.post"][..., 17].abs().sum())
        0.0
    """
    return AblateNeuron(f"{feed_forward}.post", _whole(neuron))


def mask_edges(attention: str, edges: Edges, heads: Iterable[int] | None = None) -> SetEdges:
    """Prevent queries from attending to keys: cells of the mask become false.

    Args:
        attention: The path of an attention layer: "encoder.1.attn".
        edges: Pairs (query, key), positions from 0.
        heads: The heads, from 0; all of them by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> edit = xformer.edits.mask_edges("encoder.1.attn", [(0, 3)], heads=[2])
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
        >>> float(changed["encoder.1.attn.pattern"][0, 2, 0, 3])
        0.0
    """
    return SetEdges(f"{attention}.mask", _pairs(edges), allowed=False, heads=_tuple(heads))


def unmask_edges(attention: str, edges: Edges, heads: Iterable[int] | None = None) -> SetEdges:
    """Let queries attend to keys regardless of any other mask: cells of the mask become true.

    Args:
        attention: The path of an attention layer: "decoder.0.attn".
        edges: Pairs (query, key), positions from 0.
        heads: The heads, from 0; all of them by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> edit = xformer.edits.unmask_edges("decoder.0.attn", [(0, 3)])
        >>> changed = xformer.read("checkpoints/reverse-decoder", "5 3 9 1", edits=[edit])
        >>> bool(changed["decoder.0.attn.pattern"][0, 0, 0, 3] > 0)
        True
    """
    return SetEdges(f"{attention}.mask", _pairs(edges), allowed=True, heads=_tuple(heads))


def set_mask(attention: str, mask: Bool[Tensor, "*batch query key"], heads: Iterable[int] | None = None) -> SetMask:
    """Replace the whole mask of an attention layer, padding included, by a boolean mask.

    Args:
        attention: The path of an attention layer: "encoder.1.attn".
        mask: True where a query may attend, [query, key], [head, query, key] or [batch, head, query, key].
        heads: The heads, from 0; all of them by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Raises:
        EditError: The mask is not boolean. In an additive mask 0 means "may attend", the opposite of false.

    Example:
        >>> import torch, xformer
        >>> edit = xformer.edits.set_mask("encoder.1.attn", torch.eye(4, dtype=torch.bool))
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
        >>> bool((changed["encoder.1.attn.pattern"][0, 0] == torch.eye(4)).all())
        True
    """
    if mask.dtype != torch.bool:
        raise EditError(
            f"A mask must be boolean, true where a query may attend, got {mask.dtype}; for an additive mask of 0 and −∞ pass "
            "mask == 0."
        )
    return SetMask(f"{attention}.mask", mask, _tuple(heads))


def set_causal(on: bool, attention: str = "*attn") -> SetCausal:
    """Impose or remove the causal mask of self-attention. Padding stays masked.

    Args:
        on: Whether positions see only themselves and earlier positions.
        attention: The path of an attention layer, or a glob; every layer by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[xformer.edits.set_causal(True)])
        >>> float(changed["encoder.0.attn.pattern"][0, 0, 0, 1:].sum())
        0.0
    """
    return SetCausal(f"{attention}.causal", on)


def replace(name: str, value: Tensor, *, heads: Iterable[int] | None = None) -> Replace:
    """Replace an activation by a tensor.

    Args:
        name: The activation, or a glob.
        value: A tensor of the activation's shape; a missing batch axis, or one of size 1, is expanded to the batch.
        heads: Only these heads, from 0, of an activation [batch, head, ...].

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`. The run raises `EditError` if the shape does not fit.

    Example:
        >>> import torch, xformer
        >>> edit = xformer.edits.replace("encoder.0.attn.z", torch.zeros(4, 4, 16), heads=[1])
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
    """
    return Replace(name, value, _tuple(heads))


def replace_pattern(
    attention: str, pattern: Float[Tensor, "*batch query key"], heads: Iterable[int] | None = None
) -> Replace:
    """Replace the attention pattern of a layer.

    Args:
        attention: The path of an attention layer: "encoder.1.attn".
        pattern: The weights, [query, key] for all heads, [head, query, key] or [batch, head, query, key].
        heads: The heads, from 0; all of them by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import torch, xformer
        >>> uniform = torch.full((4, 4), 0.25)
        >>> edit = xformer.edits.replace_pattern("encoder.1.attn", uniform, heads=[2])
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
    """
    return Replace(f"{attention}.pattern", pattern, _tuple(heads))


def scale(name: str, factor: float, *, heads: Iterable[int] | None = None) -> Scale:
    """Multiply an activation by a factor; 0 ablates a whole layer's output.

    Args:
        name: The activation, or a glob: "encoder.0.ffn.out".
        factor: A finite number. Masked scores of -inf are not changed.
        heads: Only these heads, from 0, of an activation [batch, head, ...].

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Raises:
        EditError: The factor is not finite.

    Example:
        >>> import xformer
        >>> edit = xformer.edits.scale("encoder.0.ffn.out", 0.0)
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
        >>> float(changed["encoder.0.ffn.out"].abs().sum())
        0.0
    """
    if not math.isfinite(factor):
        raise EditError(f"A factor must be a finite number, got {factor}; for example 0.5.")
    return Scale(name, factor, _tuple(heads))


def steer(
    name: str, vector: Float[Tensor, " width"], scale: float = 1.0, *, positions: Iterable[int] | None = None
) -> Steer:
    """Add a scaled vector to an activation.

    Args:
        name: The activation, or a glob: "encoder.3.resid_pre".
        vector: The vector to add at each position, [width].
        scale: The factor of the vector.
        positions: The positions, from 0; all of them by default.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Raises:
        EditError: The scale or the vector is not finite.

    Source: Turner et al. 2023, Activation Addition, https://arxiv.org/abs/2308.10248

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> direction = reading["encoder.3.resid_pre"][0, 0] - reading["encoder.3.resid_pre"][0, 1]  # [d_model]
        >>> edit = xformer.edits.steer("encoder.3.resid_pre", direction, 2.0, positions=[1])
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
    """
    if not (math.isfinite(scale) and bool(vector.isfinite().all())):
        raise EditError(f"The scale and the vector must be finite numbers, got a scale of {scale}; for example 4.0.")
    return Steer(name, vector, scale, _tuple(positions))


def apply(name: str, function: Callable[[Tensor], Tensor]) -> Apply:
    """Replace an activation by `function(activation)`, for changes that no other edit covers.

    Args:
        name: The activation, or a glob: "decoder.*.attn.z" calls the function once per layer.
        function: Takes a copy of the activation and returns a tensor of the same shape. It is called during the run.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`. The run raises `EditError` if no activation has the
        name or the function returns another shape.

    Example:
        >>> import xformer
        >>> def halve(z):  # [batch, head, pos, d_value]
        ...     return z / 2
        >>> edit = xformer.edits.apply("encoder.0.attn.z", halve)
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[edit])
    """
    return Apply(name, function)


def patch_from(
    trace: Activations, name: str, *, heads: Iterable[int] | None = None, positions: Iterable[int] | None = None
) -> Replace:
    """Replace an activation by the same activation of another run: activation patching.

    Args:
        trace: The other run, a `Reading` or a `Trace`.
        name: The activation.
        heads: Only these heads, from 0, of q, k, v, z, pattern or scores.
        positions: Only these positions, from 0.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Raises:
        KeyError: The other run has no activation of this name.

    Source: Meng et al. 2022, Locating and Editing Factual Associations in GPT, https://arxiv.org/abs/2202.05262

    Example:
        >>> import xformer
        >>> clean = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> edit = xformer.edits.patch_from(clean, "encoder.2.attn.z", heads=[1])
        >>> patched = xformer.read("checkpoints/reverse", "4 7 12 9", edits=[edit])
    """
    return Replace(name, trace[name], _tuple(heads), _tuple(positions))


def zero_positions() -> ZeroPositions:
    """Switch off the position encoding of any kind: vectors, angles and biases become zero.

    Returns:
        The edit, for `edits=` of `xformer.read` and `xformer.record`.

    Example:
        >>> import xformer
        >>> changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[xformer.edits.zero_positions()])
        >>> float(changed["pos_embed"].abs().sum())
        0.0
    """
    return ZeroPositions("*pos_*")


def _pairs(edges: Edges) -> tuple[tuple[int, int], ...]:
    return tuple((_whole(query), _whole(key)) for query, key in edges)


def _tuple(numbers: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(_whole(number) for number in numbers)


def _whole(number: int) -> int:
    """Return the number as an int. Raises `EditError` for a non-integer such as 1.5."""
    try:
        return operator.index(number)
    except TypeError:
        raise EditError(f"Heads, neurons and positions are integers from 0, got {number!r}; for example 1.") from None


def _fit(name: str, new: Tensor, value: Tensor) -> Tensor:
    """Expand `new` to the shape and type of `value`: one example to a batch, one mask or pattern to all heads.

    No other axis is broadcast: a value for one token is not valid for all tokens.
    """
    shape = list(value.shape)
    fitting = [shape]
    if len(shape) >= 3:
        fitting += [[1, *shape[1:]], shape[1:]]
    if len(shape) == 4 and name.endswith((".mask", ".pattern", ".scores")):
        fitting += [[shape[0], 1, *shape[2:]], [1, 1, *shape[2:]], [1, *shape[2:]], shape[2:]]
    if list(new.shape) not in fitting:
        raise EditError(
            f"{name} has the shape {shape}, and {list(new.shape)} does not fit; give the same shape, or that of one "
            "example for the whole batch."
        )
    if (new.dtype == torch.bool) != (value.dtype == torch.bool) or new.is_complex():
        raise EditError(f"{name} is of type {value.dtype}, and {new.dtype} cannot replace it; give {value.dtype}.")
    if bool(new.isnan().any()):
        raise EditError(f"The replacement of {name} contains NaN, which would spread to everything computed from it.")
    return new.to(value.device, value.dtype).expand(shape)


def _at_heads(name: str, value: Tensor, heads: tuple[int, ...] | None, changed: Tensor) -> Tensor:
    """Return `changed` at the chosen heads of [batch, head, …] and `value` at the others; None chooses all heads."""
    if heads is not None and value.dim() != 4:
        raise EditError(f"{name} has the shape {list(value.shape)} and no heads; omit heads.")
    return _at(name, value, heads, changed, "heads", -3)


def _at_positions(name: str, value: Tensor, positions: tuple[int, ...] | None, changed: Tensor) -> Tensor:
    """Return `changed` at the chosen positions of [batch, (head,) pos, …] and `value` at the others."""
    return _at(name, value, positions, changed, "positions", -2)


def _at(name: str, value: Tensor, chosen: tuple[int, ...] | None, changed: Tensor, what: str, axis: int) -> Tensor:
    if chosen is None:
        return changed
    n = value.shape[axis]
    if wrong := [index for index in chosen if not 0 <= index < n]:
        raise EditError(f"{name} has {what} 0 to {n - 1}, got {wrong[0]}.")
    is_chosen = torch.zeros(n, dtype=torch.bool, device=value.device)
    is_chosen[list(chosen)] = True
    return torch.where(is_chosen.reshape(-1, *[1] * (-1 - axis)), changed, value)
