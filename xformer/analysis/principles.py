"""Attention step by step: on a few words with short vectors, in one cell of a trained head, and its cost and scaling.

average     Y = softmax(X Xᵀ) X                              no parameters: each word becomes a weighted mean of all words
q, k, v     Y = softmax(Q Kᵀ / √d) V,   Q = X W_Q, …          Vaswani et al. 2017, §3.2.1
mask        S[i, j] = −∞ for j > i                            ibid., §3.2.3
heads       concat(head₁ … headₕ) W_O                         ibid., §3.2.2
position    f(P X) = P f(X) for every permutation P           holds for f without positions
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from xformer.analysis.attention_patterns import numbered, token_names
from xformer.arguments import Count, Seed
from xformer.components import FEED_FORWARDS, KEY_VALUE_HEADS, MASKS, NORMS
from xformer.errors import EditError, InputError, UnavailableError
from xformer.formatting import check_option
from xformer.layer_path import after, before_attention
from xformer.layers.masks import causal_mask
from xformer.positions import POSITION_KINDS
from xformer.positions.sinusoidal import sinusoidal
from xformer.reading import Reading

MAX_WORDS, LONGEST_WORD = 8, 14
NO_MASK, BEFORE, AFTER, ZERO = "no mask", "−∞ before the softmax", "0 after the softmax", "0 before the softmax"
"""Ways to treat later keys: `BEFORE` is the correct mask, the last two are common mistakes."""
BETWEEN_WORDS = ("scores", "weights")
"""The matrices whose columns, like their rows, are words."""
Matrix = Float[Tensor, "row column"]


@dataclass(frozen=True)
class Sentence:
    """A few words with a vector of d numbers each, drawn from a seed; `own` is a word and the vector set for it by hand.

    Raises `InputError` for fewer than two or more than eight words, and for a word that is too long.
    """

    text: str
    d: int = 4
    seed: int = 3
    own: tuple[str, tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        if not 2 <= len(self.words) <= MAX_WORDS:
            raise InputError(
                f"A sentence here has 2 to {MAX_WORDS} words, so that every number can be read; this one has "
                f"{len(self.words)}. For example: the cat saw the dog."
            )
        if len(word := max(self.words, key=len)) > LONGEST_WORD:
            raise InputError(f"A word has at most {LONGEST_WORD} letters; “{word[:LONGEST_WORD]}…” has {len(word)}.")

    @property
    def words(self) -> list[str]:
        return self.text.split()

    @property
    def names(self) -> list[str]:
        """The words prefixed with their positions, so that repeated words stay distinct."""
        return numbered(self.words)

    @property
    def x(self) -> Float[Tensor, "pos d_model"]:
        """The vectors of the words."""
        drawn = word_vectors(self.words, self.d, self.seed)
        if self.own is not None:
            drawn[[word == self.own[0] for word in self.words]] = torch.tensor(self.own[1])
        return drawn

    def in_order(self, order: Sequence[int]) -> Sentence:
        """Return the same words in another order."""
        return replace(self, text=" ".join(self.words[at] for at in order))

    def average(self) -> Mixed:
        """Compute softmax(X Xᵀ) X: the vector of each word serves as its query, key and value."""
        x = self.x
        scores = x @ x.T
        return Mixed(self.names, x, x, x, x, scores, scores.softmax(dim=-1), self._call("average"))

    def attention(self, *, mask: str = NO_MASK, n_heads: int = 1, head: int = 0, add_positions: bool = False) -> Mixed:
        """Compute one of h heads: W_Q, W_K and W_V are drawn from the seed, and head i uses the i-th slice of their columns.

        Positions are sinusoids. `mask` is one of "no mask", "−∞ before the softmax", "0 after the softmax" and "0 before the
        softmax".
        """
        rows = self.x + sinusoidal(len(self.words), self.d) if add_positions else self.x
        q, k, v = ((rows @ w).chunk(n_heads, dim=1)[head] for w in learned_matrices(self.d, self.seed))
        given = {"mask": mask, "n_heads": n_heads, "head": head, "add_positions": add_positions}
        return attend(self.names, self.x, q, k, v, mask, self._call("attention", **given))

    def _call(self, method: str, **given: Any) -> str:
        usual = {"mask": NO_MASK, "n_heads": 1, "head": 0, "add_positions": False}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != usual[name])
        return f"xformer.analysis.principles.{self!r}.{method}({arguments})"


@dataclass(frozen=True, eq=False)
class Mixed:
    """One attention with all intermediate matrices."""

    names: Sequence[str]
    """The names of the rows: the words."""
    x: Float[Tensor, "pos d_model"]
    """The input vectors."""
    q: Float[Tensor, "pos d_head"]
    k: Float[Tensor, "pos d_head"]
    v: Float[Tensor, "pos d_value"]
    scores: Float[Tensor, "query key"]
    weights: Float[Tensor, "query key"]
    code: str
    """The call that repeats the computation."""
    mask: str = NO_MASK
    out_letter: str = "y"

    @property
    def out(self) -> Float[Tensor, "query d_value"]:
        """The weighted values."""
        return self.weights @ self.v


def attend(names: Sequence[str], x: Matrix, q: Matrix, k: Matrix, v: Matrix, mask: str, code: str) -> Mixed:
    """Compute softmax(Q Kᵀ / √d) V with one of the ways to treat later keys."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    later = ~causal_mask(*scores.shape)
    if mask in (BEFORE, ZERO):
        scores = scores.masked_fill(later, float("-inf") if mask == BEFORE else 0.0)
    weights = scores.softmax(dim=-1)
    return Mixed(names, x, q, k, v, scores, weights.masked_fill(later, 0.0) if mask == AFTER else weights, code, mask)


