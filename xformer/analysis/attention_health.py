"""Measures of whether attention is healthy, from one recorded run: a row per head and a row per attention layer.

    found = measure(reading)
    found.heads["decoder.0.attn"]["entropy_p50"]     a value per head, float32 on the CPU
    found.layers["decoder.0.attn"]["stream_norm"]    one value

`HEAD_MEASURES` and `LAYER_MEASURES` give the equation and unit of each. A measure is NaN where a model does not allow it: the
backend `returned_weights` has no scores, and cross-attention has no previous token. Padded queries and keys are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.adapters.attention import for_each_head
from xformer.adapters.attention_sums import AttentionSums, Kept
from xformer.analysis.attention_patterns import induction_scores
from xformer.errors import XformerError
from xformer.layer_path import LayerPath
from xformer.reading import Reading

HEAD_MEASURES = {
    "score_max": "max s over permitted cells; s are the scores before softmax and masking",
    "score_spread": "mean over queries of the standard deviation of s over the permitted keys",
    "entropy_p05": "5% quantile over queries of −Σ p ln p / ln n, n permitted keys; 0: one key, 1: uniform attention",
    "entropy_p50": "median over queries of the normalised entropy −Σ p ln p / ln n",
    "entropy_p95": "95% quantile over queries of the normalised entropy −Σ p ln p / ln n",
    "first_token": "mean over queries after the first token of p on that token, a share",
    "diagonal": "mean over queries of p on the query's own position, a share",
    "previous": "mean over queries after the first token of p on the position before, a share",
    "padding": "mean over queries of Σ p over padded keys, a share; NaN without padding",
    "future": "mean over queries of Σ p over later keys, a share",
    "induction": "mean p on the token after the earlier occurrence of the query's token, on a repeated random sequence",
    "output_norm": "mean over queries of ‖z W_O‖₂, what the head adds to the stream; ‖z‖₂ where W_O was not located",
    "twin_distance": "least total variation distance ½ Σ|p − p′| to another head of the layer, mean over queries",
    "moved": "total variation distance ½ Σ|p − p′| to the head's own pattern in the previous run, mean over queries",
}
"""The measures of each head: name → equation and unit. p is the pattern [query, key]."""
LAYER_MEASURES = {
    "activation_ratio": "max |x| / median |x| of the stream x after the layer's block",
    "inactive_neurons": "share of neurons whose |activation| is below 1/1000 of the layer's RMS at every position",
    "stream_norm": "mean over positions of ‖x‖₂ of the stream after the layer's block",
    "score_factor": "√d_head · ⟨s, q·k⟩ / ⟨q·k, q·k⟩: 1 for scores scaled by 1/√d_head; NaN unless s is a multiple of q·k",
    "grad_q": "‖∂ loss / ∂ W_Q‖₂; NaN where no such parameter was found, 0 where it got no gradient",
    "grad_k": "‖∂ loss / ∂ W_K‖₂; NaN and 0 as for grad_q",
    "grad_v": "‖∂ loss / ∂ W_V‖₂; NaN and 0 as for grad_q",
    "grad_o": "‖∂ loss / ∂ W_O‖₂; NaN and 0 as for grad_q",
}
"""The measures of each attention layer: name → equation and unit."""
KEEP_LONG = ("*.z", "*.resid_post", "*.post")
"""What a run of a long input must keep besides its sums."""
KEEP = ("*.pattern", "*.scores", "*.mask", "*.q", "*.k", *KEEP_LONG)
"""What a run must keep for all measures; patterns that a model lacks are skipped."""
SILENT_NEURON, EXACT_FIT = 1e-3, 1e-3
"""A neuron whose peak is below this share of its layer's RMS is inactive. The largest relative residual of s = factor · q·k."""


CELLS = 4_000_000
"""The number of weights of a long input that are computed at once."""
PerHead = Float[Tensor, " head"]
Valid = Bool[Tensor, "batch pos"] | None
"""True at tokens, False at padding; None if there is no padding."""


