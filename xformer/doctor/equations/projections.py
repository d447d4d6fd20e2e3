"""Checks of the origin of q, k and v: each must be an affine function of its own row of the right stream.

    q = x W_Q + b,   k = y W_K + b,   v = y W_V + b        y = x (self-attention) or the memory (cross-attention)

The weights are not in the trace, but a linear map is constrained once there are more rows than stream dimensions: the image of
N rows of rank r lies in an r-dimensional subspace of Rᴺ, and the fraction of q outside it is 0 (about 10⁻⁶ in float32). For
anything else the fraction is about √((N − r)/N), which is 0.17 for N = 33 and r = 32. The limit is 10⁻². If N is not above r,
nothing is reported; a batch of inputs is then needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.doctor.equations.case import Case, Mistake, TraceLayer, centred, error, relative, warning
from xformer.doctor.equations.rounding import of_product

BY_VIEW = "The heads are split across positions, as by a view without the transpose"
MAX_SHARE_OUTSIDE = 1e-2
MIN_SINGULAR_VALUE = 1e-5
"""Singular values below this fraction of the largest count as 0, because of float32's precision."""


def check_projections(case: Case) -> Iterator[Mistake]:
    """split_by_view · kv_heads_tiled · cross_queries_from_memory · cross_roles_swapped · forgotten_return · wrong_stream."""
    for layer, (stream, *_) in case.attention("in", "q", "k", "v"):
        if layer.is_cross:
            yield from _cross(case, layer)
        else:
            made = {name: case.projected(layer.path, name) for name in "qkv"}
            if _is_tiled(case, layer):
                sentence = "Keys and values are tiled over the heads (0 1 0 1) instead of repeated in place (0 0 1 1)."
                yield error("kv_heads_tiled", layer.path, sentence)
                continue
            if case.has(layer.path, "pos_angles"):
                angles = case[f"{layer.path}.pos_angles"].double()
                made |= {name: case.trace.config.position_kind.rotate(made[name].double(), -angles) for name in "qk"}
            outside = {name: share_outside(stream, heads_joined(heads)) for name, heads in made.items()}
            wrong = [name for name, share in outside.items() if share is not None and share > MAX_SHARE_OUTSIDE]
            if wrong and all(_is_cut_by_view(stream, made[name]) for name in wrong):
                sentence = f"{BY_VIEW}: joined in that order, queries, keys and values match their positions’ vectors."
                numbers = {f"outside_{name}": share for name, share in outside.items() if share is not None}
                yield error("split_by_view", layer.path, sentence, numbers)


