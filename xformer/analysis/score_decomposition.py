"""Score attribution: the score of one cell of a head, split by the sources that wrote the inputs of its query and its key.

    score(i, j)  =  Σ over sources a, b   q_a(i) · k_b(j) · scale        q_a, k_b: the query and key computed from parts a, b

With the norm before the layer frozen at this run's value, the score is bilinear in the stream at the query and at the key, so
the sum is exact. Softmax depends on differences only: a *choice* is explained by the advantage of a key, its score minus that
of another key, or minus the mean of all other permitted keys. An advantage is a difference of log attention weights, in nats.
Contributions to it have both signs and cancel, so none is a share of it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer import edits
from xformer.adapters.adapter import FrozenNorm
from xformer.analysis.residual import check_told_apart, entering, projection_of, tolerance
from xformer.analysis.tables import array_table
from xformer.disk_quota import megabytes
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_index
from xformer.layer_path import LayerPath, after, layer_title
from xformer.memory import BYTES_PER_FLOAT, free_bytes
from xformer.reading import Reading, rerun

COPIES = 3
"""How many copies of the parts are in memory at once: joined, after a norm, and an intermediate."""


@dataclass(frozen=True)
class Writer:
    """A source of a part of the stream. `head` is None if it is not a head, `site` if it is not a layer."""

    name: str
    kind: str
    layer_path: LayerPath | None = None
    head: int | None = None


BIASES = Writer("biases", "bias")
DISTANCE = Writer("distance", "positions")
"""The bias by distance between query and key that some models add to their scores."""


@dataclass(frozen=True, eq=False)
class StreamParts:
    """The parts of the stream of the first input at one point; they sum to it."""

    writers: tuple[Writer, ...]
    vectors: Float[Tensor, "part pos d_model"]

    def through(self, norm: FrozenNorm) -> StreamParts:
        """Apply a frozen norm to the parts; its shift is added to the biases."""
        vectors = norm(self.vectors)
        vectors[self.writers.index(BIASES)] += norm.shift
        return StreamParts(self.writers, vectors)

    def total(self) -> Float[Tensor, "pos d_model"]:
        """Return the stream, the sum of the parts."""
        return self.vectors.sum(dim=0)


@torch.no_grad()
def stream_parts(reading: Reading, stack: str, until: LayerPath | None = None) -> StreamParts:
    """Split the stream of a stack as layer `until` receives it, before that layer's norm; with None, after the last block.

    Raises `UnavailableError` if the stream or its parts are not accessible, or need too much memory.
    """
    sites, name = [site for site in reading.adapter.shape.layer_paths if site.stack == stack], f"{stack}.0.resid_pre"
    if not sites or name not in reading:
        raise UnavailableError(f"No residual stream was found in {reading.adapter.name}.")
    before = sites[: sites.index(until)] if until in sites else sites
    check_told_apart(reading[name], [site for site in before if until is None or site.layer != until.layer])
    _check_memory(reading, stack, before)
    found = [*reversed(entering(reading, stack))]
    writers = [*(Writer(name, kind) for name, kind, _ in found), BIASES]
    vectors = [part.to(_dtype(reading, stack)) for *_, part in found]
    vectors.append(0 * vectors[0])  # the biases start at 0
    passed = reading.adapter.shape.blocks(stack)
    passed = {number: own for number, own in passed.items() if until is None or number < until.layer}
    blocks = [*before, *(number for number, own in passed.items() if not own)]
    for site in sorted(blocks, key=lambda part: part if isinstance(part, int) else part.layer):
        if isinstance(site, int):  # a block without attention
            added = reading[f"{stack}.{site}.resid_post"][0] - reading[f"{stack}.{site}.resid_pre"][0]
            writers.append(Writer(f"layer {site + 1}", "others"))
            vectors.append(added.to(_dtype(reading, stack)))
            continue
        more, added, bias = _added(reading, site)
        writers, vectors = [*writers, *more], [*vectors, *added]
        vectors[writers.index(BIASES)] = vectors[writers.index(BIASES)] + bias
        norm = reading.adapter.weights.norm_after(site.path)
        if norm is not None:
            parts = StreamParts(tuple(writers), torch.stack(vectors))
            vectors = [*parts.through(FrozenNorm.at(norm, parts.total())).vectors]
    if before and until and before[-1].layer == until.layer:
        name = after(before[-1])
    elif passed:
        name = f"{stack}.{max(passed)}.resid_post"
    return _with_difference(reading, StreamParts(tuple(writers), torch.stack(vectors)), name)


def _check_memory(reading: Reading, stack: str, before: list[LayerPath]) -> None:
    """Raise `UnavailableError` if the parts written by these layers need more than half of the free memory."""
    n_parts = 4 + sum(reading.adapter.shape.heads.get(site.path, 1) for site in before)
    needed = COPIES * BYTES_PER_FLOAT * n_parts * reading[f"{stack}.0.resid_pre"][0].numel()
    if needed > (free := free_bytes() // 2):
        raise UnavailableError(
            f"Splitting the stream before this layer needs {megabytes(needed)} of memory, and {megabytes(free)} are "
            "available; choose an earlier layer, or type a shorter input."
        )


def _dtype(reading: Reading, stack: str) -> torch.dtype:
    """Return the dtype for the parts: that of the run, but at least float32."""
    return torch.promote_types(reading[f"{stack}.0.resid_pre"].dtype, torch.float32)


def _with_difference(reading: Reading, parts: StreamParts, name: str) -> StreamParts:
    """Append what the parts miss of the recorded stream as one more part, if it exceeds float32 rounding."""
    if name not in reading:
        return parts
    recorded = reading[name][0]  # [pos, d_model]
    missing = recorded.to(parts.vectors.dtype) - parts.total()  # [pos, d_model]
    largest = torch.linalg.vector_norm(parts.vectors, ord=torch.inf, dim=(0, 2))  # [pos]: of parts, which may cancel
    is_rounding = bool((missing.abs().amax(dim=-1) <= tolerance(recorded) * largest).all())
    if is_rounding and recorded.dtype == parts.vectors.dtype:
        return parts
    kind = "rounding" if is_rounding else "unattributed"
    return StreamParts((*parts.writers, Writer(kind, kind)), torch.cat([parts.vectors, missing[None]]))


def _added(reading: Reading, site: LayerPath) -> tuple[list[Writer], Tensor, Tensor]:
    """Return what a layer adds: its sources, their vectors [writer, pos, d_model], and its biases [pos, d_model]."""
    title = layer_title(site.path, is_encoder_decoder=reading.is_encoder_decoder)
    dtype = _dtype(reading, site.stack)
    out = reading[f"{site.path}.out"][0].to(dtype)  # [pos, d_model]
    own = projection_of(reading, site)
    zero = torch.zeros_like(out)
    if own is None:
        kind = "attention" if site.is_attention else "feed_forward"
        return [Writer(f"{title} · {site.kind_label}", kind, site)], out[None], zero
    weight = own.weight.to(dtype)
    bias = zero if own.bias is None else own.bias.to(dtype).expand_as(out)
    if site.is_attention:
        z = reading[f"{site.path}.z"][0].to(dtype)  # [head, pos, d_value]
        inside = z @ weight.unflatten(0, (z.shape[0], z.shape[2]))  # [head, pos, d_model]
        writers = [Writer(f"{title} · head {head + 1}", "attention", site, head) for head in range(len(inside))]
    else:
        post = reading[f"{site.path}.post"][0].to(dtype) if own.norm is not None else None
        inside = (out / own.factor - bias if post is None else post @ weight)[None]
        writers = [Writer(f"{title} · feed-forward", "feed_forward", site)]
    if own.norm is not None:
        frozen = FrozenNorm.at(own.norm, inside.sum(dim=0) + bias)
        inside, bias = frozen(inside), frozen(bias[None])[0] + frozen.shift.to(bias.dtype)
    return writers, inside * own.factor, bias * own.factor


Side = Literal["query", "key"]


@dataclass(frozen=True, eq=False)
class HeadInput:
    """The queries (or the keys) of one head, split by source."""

    writers: tuple[Writer, ...]
    reads: Float[Tensor, "writer pos d_head"]
    """They sum to the queries (or keys); the norm before the layer is frozen."""
    without: Float[Tensor, "writer pos d_head"]
    """The queries (or keys) without each source in the layer's input, with the norm recomputed."""