def head_of(reading: Reading, *, layer: int, head: int) -> Mixed:
    """Recompute a trained causal head from its recorded q, k and v."""
    site = reading.attention_path(layer)
    q, k, v = (reading[f"{site.path}.{name}"][0, head] for name in "qkv")
    names, x = numbered(reading.tokens_of(site.stack)), reading[f"{site.stack}.{site.layer}.resid_pre"][0]
    code = f"xformer.analysis.principles.head_of({reading.code}, layer={layer}, head={head})"
    return replace(attend(names, x, q, k, v, BEFORE, code), out_letter="z")


def order_error(sentence: Sentence, order: Sequence[int], *, add_positions: bool = False) -> float:
    """Return max |f(P X) − P f(X)| of attention f: 0 up to rounding if it ignores the order of its rows."""
    sentences = sentence.in_order(order), sentence
    permuted, original = (one.attention(add_positions=add_positions).out for one in sentences)
    return (permuted - original[list(order)]).abs().max().item()


def matrix(mixed: Mixed, *, what: str, n_columns: Count | None = None) -> pd.DataFrame:
    """Tabulate one matrix of an attention, a row per cell.

    Args:
        mixed: The attention, from the methods of a `principles.Sentence`.
        what: The matrix: "x", "q", "k", "v", "scores", "weights" or "out".
        n_columns: Keep only the first columns; all by default.

    Returns:
        A row per cell: matrix (`what`), row and column (words with their positions, or numbered dimensions), value.

    Example:
        >>> import xformer
        >>> sentence = xformer.analysis.principles.Sentence("the cat saw the dog", d=4)
        >>> table = xformer.analysis.matrix(sentence.attention(), what="weights")
        >>> list(table.columns)
        ['matrix', 'row', 'column', 'value']
    """
    check_option("what", what, ("x", "q", "k", "v", "scores", "weights", "out"))
    values = getattr(mixed, what)[:, :n_columns]  # [row, column]
    letter = mixed.out_letter if what == "out" else what
    numbers = [f"{letter}{index}" for index in range(1, values.shape[1] + 1)]
    columns = mixed.names[:n_columns] if what in BETWEEN_WORDS else numbers
    cells = [(what, row, column) for row in mixed.names for column in columns]
    return pd.DataFrame(cells, columns=["matrix", "row", "column"]).assign(value=values.flatten().tolist())