def _is_tiled(case: Case, layer: TraceLayer) -> bool:
    """Return whether shared keys and values were tiled: head h has those of group h mod n."""
    config = case.trace.config
    n = config.kv_component.n_kv_heads(config)
    if not 1 < n < config.n_heads:
        return False
    both = [case[f"{layer.path}.{name}"] for name in "kv"]
    tiled = all(torch.equal(heads, heads[:, :n].repeat(1, config.n_heads // n, 1, 1)) for heads in both)
    return tiled and not all(torch.equal(heads[:, 0], heads[:, 1]) for heads in both)


def _is_cut_by_view(stream: Tensor, heads: Tensor) -> bool:
    """Return whether [batch, head, pos, width], reinterpreted as [batch, pos, head·width], is affine in the stream."""
    share = share_outside(stream, heads.flatten(1).unflatten(1, (heads.shape[2], -1)))
    return share is not None and share <= MAX_SHARE_OUTSIDE


def _cross(case: Case, layer: TraceLayer) -> Iterator[Mistake]:
    """EquationReport if q, k or v comes from the wrong stream, as far as the trace determines it."""
    target, memory = case[f"{layer.path}.in"], case.memory
    if memory is None:
        return
    made = {name: _source(case, heads_joined(case.projected(layer.path, name)), target, memory) for name in "qkv"}
    known = {name: stream for name, stream in made.items() if stream is not None}
    right = {"q": "target", "k": "memory", "v": "memory"}
    if all(stream == right[name] for name, stream in known.items()):
        return
    kinds = {
        "memory memory target": ("cross_queries_from_memory", "The memory attends to itself, with the target’s values"),
        "memory target target": ("cross_roles_swapped", "The memory attends to the target"),
        "target target target": ("forgotten_return", "The target attends to itself, and the memory is never used"),
    }
    sources = " ".join(known.get(name, "") for name in "qkv")
    kind, what = kinds.get(sources, ("wrong_stream", "Cross-attention is mixed up"))
    if "neither" in known.values():
        lost = [name for name, stream in known.items() if stream == "neither"]
        if not all(_is_cut(case.projected(layer.path, name), target, memory) for name in lost):
            return  # not made from either stream, for an unknown reason: the identity wrong_projection reports it
        kind, what = "split_by_view", BY_VIEW
    streams = {"neither": "neither", "target": "the target", "memory": "the memory"}
    from_where = ", ".join(f"{name} from {streams[stream]}" for name, stream in known.items())
    yield error(kind, layer.path, f"{what}: {from_where} (expected: q from the target, k and v from the memory).")


def _is_cut(heads: Tensor, target: Tensor, memory: Tensor) -> bool:
    return any(stream.shape[1] == heads.shape[2] and _is_cut_by_view(stream, heads) for stream in (target, memory))


def _source(case: Case, made: Tensor, target: Tensor, memory: Tensor) -> str | None:
    """Return "target", "memory", "neither", or None if the trace does not determine it."""
    shares = {  # 1 if a stream has a different length
        name: share_outside(stream, made) if stream.shape[:2] == made.shape[:2] else 1.0
        for name, stream in (("target", target), ("memory", memory))
    }
    if shares["target"] is None or shares["memory"] is None:
        return next((name for name, share in shares.items() if share is None and 1.0 in shares.values()), None)
    name = min(shares, key=lambda stream: shares[stream] or 0.0)
    if (shares[name] or 0.0) > MAX_SHARE_OUTSIDE:
        return "neither"
    return name if max(share or 0.0 for share in shares.values()) > MAX_SHARE_OUTSIDE else None  # None: both fit


def check_clones(case: Case) -> Iterator[Mistake]:
    """cloned_layers: two layers of a stack with the same weights, if these are known."""
    stacks: dict[tuple[str, str], list[TraceLayer]] = {}
    for layer in case.layers:
        stack, _, part = layer.path.split(".", 2)
        stacks.setdefault((stack, part), []).append(layer)
    for first, *others in stacks.values():
        weight = case.weight(f"{first.path}.weight_in")
        for other in others:
            same = case.weight(f"{other.path}.weight_in")
            if weight is not None and same is not None and torch.equal(weight, same):
                sentence = "Both layers have the same weights for q, k and v: they were copied, not initialised."
                yield warning("cloned_layers", (first.path, other.path), sentence, {})


def _directions(rows: Tensor) -> tuple[Tensor, int]:
    """Return an orthonormal basis [row, rank] of the column space, and the rank."""
    is_tall = len(rows) > rows.shape[1]
    squares, ways = torch.linalg.eigh(rows.T @ rows if is_tall else rows @ rows.T)  # several times as fast as an SVD
    kept = squares > MIN_SINGULAR_VALUE**2 * squares[-1]
    squares, ways = squares[kept], ways[:, kept]
    return rows @ (ways / squares.sqrt()) if is_tall else ways, len(squares)


def share_outside(stream: Tensor, made: Tensor) -> float | None:
    """Return the fraction of `made` [batch, pos, width] that no affine map of `stream` explains; None if any map would fit."""
    x, y = centred(stream), centred(made)
    if x is None or y is None or len(x) != len(y):
        return None
    left, rank = _directions(x)
    return None if rank + 1 >= len(y) else relative(y - left @ (left.T @ y), y)


def heads_joined(heads: Tensor) -> Tensor:
    """Reshape [batch, head, pos, width] to [batch, pos, head·width]."""
    return heads.transpose(1, 2).flatten(-2)


def affine(
    case: Case, path: str, x: Tensor, y: Tensor, weight: str, bias: str, rows: slice | None = None, slack: float = 1.0
) -> float | None:
    """Return the distance of y from x Wᵀ + b, or from the nearest affine map if the weights are unknown, as an excess.

    Args:
        case: The case, with the weights if they are known.
        path: The path of the layer.
        x: The input, [..., n_in].
        y: The output, [..., n_out].
        weight: The name of W in the layer.
        bias: The name of b in the layer.
        rows: The rows of W and b to use; None: all.
        slack: The factor by which the rounding error exceeds that of one product.

    Returns:
        The excess over rounding; None if the weights are unknown and x has too few rows to decide.
    """
    before = f"{path}." if path else ""
    matrix, plus = case.weight(before + weight), case.weight(before + bias)
    if matrix is None:
        share = share_outside(x, y) if x.shape[:-1] == y.shape[:-1] else float("inf")
        return None if share is None else share / MAX_SHARE_OUTSIDE
    if rows is not None:
        matrix, plus = matrix[rows], None if plus is None else plus[rows]
    if x.shape[-1] != matrix.shape[1]:
        return float("inf")
    return of_product(y, x, matrix.T, plus) / slack