@dataclass(frozen=True, eq=False)
class ScoreParts:
    """The parts of one cell's score. The last source of each side is `DISTANCE`, whose only part is the pair with itself."""

    query: HeadInput
    key: HeadInput
    score: Float[Tensor, "query_writer key_writer"]
    advantage: Float[Tensor, "query_writer key_writer"]
    """In nats; it sums to `total_advantage`."""
    left: dict[Side, Float[Tensor, " writer"]]
    """The advantage after removing each source from this head's queries, or from its keys; see `HeadInput.without`."""
    total: float
    """The recorded score."""
    total_advantage: float
    weight: float
    """The attention weight of the cell."""
    n_allowed: int
    """The number of keys that the query may attend to."""

    @property
    def has_distance(self) -> bool:
        """Whether the model adds a bias by distance to its scores."""
        return bool(self.score[-1, -1] != 0 or self.advantage[-1, -1] != 0)

    @property
    def residue(self) -> float:
        """The difference between the score and the sum of its parts: rounding."""
        return self.total - float(self.score.sum())


def score_attribution(
    reading: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None
) -> pd.DataFrame:
    """Attribute the score of (query, key) to pairs of sources that wrote the query's input and the key's input.

    Args:
        reading: The run.
        layer: The attention layer, from 0.
        head: The head, from 0.
        query: The query's position, from 0.
        key: The key's position, from 0.
        against: The key to compare with; None for the mean of all other permitted keys.

    Returns:
        A row per pair of sources, sorted by |advantage|, largest first: query_source and key_source (titles), query_layer,
        query_head, key_layer and key_head (from 0; −1 if there is none), score (the pair's part of the score) and advantage
        (its part of the advantage over `against`), both in nats. score and advantage sum to their totals; since contributions
        of both signs cancel, a single one may be larger than the sum.

    Raises:
        UnavailableError: If the parts are not accessible, or do not sum to the head's queries and keys.
        InputError: If the cell is masked or does not exist.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
        >>> table = xformer.analysis.score_attribution(reading, layer=1, head=0, query=4, key=1)
    """
    return table_of(score_parts(reading, layer=layer, head=head, query=query, key=key, against=against))