@dataclass(frozen=True, eq=False)
class LongPattern:
    """The pattern of one layer of a long input, which is never in memory at once: its sums, and what gives any weight again."""

    sums: AttentionSums
    kept: Kept

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, head, query, key]; the batch is 1."""
        return 1, len(self.sums.entropy), self.sums.n_query, self.sums.n_key

    @property
    def blocks(self) -> Iterator[slice]:
        """Ranges of queries, whose weights are computed at once."""
        _, n_heads, n_query, n_key = self.shape
        n = max(1, CELLS // (n_heads * n_key))
        return (slice(begin, min(begin + n, n_query)) for begin in range(0, n_query, n))

    def weights(self, rows: slice) -> Float[Tensor, "head row key"]:
        """The weights of some queries."""
        return self.kept.weights(self.sums, rows, slice(None))

    def scores(self, rows: slice) -> Float[Tensor, "head row key"]:
        """The scores of some queries, −∞ where the mask forbids a key."""
        return self.kept.scores(rows).cpu()


Patterns = Mapping[str, Float[Tensor, "batch head query key"]] | Mapping[str, LongPattern]
"""The pattern of each attention layer, by its path."""


@dataclass(frozen=True, eq=False)
class Measures:
    """The measures of one run, by the path of the attention layer, and its attention patterns."""

    heads: dict[str, dict[str, PerHead]]
    layers: dict[str, dict[str, float]]
    patterns: Patterns = field(default_factory=dict, repr=False)


@torch.no_grad()
def measure(
    reading: Reading, previous: Patterns | None = None, valid: Valid = None, patterns: Patterns | None = None
) -> Measures:
    """Measure every attention layer of a recorded run.

    Args:
        reading: The run, which must keep the activations in `KEEP`.
        previous: The patterns [batch, head, query, key] of an earlier run on the same inputs, by the path of the layer, for
            `moved`.
        valid: True at tokens, False at padding, for modules whose padding mask has a name that the adapter does not recognize.
        patterns: The patterns, if the reading has none because its input is long; the reading then needs no scores, mask,
            queries or keys either.

    Returns:
        The measures, and the patterns for the next call.

    Example:
        >>> import xformer
        >>> from xformer.analysis.attention_health import measure
        >>> found = measure(xformer.read("checkpoints/reverse", "3 7 12 9"))
        >>> found.heads["encoder.0.attn"]["entropy_p50"].shape
        torch.Size([4])
    """
    heads: dict[str, dict[str, Tensor]] = {}
    layers: dict[str, dict[str, float]] = {}
    if patterns is None:
        patterns = {path: value.float() for path, value in reading.trace.patterns().items()}
    for path, pattern in patterns.items():
        site = LayerPath.parse(path)
        stacks = reading.adapter.shape.stacks_of(site)
        valid_q, valid_k = (_valid_positions(reading, stack, pattern, valid) for stack in stacks)
        make = _LongRows if isinstance(pattern, LongPattern) else _PatternRows
        rows = make(pattern, valid_q, valid_k, not site.is_cross, reading, path)
        before = (previous or {}).get(path)
        if before is not None and (type(before) is not type(pattern) or before.shape != pattern.shape):
            before = None
        found = rows.measures(before)
        found["output_norm"] = rows.mean(_output_size(reading, path, pattern.shape[1]))
        heads[path] = {name: found.get(name, rows.nothing).float().cpu() for name in HEAD_MEASURES}
        layers[path] = _layer(reading, site, rows) | {"score_factor": rows.score_factor}
    return Measures(heads, layers, patterns)


def _valid_positions(reading: Reading, stack: str | None, pattern: Tensor | LongPattern, valid: Valid) -> Valid:
    """Return which positions of a stack are tokens; None if all of them are, or for positions of another input."""
    if stack is None:
        return None
    trace = reading.trace
    is_target = stack == "decoder" and trace.target is not None
    known = trace.target_valid if is_target else trace.valid
    valid = valid if known is None and trace.target is None else known
    if valid is None or len(valid) != pattern.shape[0]:
        return None
    return valid.cpu() if isinstance(pattern, LongPattern) else valid.to(pattern.device)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one layer's pattern, and which of them are counted."""

    p: Any
    """[batch, head, query, key], or a `LongPattern`."""
    valid_q: Bool[Tensor, "batch query"] | None
    valid_k: Bool[Tensor, "batch key"] | None
    is_self: bool
    reading: Reading
    path: str

    def activation(self, what: str) -> Tensor | None:
        """An activation of the layer; None if it was not recorded."""
        return self.reading.trace.activations.get(f"{self.path}.{what}")

    @property
    def device(self) -> torch.device:
        """The device of the pattern."""
        return torch.device("cpu") if isinstance(self.p, LongPattern) else self.p.device

    @property
    def nothing(self) -> PerHead:
        return torch.full(self.p.shape[1:2], math.nan, device=self.device)

    @property
    def after_first(self) -> Bool[Tensor, "batch head query"]:
        """The counted rows after the first token."""
        query = torch.arange(self.p.shape[2], device=self.device)
        return self.kept & (query > self.first[:, None])[:, None]

    @property
    def first(self) -> Int[Tensor, " batch"]:
        """The position of the first token that is no padding."""
        if self.valid_k is None:
            return torch.zeros(self.p.shape[0], dtype=torch.int64, device=self.device)
        return self.valid_k.to(torch.uint8).argmax(-1)

    @property
    def kept(self) -> Bool[Tensor, "batch head query"]:
        """The rows of tokens that are no padding."""
        keep = torch.ones(self.p.shape[:3], dtype=torch.bool, device=self.device)
        return keep if self.valid_q is None else keep & self.valid_q[:, None]

    def mean(self, values: Float[Tensor, "batch head query"] | None, counted: Tensor | None = None) -> PerHead:
        """Average over the counted rows; `counted` [query] or [batch, head, query] excludes more. NaN without rows."""
        if values is None:
            return self.nothing
        keep = self.kept if counted is None else self.kept & counted
        return torch.where(keep, values.float(), 0.0).sum((0, 2)) / keep.sum((0, 2))  # 0/0 is NaN

    def entropies(
        self, entropy: Float[Tensor, "batch head query"], n: Int[Tensor, "batch #head query"]
    ) -> dict[str, PerHead]:
        """Return quantiles of the normalised entropy over the rows with at least two permitted keys."""
        h = entropy / n.clamp(min=2).log()  # from 0 to 1
        is_finite = h.isfinite().all(-1).all(0)
        h = h.masked_fill(~(self.kept & (n > 1)), math.nan).transpose(0, 1).flatten(1)  # [head, batch·query]
        at = torch.nanquantile(h, h.new_tensor([0.05, 0.5, 0.95]), dim=1)  # [quantile, head]
        return dict(
            zip(("entropy_p05", "entropy_p50", "entropy_p95"), at.masked_fill(~is_finite, math.nan), strict=True)
        )

    def nearest(self, apart: Float[Tensor, "head head"]) -> PerHead:
        """The least total variation distance to another head, from Σ|p − p′| of each pair over the counted rows."""
        apart = apart / 2 / self.kept[:, 0].sum().clamp(min=1)
        return apart.fill_diagonal_(math.inf).amin(-1)