def parts() -> pd.DataFrame:
    """List the registered components of a transformer, a row each: part, title, explanation, and source of publication."""
    known = {"Norm": NORMS, "Feed-forward": FEED_FORWARDS, "Mask": MASKS, "Key/value heads": KEY_VALUE_HEADS}
    rows = [(part, one.title, one.explanation, one.source) for part, ones in known.items() for one in ones.values()]
    rows += [("Positions", one.title, f"{one.summary} {one.note}", one.source) for one in POSITION_KINDS.values()]
    return pd.DataFrame(rows, columns=["part", "title", "explanation", "source"])


def word_vectors(words: Sequence[str], d: int, seed: int = 0) -> Float[Tensor, "pos d_model"]:
    """Draw a vector of d numbers from N(0, 1) for each word; the same word and seed always give the same vector."""
    seeds = [zlib.crc32(word.encode("utf-8", "replace")) + 7919 * seed for word in words]
    return torch.stack([torch.randn(d, generator=torch.Generator().manual_seed(one)) for one in seeds])


def learned_matrices(d: int, seed: int = 0) -> list[Float[Tensor, "d_model d_model"]]:
    """Draw W_Q, W_K and W_V in place of learned ones, from N(0, 1/d), so that outputs have the same variance as inputs."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(d, d, generator=draw) / math.sqrt(d) for _ in "QKV"]


@dataclass(frozen=True, eq=False)
class AttentionCell:
    """The numbers of one (query, key) cell, taken from a trace."""

    q: Float[Tensor, " d_head"]
    k: Float[Tensor, " d_head"]
    v: Float[Tensor, " d_value"]
    bias: float
    """What ALiBi adds to the score; 0 without it."""
    score: float
    """q · k / √d_head + bias; if the layer computes something else, its recorded score before the mask."""
    allowed: Bool[Tensor, " key"]
    scores: Float[Tensor, " key"]
    """The query's masked scores: −inf where not allowed."""
    pattern: Float[Tensor, " key"]
    z: Float[Tensor, " d_value"]
    keys: Float[Tensor, "key d_head"]
    values: Float[Tensor, "key d_value"]
    tokens: tuple[str, ...]
    """The tokens at the keys."""
    shared_by: tuple[int, ...] = ()
    """The heads, including this one, that use exactly the same keys and values."""

    @property
    def d_head(self) -> int:
        return len(self.q)

    @property
    def dot(self) -> float:
        """q · k, before scaling."""
        return (self.q.double() @ self.k.double()).item()


def attention_cell(reading: Reading, *, layer: int, head: int, query: int, key: int) -> AttentionCell:
    """Collect the numbers of one cell. `layer` (in the order of attention layers), head, query and key count from 0.

    Raises `EditError` if the layer, head or cell is not in the trace.
    """
    site = reading.attention_path(layer)
    at = site.path
    pattern = reading[f"{at}.pattern"][0]  # [head, query, key]
    for name, value, size in zip(("head", "query", "key"), (head, query, key), pattern.shape, strict=True):
        if not 0 <= value < size:
            raise EditError(f"In {at}, {name} must be between 0 and {size - 1}, got {value}.")
    q, k, values = (reading[f"{at}.{name}"][0, head] for name in ("q", "k", "v"))
    bias = reading[f"{at}.pos_bias"][0, head, query, key].item() if f"{at}.pos_bias" in reading else 0.0
    dot = (q[query].double() @ k[key].double()).item()
    score, recorded = dot / math.sqrt(q.shape[-1]) + bias, reading[f"{at}.scores"][0, head, query, key].item()
    keys, of_all = reading[f"{at}.k"][0], reading[f"{at}.v"][0]
    return AttentionCell(
        q=q[query],
        k=k[key],
        v=values[key],
        bias=bias,
        score=recorded if math.isfinite(recorded) and abs(recorded - score) > 1e-3 * max(1.0, abs(score)) else score,
        allowed=reading[f"{at}.mask"][0, head, query],
        scores=reading[f"{at}.scores"][0, head, query],
        pattern=pattern[head, query],
        z=reading[f"{at}.z"][0, head, query],
        keys=keys[head],
        values=values,
        tokens=token_names(reading, site, pattern.shape)[1],
        shared_by=tuple(
            one for one in range(len(keys)) if keys[one].equal(keys[head]) and of_all[one].equal(of_all[head])
        ),
    )