def table_of(parts: ScoreParts) -> pd.DataFrame:
    """Tabulate the parts of a score; see `score_attribution`."""
    axes = []
    for side, writers in (("query", (*parts.query.writers, DISTANCE)), ("key", (*parts.key.writers, DISTANCE))):
        layers = [-1 if one.layer_path is None else one.layer_path.layer for one in writers]
        heads = [-1 if one.head is None else one.head for one in writers]
        axes.append({f"{side}_source": [one.name for one in writers], f"{side}_layer": layers, f"{side}_head": heads})
    table = array_table(*axes, score=parts.score, advantage=parts.advantage)
    n_distances = (table["query_source"] == DISTANCE.name).astype(int) + (table["key_source"] == DISTANCE.name)
    table = table.loc[(n_distances == 0) | ((n_distances == 2) & parts.has_distance)]
    columns = ["query_source", "key_source", "query_layer", "query_head", "key_layer", "key_head", "score", "advantage"]
    return table[columns].sort_values("advantage", ascending=False, key=abs, ignore_index=True)


def score_parts(
    reading: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None
) -> ScoreParts:
    """Compute the parts of a score as matrices, and the advantage left without each source; see `score_attribution`."""
    site = reading.attention_path(layer)
    scores = reading[f"{site.path}.scores"][0]  # [head, query, key]
    _check_cell(scores, head, query, key, against)
    row = scores[head, query].double()  # [key]
    allowed = torch.isfinite(row)
    others = allowed.clone()
    others[key] = False
    compared = others.nonzero()[:, 0] if against is None else torch.tensor([against])
    queries = head_input(reading, site, "query", head, of_queries := _before_norm(reading, site, "query"))
    keys = head_input(reading, site, "key", head, None if site.is_cross else of_queries)
    q, k = queries.reads[:, query], keys.reads
    bias = _distance(reading, site, head, query)  # [key]
    raw = q.sum(dim=0) @ k.sum(dim=0).T  # [key]
    factor = _factor(row - bias, raw, tolerance(scores))

    def over_compared(scored: Float[Tensor, "*part key"]) -> Float[Tensor, "*part"]:
        return scored[..., key] - scored[..., compared].sum(dim=-1) / max(1, len(compared))

    mean = (k[:, compared] * factor[compared, None]).sum(dim=1) / max(1, len(compared))  # [key writer, d_head]
    score = q @ k[:, key].T * factor[key]  # [query writer, key writer]
    score, advantage = (torch.nn.functional.pad(part, (0, 1, 0, 1)) for part in (score, score - q @ mean.T))
    score[-1, -1], advantage[-1, -1] = bias[key], over_compared(bias)
    left: dict[Side, Tensor] = {
        "query": over_compared(queries.without[:, query] @ k.sum(dim=0).T * factor + bias),
        "key": over_compared(torch.einsum("akc,c->ak", keys.without, q.sum(dim=0)) * factor + bias),
    }
    return ScoreParts(
        queries, keys, score, advantage, left, float(row[key]), float(over_compared(row.where(allowed, 0.0))),
        float(reading[f"{site.path}.pattern"][0, head, query, key]), int(allowed.sum()),
    )  # fmt: skip


