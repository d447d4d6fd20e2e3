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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

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
    "first_token": "mean over queries after the first of p on key 0, a share",
    "diagonal": "mean over queries of p on the query's own position, a share",
    "previous": "mean over queries of p on the position before, a share",
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
KEEP = ("*.pattern", "*.scores", "*.mask", "*.z", "*.q", "*.k", "*.resid_post", "*.post")
"""What a run must keep for all measures; patterns that a model lacks are skipped."""
SILENT_NEURON, EXACT_FIT = 1e-3, 1e-3
"""A neuron whose peak is below this share of its layer's RMS is inactive. The largest relative residual of s = factor · q·k."""


PerHead = Float[Tensor, " head"]
Valid = Bool[Tensor, "batch pos"] | None
"""True at tokens, False at padding; None if there is no padding."""


@dataclass(frozen=True, eq=False)
class Measures:
    """The measures of one run, by the path of the attention layer, and its attention patterns."""

    heads: dict[str, dict[str, PerHead]]
    layers: dict[str, dict[str, float]]
    patterns: dict[str, Float[Tensor, "batch head query key"]] = field(default_factory=dict, repr=False)


@torch.no_grad()
def measure(reading: Reading, previous: Mapping[str, Tensor] | None = None, valid: Valid = None) -> Measures:
    """Measure every attention layer of a recorded run.

    Args:
        reading: The run, which must keep the activations in `KEEP`.
        previous: The patterns [batch, head, query, key] of an earlier run on the same inputs, by the path of the layer, for
            `moved`.
        valid: True at tokens, False at padding, for modules whose padding mask has a name that the adapter does not recognize.

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
    patterns = {path: value.float() for path, value in reading.trace.patterns().items()}
    for path, pattern in patterns.items():
        site = LayerPath.parse(path)
        get = {what: reading.trace.activations.get(f"{path}.{what}") for what in ("scores", "mask", "z", "q", "k")}
        scores, allowed = get["scores"], get["mask"]
        if allowed is None:
            allowed = pattern.new_ones(pattern.shape, dtype=torch.bool) if scores is None else scores > -math.inf
        stacks = reading.adapter.shape.stacks_of(site)
        valid_q, valid_k = (_valid_positions(reading, stack, pattern, valid) for stack in stacks)
        rows = _Rows(pattern, allowed.expand(pattern.shape), valid_q, valid_k, is_self=not site.is_cross)
        found = rows.measures(scores)
        found["output_norm"] = rows.mean(_output_size(reading, path, get["z"], pattern))
        before = (previous or {}).get(path)
        moved = None if before is None or before.shape != pattern.shape else (pattern - before).abs().sum(-1) / 2
        found["moved"] = rows.mean(moved)
        heads[path] = {name: found.get(name, rows.nothing).float().cpu() for name in HEAD_MEASURES}
        layers[path] = _layer(reading, site, rows) | {"score_factor": score_factor(scores, get["q"], get["k"], allowed)}
    return Measures(heads, layers, patterns)


def _valid_positions(reading: Reading, stack: str | None, pattern: Tensor, valid: Valid) -> Valid:
    """Return which positions of a stack are tokens; None if all of them are, or for positions of another input."""
    if stack is None:
        return None
    trace = reading.trace
    is_target = stack == "decoder" and trace.target is not None
    known = trace.target_valid if is_target else trace.valid
    valid = valid if known is None and trace.target is None else known
    return None if valid is None or len(valid) != len(pattern) else valid.to(pattern.device)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one layer's pattern, and which of them are counted."""

    p: Float[Tensor, "batch head query key"]
    allowed: Bool[Tensor, "batch head query key"]
    valid_q: Bool[Tensor, "batch query"] | None
    valid_k: Bool[Tensor, "batch key"] | None
    is_self: bool

    @property
    def nothing(self) -> PerHead:
        return self.p.new_full(self.p.shape[1:2], math.nan)

    def mean(self, values: Float[Tensor, "batch head query"] | None, counted: Tensor | None = None) -> PerHead:
        """Average over the counted rows; `counted` [query] or [batch, head, query] excludes more. NaN without rows."""
        if values is None:
            return self.nothing
        keep = self._kept(counted)
        return torch.where(keep, values.float(), 0.0).sum((0, 2)) / keep.sum((0, 2))  # 0/0 is NaN

    def _kept(self, counted: Tensor | None) -> Bool[Tensor, "batch head query"]:
        keep = self.p.new_ones(self.p.shape[:3], dtype=torch.bool)
        keep = keep if self.valid_q is None else keep & self.valid_q[:, None]
        return keep if counted is None else keep & counted

    def measures(self, scores: Tensor | None) -> dict[str, PerHead]:
        p, (n_query, n_key) = self.p, self.p.shape[-2:]
        n = self.allowed.sum(-1)  # [batch, head, query]: permitted keys
        query, key = torch.arange(n_query, device=p.device), torch.arange(n_key, device=p.device)
        found = {"first_token": self.mean(p[..., 0], query > 0)}
        found |= self._entropies(n)
        if scores is not None:
            s = scores.float().masked_fill(~self.allowed, 0.0)
            spread = (s.square().sum(-1) / n - (s.sum(-1) / n).square()).clamp(min=0).sqrt()
            found["score_spread"] = self.mean(spread, n > 1)
            keep = self.allowed & self._kept(None)[..., None]
            found["score_max"] = scores.float().masked_fill(~keep, -math.inf).amax((0, 2, 3))
        if self.is_self and n_query == n_key:
            found["diagonal"] = self.mean(p.diagonal(dim1=-2, dim2=-1))
            before = torch.cat([p.new_zeros(*p.shape[:2], 1), p.diagonal(-1, dim1=-2, dim2=-1)], dim=-1)
            found["previous"] = self.mean(before, query > 0)
            found["future"] = self.mean(p.masked_fill(key <= query[:, None], 0.0).sum(-1))
        if self.valid_k is not None and not bool(self.valid_k.all()):
            found["padding"] = self.mean(p.masked_fill(self.valid_k[:, None, None], 0.0).sum(-1))
        if p.shape[1] > 1:
            flat = (p * self._kept(None)[..., None]).transpose(0, 1).flatten(1)  # [head, batch·query·key]
            apart = torch.cdist(flat, flat, p=1.0) / 2 / self._kept(None)[:, 0].sum().clamp(min=1)
            found["twin_distance"] = apart.fill_diagonal_(math.inf).amin(-1)
        return found

    def _entropies(self, n: Int[Tensor, "batch head query"]) -> dict[str, PerHead]:
        """Return quantiles of the normalised entropy over the rows with at least two permitted keys."""
        h = torch.special.entr(self.p).sum(-1) / n.clamp(min=2).log()  # [batch, head, query], from 0 to 1
        h = h.masked_fill(~self._kept(n > 1), math.nan).transpose(0, 1).flatten(1)  # [head, batch·query]
        at = torch.nanquantile(h, h.new_tensor([0.05, 0.5, 0.95]), dim=1)  # [quantile, head]
        at = at.masked_fill(~self.p.isfinite().all(-1).all(-1).all(0), math.nan)
        return dict(zip(("entropy_p05", "entropy_p50", "entropy_p95"), at, strict=True))


def _output_size(reading: Reading, path: str, z: Tensor | None, pattern: Tensor) -> Tensor | None:
    """Return ‖z W_O‖₂ of each head and query [batch, head, query] from Gram matrices, without forming vectors of d_model."""
    if z is None:
        return None
    z, n_heads = z.float(), pattern.shape[1]
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