@dataclass(frozen=True, eq=False)
class StreamUpdate:
    """What an attention adds to the residual stream at one position: before + z W_O + others."""

    z: Float[Tensor, " d_value"]
    w_o: Float[Tensor, "d_value d_model"]
    """The rows of W_O that belong to the head."""
    before: Float[Tensor, " d_model"]
    others: Float[Tensor, " d_model"]
    """What the other heads and the output bias add."""
    is_normed: bool
    """Whether the sum is normalised (post-norm) before it goes on."""

    @property
    def head(self) -> Float[Tensor, " d_model"]:
        """What the head adds: z W_O."""
        return self.z @ self.w_o

    @property
    def total(self) -> Float[Tensor, " d_model"]:
        """The sum of all three."""
        return self.before + self.head + self.others


def head_output(reading: Reading, *, layer: int, head: int, query: int) -> Float[Tensor, " d_model"]:
    """Return what a head adds to the residual stream at a position: z W_O (the output bias belongs to no head)."""
    z, w_o = _to_stream(reading, layer, head, query)
    return z @ w_o


def stream_update(reading: Reading, *, layer: int, head: int, query: int) -> StreamUpdate:
    """Split what an attention layer makes of the residual stream at one position: before + this head + the others.

    Raises `UnavailableError` if the recorded stream after the layer is not this sum.
    """
    z, w_o = _to_stream(reading, layer, head, query)
    site, is_normed = reading.attention_path(layer), reading.adapter.shape.norm == "post"
    names = (before_attention(site), f"{site.path}.out", after(site))
    if any(name not in reading for name in names):
        raise UnavailableError("The residual stream around this layer is not recorded.")
    before, out, then = (reading[name][0, query].detach().double() for name in names)
    if not is_normed and not (before + out).allclose(then, atol=1e-4 * float(then.abs().max()) + 1e-6):
        raise UnavailableError("The stream after this layer is not the sum of the stream before it and its output.")
    z, w_o = z.detach().double(), w_o.double()
    return StreamUpdate(z=z, w_o=w_o, before=before, others=out - z @ w_o, is_normed=is_normed)


def _to_stream(
    reading: Reading, layer: int, head: int, query: int
) -> tuple[Float[Tensor, " d_value"], Float[Tensor, "d_value d_model"]]:
    """Return z of a head at a position, and the rows of W_O that belong to the head."""
    path = reading.attention_path(layer).path
    z, to_stream = reading[f"{path}.z"][0, head, query], reading.adapter.weights.projection(path)
    if to_stream.norm is not None:
        raise UnavailableError("A norm follows the heads of this layer, so no head by itself adds to the stream.")
    rows = to_stream.weight[head * len(z) : (head + 1) * len(z)]
    return z, to_stream.factor * rows.detach().to(z.dtype)


def attention_steps(reading: Reading, *, layer: int, head: int, query: int, key: int) -> pd.DataFrame:
    """Compute the softmax over all keys of one query, step by step.

    Args:
        reading: The run.
        layer: The attention layer, from 0.
        head: The head, from 0.
        query: The query's position, from 0.
        key: A key's position, from 0; it must exist, but the table covers all keys.

    Returns:
        A row per key: key (position, from 0), token, allowed (whether the mask permits it), score (scaled; NaN where
        masked), exp (exp(score − largest score), 0 where masked) and weight (its share of their sum).

    Raises:
        EditError: If the layer, head or cell does not exist.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.attention_steps(reading, layer=2, head=1, query=0, key=4)
        >>> list(table.columns)
        ['key', 'token', 'allowed', 'score', 'exp', 'weight']
    """
    return softmax_of_cell(attention_cell(reading, layer=layer, head=head, query=query, key=key))


def dimensions(cell: AttentionCell) -> pd.DataFrame:
    """Tabulate q, k and their product, a row per dimension of the head; the sum of the products over √d_head is the score."""
    table = pd.DataFrame({"q": cell.q.tolist(), "k": cell.k.tolist(), "product": (cell.q * cell.k).tolist()})
    return table.rename_axis("dimension").reset_index()