class _PatternRows(_Rows):
    """The rows of a pattern that is in memory."""

    @cached_property
    def allowed(self) -> Bool[Tensor, "batch head query key"]:
        """The cells that the mask permits."""
        allowed, scores = self.activation("mask"), self.activation("scores")
        if allowed is None:
            allowed = torch.ones_like(self.p, dtype=torch.bool) if scores is None else scores > -math.inf
        return allowed.expand(self.p.shape)

    @property
    def score_factor(self) -> float:
        """See `score_factor`."""
        return score_factor(self.activation("scores"), self.activation("q"), self.activation("k"), self.allowed)

    def measures(self, before: Any) -> dict[str, PerHead]:
        """The measures of each head that follow from its scores and pattern, and from that of an earlier run."""
        p, (n_query, n_key), scores = self.p, self.p.shape[-2:], self.activation("scores")
        n = self.allowed.sum(-1)  # [batch, head, query]: permitted keys
        query, key = torch.arange(n_query, device=p.device), torch.arange(n_key, device=p.device)
        on_first = p.gather(-1, self.first[:, None, None, None].expand(*p.shape[:3], 1))[..., 0]
        found = {"first_token": self.mean(on_first, self.after_first)}
        found |= self.entropies(torch.special.entr(p).sum(-1), n)
        if scores is not None:
            found["score_spread"] = self.mean(_spread(scores, self.allowed), n > 1)
            keep = self.allowed & self.kept[..., None]
            found["score_max"] = scores.float().masked_fill(~keep, -math.inf).amax((0, 2, 3))
        if self.is_self and n_query == n_key:
            found["diagonal"] = self.mean(p.diagonal(dim1=-2, dim2=-1))
            before_it = torch.cat([p.new_zeros(*p.shape[:2], 1), p.diagonal(-1, dim1=-2, dim2=-1)], dim=-1)
            found["previous"] = self.mean(before_it, self.after_first)
            found["future"] = self.mean(p.masked_fill(key <= query[:, None], 0.0).sum(-1))
        if self.valid_k is not None and not bool(self.valid_k.all()):
            found["padding"] = self.mean(p.masked_fill(self.valid_k[:, None, None], 0.0).sum(-1))
        if p.shape[1] > 1:
            flat = (p * self.kept[..., None]).transpose(0, 1).flatten(1)  # [head, batch·query·key]
            found["twin_distance"] = self.nearest(torch.cdist(flat, flat, p=1.0))
        if before is not None:
            found["moved"] = self.mean((p - before).abs().sum(-1) / 2)
        return found