def head_input(
    reading: Reading, site: LayerPath, side: Side, head: int, before: tuple[StreamParts, nn.Module | None] | None = None
) -> HeadInput:
    """Split a head's queries or keys by source. What does not depend on the stream belongs to the biases.

    `before` is the layer's input and the norm before it, if they are already known.

    Raises `UnavailableError` with the reason if the parts do not sum to the recorded queries or keys.
    """
    parts, norm = before or _before_norm(reading, site, side)
    total, short = parts.total(), "q" if side == "query" else "k"
    matrix, constant = _affine(reading, site, total.shape, short, head)
    matrix = matrix.to(total.dtype)
    frozen = parts if norm is None else parts.through(FrozenNorm.at(norm, total))
    reads = torch.einsum("apm,pcm->apc", frozen.vectors, matrix).double()
    reads[parts.writers.index(BIASES)] += constant
    _check_sum(reading[f"{site.path}.{short}"][0, head], f"{site.path}.{short}", reads.sum(dim=0))
    del frozen  # as large as the parts
    anew = nn.Identity() if norm is None else copy.deepcopy(norm).to(total.dtype)
    with torch.no_grad():
        left = [torch.einsum("pm,pcm->pc", anew((total - part)[None])[0], matrix) for part in parts.vectors]
    without = torch.stack(left).double() + constant  # [writer, pos, d_head]
    at = parts.writers.index(BIASES)
    without[at] = reads.sum(dim=0) - reads[at]  # constants are not scaled by the norm
    return HeadInput(parts.writers, reads, without)


def _before_norm(reading: Reading, site: LayerPath, side: Side) -> tuple[StreamParts, nn.Module | None]:
    """Return the stream from which a layer computes its queries or keys, and the norm between them."""
    weights = reading.adapter.weights
    if side == "key" and site.is_cross:
        return stream_parts(reading, site.key_stack), weights.last_norm(site.key_stack)
    return stream_parts(reading, site.stack, site), weights.norm_before(site.path)


def _check_sum(recorded: Float[Tensor, "pos d_head"], name: str, total: Float[Tensor, "pos d_head"]) -> None:
    """Raise `UnavailableError` if the parts do not sum to the recorded queries or keys."""
    if total.shape != recorded.shape:
        raise UnavailableError(f"{name} is not computed at the positions of the stream, as in attention over windows.")
    missed = float((total - recorded.double()).abs().max()) / float(recorded.abs().max())
    if not missed <= (allowed := tolerance(recorded)):
        raise UnavailableError(
            f"The parts of {name} do not sum to it: they miss {missed:.1%} of its largest number, and rounding explains "
            f"{allowed:.1%}. The model normalises its queries and keys, or an edit changed them."
        )