def softmax_of_cell(cell: AttentionCell) -> pd.DataFrame:
    """Tabulate the softmax over the keys of a cell's query; see `attention_steps`."""
    largest = cell.scores[cell.allowed].max() if bool(cell.allowed.any()) else torch.tensor(0.0)
    raised = torch.where(cell.allowed, (cell.scores - largest).exp(), 0.0)  # [key]
    scores = [score if math.isfinite(score) else None for score in cell.scores.tolist()]
    table = pd.DataFrame({"key": range(len(scores)), "token": cell.tokens, "allowed": cell.allowed.tolist()})
    return table.assign(score=scores, exp=raised.tolist(), weight=cell.pattern.tolist())


def strongest(row: pd.DataFrame, most: int, key: int) -> pd.DataFrame:
    """Keep the `most` keys of a softmax row with the largest weights, in order, and the chosen `key`."""
    kept = row.nlargest(most, "weight").index.union([key])
    return row if len(row) <= most else row.loc[kept].reset_index(drop=True)


def multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> dict[str, int]:
    """Count the multiplications of multi-head attention by part, from its shapes alone (without biases and softmax)."""
    wide = n_heads * d_head
    of_pairs = n * n * wide
    return {
        "Q, K, V = X W": 3 * n * d_model * wide,
        "Q Kᵀ": of_pairs,
        "A V": of_pairs,
        "out = Z W_O": n * wide * d_model,
    }


def measured_multiplications(n: int, d_model: int, n_heads: int, d_head: int) -> int:
    """Count the same multiplications with torch's FLOP counter while they are carried out on meta tensors.

    A FLOP count includes each multiplication and its addition, so it is halved.
    """

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        x = torch.empty(n, d_model)
        q, k, v = (x @ torch.empty(d_model, n_heads * d_head) for _ in "qkv")
        q, k, v = (y.view(n, n_heads, d_head).transpose(0, 1) for y in (q, k, v))  # [head, pos, d_head]
        z = (q @ k.mT).softmax(dim=-1) @ v  # [head, pos, d_head]
        _ = z.transpose(0, 1).reshape(n, n_heads * d_head) @ torch.empty(n_heads * d_head, d_model)
    return counter.get_total_flops() // 2


def attention_costs(*, n_tokens: Count, d_model: Count, n_heads: Count) -> pd.DataFrame:
    """Count the multiplications of one head, of h heads that share d_model, and of h heads that are each as wide as d_model.

    Args:
        n_tokens: The number of tokens.
        d_model: The width of the residual stream.
        n_heads: The number of heads h.

    Returns:
        A row per kind of heads and part of the computation: heads, part, count (multiplications of that part) and measured
        (those of the whole layer, counted by torch).

    Example:
        >>> import xformer
        >>> table = xformer.analysis.attention_costs(n_tokens=128, d_model=512, n_heads=8)
        >>> list(table.columns)
        ['heads', 'part', 'count', 'measured']
    """
    kinds = {"one head of d": (1, d_model), "h heads of d/h": (n_heads, d_model // n_heads)}
    kinds["h heads of d"] = n_heads, d_model
    rows = []
    for name, (heads, width) in kinds.items():
        measured = measured_multiplications(n_tokens, d_model, heads, width)
        counts = multiplications(n_tokens, d_model, heads, width)
        rows += [(name, part, count, measured) for part, count in counts.items()]
    return pd.DataFrame(rows, columns=["heads", "part", "count", "measured"])


N_PAIRS, N_QUERIES, N_KEYS = 2000, 200, 8
"""Default numbers of sampled products, of sampled queries, and of keys per query."""

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512)

SCALED, RAW = "with 1/√d", "without"


def product_variances(*, widths: Sequence[int] = WIDTHS, samples: Count = N_PAIRS, seed: Seed = 0) -> pd.DataFrame:
    """Measure the variance of q · k and of q · k / √d for vectors drawn from N(0, 1), at several widths d.

    For independent entries of mean 0 and variance 1, Var(qᵢ kᵢ) = E[qᵢ²] E[kᵢ²] − 0 = 1, and the d summands are independent,
    so Var(q · k) = d. Since the products have an excess kurtosis of 6/d, the standard error of their variance over n samples is
    d √((2 + 6/d) / n). All widths use the same draws, so the errors of neighbouring widths are correlated.

    Args:
        widths: The widths d of queries and keys.
        samples: The number of products per width.
        seed: The seed of the random numbers.

    Returns:
        A row per width: d, variance (of q · k), scaled (the variance of q · k / √d) and error (the standard error of variance).

    Example:
        >>> import xformer
        >>> table = xformer.analysis.product_variances(widths=[4, 64], samples=200)
        >>> list(table.columns)
        ['d', 'variance', 'scaled', 'error']
    """
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(samples, max(widths), generator=draw, dtype=torch.float64) for _ in "qk")
    sums = (q * k).cumsum(dim=1)  # [sample, d]
    variance = torch.stack([sums[:, d - 1].var() for d in widths])  # [width]
    d = torch.tensor(widths, dtype=torch.float64)
    error = d * ((2 + 6 / d) / samples).sqrt()
    columns = {"variance": variance, "scaled": variance / d, "error": error}
    return pd.DataFrame({"d": list(widths)} | {name: values.tolist() for name, values in columns.items()})