class _LongRows(_Rows):
    """The rows of a long input, from the sums over them; what compares two patterns is read a few queries at a time."""

    @property
    def score_factor(self) -> float:
        """See `score_factor`; from the last queries, which have the most keys."""
        q, k = self.p.kept.q, self.p.kept.k
        *_, rows = self.p.blocks
        scores = self.p.scores(rows)[None]
        given = q[None, :, rows].cpu(), for_each_head(k[None], len(q)).cpu()
        return score_factor(scores, *given, scores > -math.inf)

    def measures(self, before: Any) -> dict[str, PerHead]:
        """As for a pattern in memory."""
        sums, kept, after_first = self.p.sums, self.kept[0], self.after_first
        n, permitted = kept[0].sum(), sums.n_permitted[None]
        found = {"first_token": self.mean(sums.first[None], after_first)}
        found |= self.entropies(sums.entropy[None], permitted)
        largest = sums.largest.log() + sums.log_normaliser  # the largest score, of which `largest` is the weight
        found["score_max"] = largest.masked_fill(~kept, -math.inf).amax(-1)
        if self.is_self and sums.n_query == sums.n_key:
            zero = sums.n_query - 1  # the offset of the query itself
            found["diagonal"] = sums.by_offset[:, zero] / n
            found["previous"] = sums.by_offset[:, zero - 1] / after_first[0, 0].sum()
            found["future"] = sums.by_offset[:, zero + 1 :].sum(-1) / n
        if self.valid_k is not None and not bool(self.valid_k.all()):
            found["padding"] = sums.received[:, ~self.valid_k[0]].sum(-1) / n
        spread, moved, apart = [], [], torch.zeros(len(kept), len(kept))
        for rows in self.p.blocks:
            scores, p = self.p.scores(rows), self.p.weights(rows)
            spread.append(_spread(scores, scores > -math.inf))
            flat = (p * kept[:, rows, None]).flatten(1)
            apart += torch.cdist(flat, flat, p=1.0)
            if before is not None:
                moved.append((p - before.weights(rows)).abs().sum(-1) / 2)
        found["score_spread"] = self.mean(torch.cat(spread, dim=-1)[None], permitted > 1)
        if len(kept) > 1:
            found["twin_distance"] = self.nearest(apart)
        if moved:
            found["moved"] = self.mean(torch.cat(moved, dim=-1)[None])
        return found


def _spread(
    scores: Float[Tensor, "*head query key"], allowed: Bool[Tensor, "*head query key"]
) -> Float[Tensor, "*head query"]:
    """The standard deviation of each query's scores over the permitted keys."""
    s, n = scores.float().masked_fill(~allowed, 0.0), allowed.sum(-1)
    return (s.square().sum(-1) / n - (s.sum(-1) / n).square()).clamp(min=0).sqrt()