def _affine(
    reading: Reading, site: LayerPath, shape: torch.Size, side: Literal["q", "k"], head: int
) -> tuple[Float[Tensor, "pos d_head d_model"], Float[Tensor, "pos d_head"]]:
    """Return the affine map from the normed stream to a head's queries or keys at each position: matrix (rotated for rotary
    positions) and constant. One gradient per dimension of the head is cheaper than calling the layer for each part."""
    with torch.inference_mode(False), torch.enable_grad():
        zero = torch.zeros(1, *shape, requires_grad=True)
        heads = reading.adapter.project_heads(reading.example, reading.trace, site.path, zero, side)
        read = heads[0, head]  # [pos, d_head]
        each = torch.eye(read.shape[1])[:, None].expand(-1, *read.shape)  # [d_head, pos, d_head]
        [rows] = torch.autograd.grad(
            read, zero, each.to(read.dtype), is_grads_batched=True
        )  # [d_head, 1, pos, d_model]
    return rows[:, 0].transpose(0, 1), read.detach()


def _distance(reading: Reading, site: LayerPath, head: int, query: int) -> Float[Tensor, " key"]:
    """Return the bias by distance that is added to the scores."""
    name = f"{site.path}.pos_bias"
    if name not in reading:
        return torch.zeros(reading[f"{site.path}.scores"].shape[-1], dtype=torch.float64)
    bias = reading[name]
    return bias[0, min(head, bias.shape[1] - 1), min(query, bias.shape[2] - 1)].double()


def _factor(scores: Float[Tensor, " key"], raw: Float[Tensor, " key"], rounding: float) -> Float[Tensor, " key"]:
    """Return the factor between q · k and the score: a constant, or with a soft cap the ratio in each cell."""
    seen = torch.isfinite(scores)
    strongest = int(torch.where(seen, raw.abs(), -1.0).argmax())
    constant = scores[strongest] / raw[strongest]
    largest = float(scores[seen].abs().max())
    if torch.allclose(raw[seen] * constant, scores[seen], rtol=rounding, atol=0.1 * rounding * largest):
        return torch.full_like(raw, float(constant))
    return torch.where(raw.abs() > 1e-9, scores / raw, constant)


def _check_cell(scores: Tensor, head: int, query: int, key: int, against: int | None) -> None:
    for name, value, n in zip(("head", "query", "key"), (head, query, key), scores.shape, strict=True):
        check_index(name, value, n)
    if against is not None:
        check_index("against", against, scores.shape[-1])
    for cell in (key, against):
        if cell is not None and not torch.isfinite(scores[head, query, cell]):
            raise InputError(f"Query {query} may not attend to key {cell}; try key {query}.")


LEAST = 0.1
"""Nats. A smaller advantage or opposing contribution changes the odds of two keys by about a tenth at most: not reported."""

NEAR = 0.8
"""A source with at least this share of the largest contribution is comparable to it, so that neither is reported alone."""

MOST = 0.5
"""Removing a reported source must take away at least this share of the advantage."""


@dataclass(frozen=True)
class Contribution:
    """A source at the query or at the key. Over the sources of either side, `adds` sums to the total advantage."""

    side: Side | None
    """None for the bias by distance, which belongs to neither."""
    writer: Writer
    adds: float
    """What it adds to the advantage, in nats."""
    removal: float
    """The decrease of the advantage when the source is removed from this head's queries, or from its keys."""

    @property
    def title(self) -> str:
        """The source and its side, like "layer 1 · head 2 at the key"."""
        return self.writer.name if self.side is None else f"{self.writer.name} at the {self.side}"


def contributions(parts: ScoreParts) -> list[Contribution]:
    """Return each source on each side, the largest contribution first."""
    found: list[Contribution] = []
    sides: tuple[tuple[Side, HeadInput, int], ...] = (("query", parts.query, 1), ("key", parts.key, 0))
    for side, inputs, dim in sides:
        adds, left = parts.advantage.sum(dim=dim)[:-1].tolist(), parts.left[side].tolist()
        for writer, added, rest in zip(inputs.writers, adds, left, strict=True):
            found.append(Contribution(side, writer, added, parts.total_advantage - rest))
    if parts.has_distance:
        of_distance = float(parts.advantage[-1, -1])
        found.append(Contribution(None, DISTANCE, of_distance, of_distance))
    return sorted(found, key=lambda one: -one.adds)