def softmax_jacobian(weights: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key key"]:
    """Return ∂pᵢ/∂sⱼ = pᵢ (δᵢⱼ − pⱼ). The entry with the largest magnitude is on the diagonal, p (1 − p) ≤ 1/4."""
    return torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]


def softmax_saturation(
    *, widths: Sequence[int] = WIDTHS, n_keys: Count = N_KEYS, samples: Count = N_QUERIES, seed: Seed = 0
) -> pd.DataFrame:
    """Measure how far the softmax over random products saturates, with and without the factor 1/√d, at several widths d.

    Args:
        widths: The widths d of queries and keys.
        n_keys: The number of keys per query.
        samples: The number of queries that are averaged.
        seed: The seed of the random numbers.

    Returns:
        A row per width and scale: d, scale ("with 1/√d" or "without"), largest (mean of the largest weight) and gradient (mean
        of the largest entry of the softmax's Jacobian).

    Example:
        >>> import xformer
        >>> table = xformer.analysis.softmax_saturation(widths=[4, 64], samples=50)
        >>> list(table.columns)
        ['d', 'scale', 'largest', 'gradient']
    """
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(samples, 1, max(widths), generator=draw)
    k = torch.randn(samples, n_keys, max(widths), generator=draw)
    sums = (q * k).cumsum(dim=-1)  # [sample, key, d]
    rows = []
    for d in widths:
        for scale, divisor in ((SCALED, math.sqrt(d)), (RAW, 1.0)):
            weights = (sums[..., d - 1] / divisor).softmax(dim=-1)  # [sample, key]
            gradient = softmax_jacobian(weights).flatten(1).amax(dim=1)  # [sample]
            rows.append((d, scale, weights.amax(dim=1).mean().item(), gradient.mean().item()))
    return pd.DataFrame(rows, columns=["d", "scale", "largest", "gradient"])


def softmax_row(*, d: Count, scaled: bool = True, n_keys: Count = N_KEYS, seed: Seed = 0) -> pd.DataFrame:
    """Compute the attention of one random query over `n_keys` random keys of width d.

    Args:
        d: The width of queries and keys.
        scaled: Divide the scores by √d.
        n_keys: The number of keys.
        seed: The seed of the random numbers.

    Returns:
        A row per key: key (from 0), score and weight.

    Example:
        >>> import xformer
        >>> table = xformer.analysis.softmax_row(d=64)
        >>> list(table.columns)
        ['key', 'score', 'weight']
    """
    draw = torch.Generator().manual_seed(seed)
    q, k = torch.randn(max(WIDTHS), generator=draw), torch.randn(n_keys, max(WIDTHS), generator=draw)
    scores = k[:, :d] @ q[:d] / (math.sqrt(d) if scaled else 1.0)
    return pd.DataFrame({"key": range(n_keys), "score": scores.tolist(), "weight": scores.softmax(dim=-1).tolist()})