def _output_size(reading: Reading, path: str, n_heads: int) -> Tensor | None:
    """Return ‖z W_O‖₂ of each head and query [batch, head, query] from Gram matrices, without forming vectors of d_model."""
    z = reading.trace.activations.get(f"{path}.z")
    if z is None:
        return None
    z = z.float()
    try:
        weight = reading.adapter.weights.projection(path).weight.to(z).unflatten(0, (n_heads, -1))
        gram = weight @ weight.transpose(-2, -1)  # [head, d_head, d_head]
        return ((z @ gram) * z).sum(-1).clamp(min=0).sqrt()
    except (XformerError, RuntimeError):  # no such matrix, or one of a different shape
        return z.norm(dim=-1)


def _layer(reading: Reading, site: LayerPath, rows: _Rows) -> dict[str, float]:
    activations, block = reading.trace.activations, f"{site.stack}.{site.layer}"
    found = dict.fromkeys(LAYER_MEASURES, math.nan)
    stream = activations.get(f"{block}.resid_post")  # [batch, pos, d_model]
    if stream is not None:
        kept = stream.float() if rows.valid_q is None else stream[rows.valid_q].float()
        found["stream_norm"] = float(kept.norm(dim=-1).mean())
        found["activation_ratio"] = float(kept.abs().max() / kept.abs().median().clamp(min=torch.finfo().tiny))
    neurons = activations.get(f"{block}.ffn.post")  # [batch, pos, d_ff]
    if neurons is not None:
        size = neurons.float().abs().flatten(0, -2)
        rms = size.square().mean().sqrt()
        found["inactive_neurons"] = float((size.amax(0) <= SILENT_NEURON * rms).float().mean())
    return found


def score_factor(scores: Tensor | None, q: Tensor | None, k: Tensor | None, allowed: Tensor) -> float:
    """√d_head times the factor by which a layer multiplies q·k, by least squares over the permitted cells.

    Args:
        scores: [batch, head, query, key]; if it, q or k is None, the result is NaN.
        q: Queries [batch, head, query, d_head].
        k: Keys [batch, head, key, d_head].
        allowed: True where a query may attend, broadcastable to the scores.

    Returns:
        1 for the usual 1/√d_head, √d_head if the factor is missing; NaN if the scores are not a multiple of q·k.

    Example:
        >>> import torch
        >>> q = k = torch.eye(4)[None, None]
        >>> score_factor(q @ k.mT / 2, q, k, torch.ones(4, 4, dtype=torch.bool))
        1.0
    """
    if scores is None or q is None or k is None:
        return math.nan
    allowed = allowed & (scores > -math.inf)
    s = scores.double().masked_fill(~allowed, 0.0)
    product = (q.double() @ k.double().mT).masked_fill(~allowed, 0.0)
    energy = float(product.square().sum())
    if not 0.0 < energy < math.inf:
        return math.nan
    factor = float((s * product).sum()) / energy
    residual = float((s - factor * product).square().sum()) ** 0.5
    is_multiple = residual <= EXACT_FIT * float(s.square().sum()) ** 0.5
    return factor * math.sqrt(q.shape[-1]) if is_multiple else math.nan


def induction(reading: Reading) -> dict[str, PerHead]:
    """Return the induction score of each head on a sequence of tokens that occurs twice, by the path of the layer.

    The score is the mean p, over the second half, on the token after the earlier occurrence (Olsson et al. 2022,
    arXiv:2209.11895).
    """
    found = {}
    for path, pattern in reading.trace.patterns().items():
        site = LayerPath.parse(path)
        tokens = reading.trace.read_by(site.stack)[0]
        is_own = not site.is_cross and None not in reading.adapter.shape.stacks_of(site)
        if is_own and len(tokens) == pattern.shape[-1]:
            found[path] = torch.tensor(induction_scores(pattern[0].float(), tokens.to(pattern.device)))
    return found


