"""How attention comes about, one small computation a step, on a few words whose vectors are short enough to be read.

average     Y = softmax(X Xᵀ) X                              no parameters: each word becomes a mean of all words
q, k, v     Y = softmax(Q Kᵀ / √d) V,   Q = X W_Q, …          Vaswani et al. 2017, §3.2.1
mask        S[i, j] = −∞ for j > i                            ibid., §3.2.3
heads       concat(head₁ … headₕ) W_O                         ibid., §3.2.2
position    f(P X) = P f(X) for every permutation P
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.errors import InputError
from xformer.layers.masks import causal_mask
from xformer.positions.sinusoidal import sinusoidal
from xformer.reading import Reading

MOST_WORDS, LONGEST_WORD = 8, 14
NO_MASK, BEFORE, AFTER, ZERO = "no mask", "−∞ before the softmax", "0 after the softmax", "0 before the softmax"
"""Ways to treat later keys: `BEFORE` is the right way to forbid them, the last two are mistakes that people make."""
BETWEEN_WORDS = ("products", "scores", "weights")
"""The matrices whose columns are words, as their rows are."""
Matrix = Float[Tensor, "row column"]


@dataclass(frozen=True)
class Sentence:
    """A few words with a vector of d numbers each, drawn from a seed; `own` is a word whose vector was set by hand.

    Raises `InputError` where there are fewer than two words, more than eight, or one is too long.
    """

    text: str
    d: int = 4
    seed: int = 3
    own: tuple[str, tuple[float, ...]] | None = None

    def __post_init__(self) -> None:
        if not 2 <= len(self.words) <= MOST_WORDS:
            raise InputError(
                f"A sentence here has 2 to {MOST_WORDS} words, so that every number can be read; this one has "
                f"{len(self.words)}. For example: the cat saw the dog."
            )
        if long := [word for word in self.words if len(word) > LONGEST_WORD]:
            raise InputError(
                f"A word here has at most {LONGEST_WORD} letters; “{long[0][:LONGEST_WORD]}…” has {len(long[0])}."
            )

    @property
    def words(self) -> list[str]:
        return self.text.split()

    @property
    def names(self) -> list[str]:
        """The words with their positions in front, so that repeats stay distinct."""
        return numbered(self.words)

    @property
    def x(self) -> Float[Tensor, "pos d_model"]:
        """The vectors of the words."""
        drawn = word_vectors(self.words, self.d, self.seed)
        if self.own is not None:
            drawn[[word == self.own[0] for word in self.words]] = torch.tensor(self.own[1])
        return drawn

    def in_order(self, order: Sequence[int]) -> Sentence:
        """The same words in another order."""
        words = self.words
        return Sentence(" ".join(words[at] for at in order), self.d, self.seed, self.own)

    def average(self) -> Mixed:
        """softmax(X Xᵀ) X: every word asks with its own vector, is found by it, and is mixed in as it is."""
        x = self.x
        scores = x @ x.T
        return Mixed(self.names, x, x, x, x, scores, scores.softmax(dim=-1), self._call("average"))

    def attention(self, *, mask: str = NO_MASK, n_heads: int = 1, head: int = 0, add_positions: bool = False) -> Mixed:
        """One of h heads, whose Q = X W_Q, K = X W_K, V = X W_V are drawn from the seed; head i has the i-th slice of columns.

        The positions are sinusoids. `mask` is one of "no mask", "−∞ before the softmax" and the two mistakes.
        """
        rows = self.x + sinusoidal(len(self.words), self.d) if add_positions else self.x
        q, k, v = ((rows @ w).chunk(n_heads, dim=1)[head] for w in learned_matrices(self.d, self.seed))
        asked = {"mask": mask, "n_heads": n_heads, "head": head, "add_positions": add_positions}
        return attend(self.names, self.x, q, k, v, mask, self._call("attention", **asked))

    def _call(self, method: str, **asked: Any) -> str:
        usual = {"mask": NO_MASK, "n_heads": 1, "head": 0, "add_positions": False}
        said = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value != usual[name])
        return f"xformer.analysis.principles.{self!r}.{method}({said})"

    def __repr__(self) -> str:
        own = "" if self.own is None else f", own={self.own!r}"
        return f"Sentence({self.text!r}, d={self.d}, seed={self.seed}{own})"


@dataclass(frozen=True, eq=False)
class Mixed:
    """One attention with all that it computes on the way."""

    names: Sequence[str]
    """Of its rows: the words."""
    x: Float[Tensor, "pos d_model"]
    """What goes in."""
    q: Float[Tensor, "pos d_head"]
    k: Float[Tensor, "pos d_head"]
    v: Float[Tensor, "pos d_value"]
    scores: Float[Tensor, "query key"]
    weights: Float[Tensor, "query key"]
    recipe: str
    """The call that makes it again."""
    mask: str = NO_MASK
    out_letter: str = "y"

    @property
    def products(self) -> Float[Tensor, "query key"]:
        """q · k, before they are scaled."""
        return self.q @ self.k.T

    @property
    def out(self) -> Float[Tensor, "query d_value"]:
        """The mixed values."""
        return self.weights @ self.v

    def weighted_sum(self, row: int) -> str:
        """One row of the weights as the sum that it stands for: "new 0 the = 0.12 · 0 the + …"."""
        weights = zip(self.weights[row].tolist(), self.names, strict=True)
        return f"new {self.names[row]} = {' + '.join(f'{weight:.3f} · {name}' for weight, name in weights)}"


def attend(names: Sequence[str], x: Matrix, q: Matrix, k: Matrix, v: Matrix, mask: str, recipe: str) -> Mixed:
    """softmax(Q Kᵀ / √d) V under one of the ways to treat later keys."""
    scores = q @ k.T / math.sqrt(q.shape[1])
    later = ~causal_mask(*scores.shape)
    if mask in (BEFORE, ZERO):
        scores = scores.masked_fill(later, float("-inf") if mask == BEFORE else 0.0)
    weights = scores.softmax(dim=-1)
    return Mixed(names, x, q, k, v, scores, weights.masked_fill(later, 0.0) if mask == AFTER else weights, recipe, mask)


def head_of(reading: Reading, *, layer: int, head: int) -> Mixed:
    """The same steps with the real numbers of a causal head: computed again from its q, k and v."""
    site = reading.attention_site(layer)
    q, k, v = (reading[f"{site.path}.{name}"][0, head] for name in "qkv")
    names, x = numbered(reading.tokens_of(site.stack)), reading[f"{site.stack}.{site.layer}.resid_pre"][0]
    recipe = f"xformer.analysis.principles.head_of({reading.recipe}, layer={layer}, head={head})"
    return replace(attend(names, x, q, k, v, BEFORE, recipe), out_letter="z")


def order_error(sentence: Sentence, order: Sequence[int], *, add_positions: bool = False) -> float:
    """max |f(P X) − P f(X)| of attention f: 0 but for rounding where it does not know the order of its rows."""
    moved, typed = (one.attention(add_positions=add_positions).out for one in (sentence.in_order(order), sentence))
    return (moved - typed[list(order)]).abs().max().item()


def matrix(mixed: Mixed, *, which: str, n_columns: int | None = None) -> pd.DataFrame:
    """A matrix of an attention ("x", "q", "scores", "weights", "out", …), one row a cell: matrix, row, column, value.

    `n_columns` are the first ones that are wanted, all by default.
    """
    values = getattr(mixed, which)[:, :n_columns]  # [row, column]
    letter = mixed.out_letter if which == "out" else which
    numbers = [f"{letter}{index}" for index in range(1, values.shape[1] + 1)]
    columns = mixed.names if which in BETWEEN_WORDS else numbers
    cells = [
        (which, row, column, value)
        for row, numbers in zip(mixed.names, values.tolist(), strict=True)
        for column, value in zip(columns, numbers, strict=True)
    ]
    return pd.DataFrame(cells, columns=["matrix", "row", "column", "value"])


def numbered(words: Sequence[str]) -> list[str]:
    """Words with their positions in front."""
    return [f"{position} {word}" for position, word in enumerate(words)]


def word_vectors(words: Sequence[str], d: int, seed: int = 0) -> Float[Tensor, "pos d_model"]:
    """A vector of d numbers from N(0, 1) for each word: the same word and seed always have the same one."""
    drawn = {}
    for word in words:
        draw = torch.Generator().manual_seed(zlib.crc32(word.encode("utf-8", "replace")) + 7919 * seed)
        drawn[word] = torch.randn(d, generator=draw)
    return torch.stack([drawn[word] for word in words])


def learned_matrices(d: int, seed: int = 0, names: str = "QKV") -> list[Float[Tensor, "d_model d_model"]]:
    """One matrix a name, standing for learned ones: from N(0, 1/d), so that what goes in and what comes out spread alike."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(d, d, generator=draw) / math.sqrt(d) for _ in names]