def has_choice_to_explain(parts: ScoreParts) -> bool:
    """Return whether there is a choice to explain: the key has at least a uniform share of attention, and is preferred."""
    return parts.weight * parts.n_allowed >= 1.0 and parts.total_advantage >= LEAST


def deciding_sources(parts: ScoreParts) -> tuple[Contribution, ...]:
    """Return the source that decides why a key is preferred, or one at the query and one at the key if they are comparable.

    No source is returned if another one on the same side has `NEAR` as much, if removing it does not change the advantage most
    or takes away less than `MOST` of it, or if there is no choice to explain (see `has_choice_to_explain`).
    """
    found = contributions(parts)
    named = [one for one in found if one.adds > NEAR * found[0].adds]
    if not has_choice_to_explain(parts) or len({one.side for one in named}) < len(named):
        return ()
    if any(one.writer.kind in ("rounding", "unattributed") for one in named):
        return ()
    least = min(one.removal for one in named)
    if least < MOST * parts.total_advantage or any(one.removal > NEAR * least for one in found if one not in named):
        return ()
    return tuple(named)


def opposing_source(parts: ScoreParts) -> Contribution | None:
    """Return the source that reduces the advantage most; None if none reduces it by `LEAST`."""
    last = contributions(parts)[-1]
    return last if last.adds <= -LEAST else None


def without_source(
    reading: Reading, *, layer: int, head: int, source: str, side: Side | None = None, parts: ScoreParts | None = None
) -> Reading:
    """Rerun with a source removed from one head's queries, or from its keys, at all positions.

    Args:
        reading: The run.
        layer: The attention layer, from 0.
        head: The head, from 0.
        source: The name of the source, as in the tables of `analysis.score_attribution`; "distance" removes the bias from this
            head's scores.
        side: Whether to remove it from the queries or from the keys; None for "distance".
        parts: The parts of any cell of that head, if they are known.

    Raises:
        InputError: If there is no such source, or `side` is missing.
    """
    site = reading.attention_path(layer)
    if source == DISTANCE.name and f"{site.path}.pos_bias" in reading:
        scores = reading[f"{site.path}.scores"]
        bias = reading[f"{site.path}.pos_bias"].expand_as(scores)
        return rerun(reading, [edits.replace(f"{site.path}.scores", scores - bias, heads=[head])])
    if side is None:
        raise InputError(f"Give side, 'query' or 'key', from which to remove {source}.")
    known = None if parts is None else parts.query if side == "query" else parts.key
    found = known or head_input(reading, site, side, head)
    names = [writer.name for writer in found.writers]
    if source not in names:
        raise InputError(f"There is no source {source!r} in this layer's input; the sources are {', '.join(names)}.")
    name = f"{site.path}.{'q' if side == 'query' else 'k'}"
    left = reading[name].clone()
    left[0, head] = found.without[names.index(source)].to(left.dtype)
    return rerun(reading, [edits.replace(name, left, heads=[head])])


def check(
    reading: Reading, changed: Reading, *, layer: int, head: int, query: int, key: int, against: int | None = None
) -> pd.DataFrame:
    """Compare a cell and the loss before and after a change.

    Returns:
        The rows weight (attention, 0 to 1), advantage (over `against`, or over the mean of the other keys), score and loss, the
        last three in nats; the columns what, before and after.
    """
    path = reading.attention_path(layer).path

    def of(run: Reading) -> list[float]:
        row = run[f"{path}.scores"][0, head, query].double()  # [key]
        compared = torch.cat((row[:key], row[key + 1 :])) if against is None else row[[against]]
        advantage = row[key] - compared[compared.isfinite()].mean()
        return [float(run[f"{path}.pattern"][0, head, query, key]), float(advantage), float(row[key]), run.loss]

    return pd.DataFrame({"what": ["weight", "advantage", "score", "loss"], "before": of(reading), "after": of(changed)})
