"""Which entries of an input are at the positions of a stack, found by changing one entry after the other.

A module may shift its tokens, put some before them, drop or reorder them; its positions are then not those of its input. In the
runs that tell, every attention gives each position its own value only, so that an entry reaches its own position in all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from xformer.adapters.adapter import with_added
from xformer.adapters.capture_backends import ChangedLayoutError
from xformer.adapters.opening import OpenedModel
from xformer.edits import apply
from xformer.errors import InputError
from xformer.layer_path import LayerPath
from xformer.program.inputs import Inputs

N_CHANGED = 8
"""The largest number of entries that are changed: some at each end, and some between."""
_AXES = {"q": "query", "z": "key", "k": "key"}
"""The axis of the pattern whose positions an activation has; z holds values where every position attends to itself."""


Places = Mapping[tuple[int, int], set[int]]
"""By text and entry, the positions that the entry reaches."""


@dataclass(frozen=True)
class Placement:
    """The entries of an input at the positions of a stack."""

    dropped: tuple[int, int] = (0, 0)
    """The numbers of first and last entries that are at no position."""
    added: tuple[int, int] = (0, 0)
    """The numbers of positions before and after those of the entries."""
    is_numbered: bool = False
    """Whether the positions are only numbered, as they have no range of the entries in order."""
    others: frozenset[str] = frozenset()
    """The axes of later layers, as "encoder.1.attn.key", that have the entries at other positions than the first layer."""

    def of(self, entries: Shaped[Tensor, "batch entry"]) -> Shaped[Tensor, "batch pos"]:
        """The entries at the positions, and `ADDED` at those that the module adds."""
        first, last = self.dropped
        return with_added(entries[:, first : entries.shape[1] - last], self.added)


def placement(opened: OpenedModel, inputs: Inputs, name: str, sites: Sequence[LayerPath], n_batch: int) -> Placement:
    """Find the entries of an input at the positions of a stack.

    Args:
        opened: The model.
        inputs: The inputs of a call.
        name: The input, [batch, entry] of integers or [batch, entry, features].
        sites: The self-attention layers of the stack that reads it, in order.
        n_batch: The number of texts in the inputs.
    """
    if opened.backend == "returned_weights":
        return Placement()  # in which nothing can be changed
    n = inputs[name].shape[1]
    sizes, places = _places(opened, inputs, name, sites, n_batch)
    moves = {key: _moves(one) for key, one in places.items()}
    first = next((key for key, one in moves.items() if one is not None), None)
    if first is None:
        return Placement(is_numbered=bool(sizes) and n not in sizes.values())
    found, n_positions = moves[first] or set(), sizes[first]
    move = 0 if 0 in found and n_positions == n else next(iter(found)) if len(found) == 1 else None
    if move is None or _loses(places[first], move, n_positions, inputs):
        return Placement(is_numbered=True)
    after = n_positions - n - move
    axes = {f"{path}.{_AXES[what]}": moves[key] for key in moves for path, _, what in [key.rpartition(".")]}
    others = frozenset(axis for axis, one in axes.items() if one is not None and move not in one)
    return Placement((max(-move, 0), max(-after, 0)), (max(move, 0), max(after, 0)), others=others)


def _loses(places: Places, move: int, n_positions: int, inputs: Inputs) -> bool:
    """Whether an entry does not reach its position, as where a class token replaces it; a mask may also be the reason."""
    has_mask = sum(isinstance(value, Tensor) for value in inputs.values()) > 1
    return not has_mask and any(not to and 0 <= at + move < n_positions for (_, at), to in places.items())


def _moves(places: Places) -> set[int] | None:
    """The distances by which every entry may be moved; None if no entry reaches any position."""
    reached = [{one - at for one in to} for (_, at), to in places.items() if to]
    return set.intersection(*reached) if reached else None


def _places(
    opened: OpenedModel, inputs: Inputs, name: str, sites: Sequence[LayerPath], n_batch: int
) -> tuple[dict[str, int], dict[str, dict[tuple[int, int], set[int]]]]:
    """The number of positions of each activation of the layers, and the positions that each changed entry reaches."""
    run = partial(opened.run, n_batch=n_batch, edits=[apply("*.pattern", _to_themselves)])
    before = run(inputs)
    shapes = {site: before[f"{site.path}.pattern"].shape for site in sites}
    keys = [f"{site.path}.{what}" for site, shape in shapes.items() for what in _activations(opened, site, shape)]
    before = {key: before[key] for key in keys if key in before}
    places: dict[str, dict[tuple[int, int], set[int]]] = {key: {} for key in before}
    value = inputs[name]
    for at in _chosen(value.shape[1]):
        for step in (1, 2):  # two tokens may be one to the module
            changed = value.clone()
            changed[:, at] = -value[:, at] - step if value.is_floating_point() else _other(value, at, step)
            with suppress(InputError, ChangedLayoutError):  # what a module computes may depend on its data
                after = run(inputs | {name: changed}, keep=tuple(before))
                for key, one in before.items():
                    if after[key].shape == one.shape:
                        for text, reached in enumerate((after[key] != one).any(dim=-1).any(dim=1)):  # [pos]
                            places[key].setdefault((text, at), set()).update(reached.nonzero()[:, 0].tolist())
            if any(to for one in places.values() for (_, entry), to in one.items() if entry == at):
                break
    return {key: one.shape[-2] for key, one in before.items()}, places


def _activations(opened: OpenedModel, site: LayerPath, shape: Sequence[int]) -> Sequence[str]:
    """The activations of a layer that have the positions of its stack. More keys than queries are those of a cache as well."""
    query, key = (f"{site.path}.{axis}" not in opened.layout.numbered for axis in ("query", "key"))
    is_square = shape[-1] == shape[-2]
    return list(_AXES) if query and key and is_square else ["q"] if query else ["k"] if key else []


def _other(ids: Tensor, at: int, step: int) -> Tensor:
    """Other ids at an entry, among those up to the largest of the input."""
    return (ids[:, at] + step) % max(2, int(ids.max()) + 1)


def _chosen(n: int) -> list[int]:
    """The entries that are changed."""
    if n <= N_CHANGED:
        return list(range(n))
    ends = N_CHANGED // 4
    between = [ends + (n - 2 * ends) * at // (N_CHANGED - 2 * ends) for at in range(N_CHANGED - 2 * ends)]
    return [*range(ends), *between, *range(n - ends, n)]


def _to_themselves(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
    """A pattern in which every position attends to itself; where queries are not keys, nothing is attended to."""
    n_query, n_key = pattern.shape[-2:]
    if n_query != n_key:
        return torch.zeros_like(pattern)
    return torch.eye(n_query, dtype=pattern.dtype, device=pattern.device).expand_as(pattern).clone()