PROJECTIONS = {
    "qkv": re.compile(r"(^|[._])(qkv|c_attn|in_proj\w*|qkv_proj|query_key_value|weight_in|w_pack)([._]|$)", re.I),
    "q": re.compile(r"(^|[._])(w?_?q|query|q_proj|q_lin|to_q|wq|q_a_proj|q_b_proj)([._]|$)", re.IGNORECASE),
    "k": re.compile(r"(^|[._])(w?_?k|key|k_proj|k_lin|to_k|wk)([._]|$)", re.IGNORECASE),
    "v": re.compile(r"(^|[._])(w?_?v|value|v_proj|v_lin|to_v|wv)([._]|$)", re.IGNORECASE),
    "o": re.compile(
        r"(^|[._])(w?_?o|o_proj|out|out_proj|out_lin|to_out|wo|c_proj|dense|proj|output|weight_out)([._]|$)", re.I
    ),
}
"""The names of attention projections in common libraries; `qkv`, tried first, is a single matrix for all three."""


Projections = list[tuple[str, dict[str, list[nn.Parameter]]]]
"""The name of each attention module, and its weight matrices by "q", "k", "v", "o" and "qkv"."""


def attention_modules(model: nn.Module, owners: Sequence[str] = ()) -> Projections:
    """Return the modules that hold the projections of attention, in the order of the model, with their weight matrices.

    Args:
        model: Any model.
        owners: Names of modules known to compute attention; others are recognized by their names.

    Returns:
        Only the modules whose Q, K and V were all found.

    Example:
        >>> import xformer
        >>> modules = attention_modules(xformer.load("checkpoints/reverse").model)
        >>> [name for name, _ in modules][:2]
        ['encoder.blocks.0.attn', 'encoder.blocks.1.attn']
    """
    found: dict[str, dict[str, list[nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() != 2:  # the key bias never has a gradient: softmax cancels it
            continue
        parts = name.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            owner, rest = ".".join(parts[:depth]), ".".join(parts[depth:])
            is_attention = owner in owners or re.search("attention|attn", parts[depth - 1], re.IGNORECASE)
            kind = next((kind for kind, known in PROJECTIONS.items() if known.search(rest)), None)
            if is_attention and kind is not None:
                found.setdefault(owner, {}).setdefault(kind, []).append(parameter)
                break
    return [(name, kinds) for name, kinds in found.items() if "qkv" in kinds or {"q", "k", "v"} <= kinds.keys()]


@torch.no_grad()
def gradient_norms(modules: Projections) -> list[dict[str, float]]:
    """Return the norms of the current gradients of W_Q, W_K, W_V and W_O of each module of `attention_modules`.

    Returns:
        A dictionary per module with `grad_q`, `grad_k`, `grad_v` and `grad_o`; empty if no parameter has a gradient.
    """
    if not any(one.grad is not None for _, kinds in modules for ones in kinds.values() for one in ones):
        return []
    found = []
    for _, kinds in modules:
        squares: dict[str, float] = {}
        for kind, parameters in kinds.items():
            for one in parameters:
                gradient = torch.zeros_like(one) if one.grad is None else one.grad.float()
                parts = _split_qkv(gradient, kinds.get("o")) if kind == "qkv" else (gradient,)
                for letter, part in zip(kind, parts, strict=False):
                    squares[letter] = squares.get(letter, 0.0) + float(part.square().sum())
        found.append({f"grad_{letter}": math.sqrt(squares.get(letter, math.nan)) for letter in "qkvo"})
    return found


def _split_qkv(both: Float[Tensor, "one two"], out: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    """Split a joint matrix into its parts for Q, K and V. Q has as many rows as W_O has inputs; K and V share the rest equally.

    GPT-2 stores its matrices as [in, out], other models as [out, in]; the longer axis is the output.
    """
    axis = 0 if both.shape[0] >= both.shape[1] else 1
    n, d_model = both.shape[axis], both.shape[1 - axis]
    n_q = n // 3 if not out else out[0].numel() // d_model
    n_kv = (n - n_q) // 2
    return both.split([n_q, n_kv, n - n_q - n_kv], dim=axis) if n_q < n else both.chunk(3, dim=axis)
