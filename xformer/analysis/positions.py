"""What positions look like to a model: the vectors that are added, and what two positions make of each other by offset.

    added       P[i] · P[j]                       sinusoidal, learned, mirror
    turned      (R_i q) · (R_j k)                 the same q and k at any two positions          (Su et al. 2021, §3.4)
    biased      b_head(i − j)                     added to the score itself: ALiBi, T5

Each is a matrix [query, key]; `by_offset` then reads it along its diagonals. For the sinusoidal kind with an even d_model
every diagonal is constant, Σ cos(offset · ω); for rotary it is Σ over pairs as well, by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.edits import zero_positions
from xformer.layers.embedding import PatchEmbedding
from xformer.layers.layout import Layout
from xformer.layers.stack import Stack
from xformer.model import Transformer
from xformer.positions.rotary import rotary_angles, rotate
from xformer.trace import Trace, record

ROUNDING = 1e-4
"""Logits that differ by less than this share of the largest are the same but for single precision."""


def added_positions(model: Transformer, n_pos: int, stack: str | None = None) -> Float[Tensor, "pos d_model"] | None:
    """What the model adds at each position of a sequence of `n_pos` tokens; None where it adds nothing.

    The length matters to the mirror kind alone. `stack` chooses the side of an encoder-decoder, else there is one.
    """
    _, chosen = _stack_of(model, stack)
    if chosen.positions.table is None:
        return None
    with torch.no_grad():
        return chosen.positions.table(Layout.plain(n_pos))


def fixed_positions(config: ModelConfig, n_pos: int, kind: str) -> Float[Tensor, "pos d_model"]:
    """What a kind that learns nothing would add at each position in a model of that configuration."""
    sizes = config.replace(positions=kind, max_len=max(n_pos, config.max_len))
    index = torch.arange(n_pos)
    vectors = sizes.position_kind.add(sizes, sizes.position_kind.fixed(sizes), index, index.flip(0))
    assert vectors is not None, f"{kind} positions add nothing"
    return vectors.to(torch.get_default_dtype())


def dot_products(vectors: Float[Tensor, "pos d_model"]) -> Float[Tensor, "query key"]:
    """Each position's vector times each other's, in double precision."""
    vectors = vectors.double()
    return vectors @ vectors.T


def rotary_products(
    q: Float[Tensor, " d_head"], k: Float[Tensor, " d_head"], n_pos: int, base: float = 10_000.0
) -> Float[Tensor, "query key"]:
    """q · k after q has been turned to each position as a query, and k to each as a key."""
    angles = rotary_angles(torch.arange(n_pos), len(q), base).to(q.dtype)  # [pos, half]
    queries = rotate(q.expand(1, 1, n_pos, -1), angles)[0, 0]  # [query, d_head]
    keys = rotate(k.expand(1, 1, n_pos, -1), angles)[0, 0]  # [key, d_head]
    return (queries @ keys.T).double()


def rotary_itself(n_pos: int, d_head: int, base: float = 10_000.0) -> Float[Tensor, "query key"]:
    """A query that meets its own key, both of length 1 and with the same share in every pair: 1 at offset 0."""
    one = torch.full((d_head,), d_head**-0.5, dtype=torch.float64)
    return rotary_products(one, one, n_pos, base)


def by_offset(matrix: Float[Tensor, "query key"]) -> pd.DataFrame:
    """Along each diagonal: offset = key − query, the mean, the lowest and the highest entry, and how many there are."""
    n = len(matrix)
    index = torch.arange(n, device=matrix.device)
    place = (index[None, :] - index[:, None] + n - 1).flatten()  # [query · key]: which diagonal, from 0
    values, nothing = matrix.flatten(), matrix.new_zeros(2 * n - 1)
    pairs = n - (torch.arange(2 * n - 1, device=matrix.device) - (n - 1)).abs()
    reduced = {
        how: nothing.scatter_reduce(0, place, values, how, include_self=False) for how in ("sum", "amin", "amax")
    }
    return pd.DataFrame(
        {
            "offset": range(1 - n, n),
            "mean": (reduced["sum"] / pairs).tolist(),
            "low": reduced["amin"].tolist(),
            "high": reduced["amax"].tolist(),
            "pairs": pairs.tolist(),
        }
    )


def curve_table(vectors: Float[Tensor, "pos d_model"], dimensions: Sequence[int], first: int = 0) -> pd.DataFrame:
    """One row per point of a curve: position (that of the first vector is `first`), dimension, value."""
    n_pos = len(vectors)
    return pd.DataFrame(
        {
            "position": list(range(first, first + n_pos)) * len(dimensions),
            "dimension": [d for d in dimensions for _ in range(n_pos)],
            "value": vectors[:, list(dimensions)].T.flatten().double().tolist(),
        }
    )


def angle_table(n_pos: int, d_head: int, base: float = 10_000.0) -> pd.DataFrame:
    """Rotary: one row per position and pair of dimensions, with its angle (radians, not reduced), cos and sin."""
    angles = rotary_angles(torch.arange(n_pos), d_head, base).double()  # [pos, half]
    half = angles.shape[1]
    return pd.DataFrame(
        {
            "position": torch.arange(n_pos).repeat_interleave(half).tolist(),
            "pair": torch.arange(half).repeat(n_pos).tolist(),
            "angle": angles.flatten().tolist(),
            "cos": angles.cos().flatten().tolist(),
            "sin": angles.sin().flatten().tolist(),
        }
    )


def bias_table(
    model: Transformer, n_pos: int, stack: str | None = None, *, kind: str | None = None, most: int | None = None
) -> pd.DataFrame:
    """What is added to scores: one row per head (from 0) and offset = key − query, with the bias; of a causal stack the past.

    `kind` is the model's own, or any that learns nothing. `most` leaves out offsets, evenly and the same on both sides of 0, so
    that each head has at most so many rows.
    """
    config = model.config if kind is None else model.config.replace(positions=kind)
    name, chosen = _stack_of(model, stack)
    own = kind in (None, model.config.positions) and chosen.positions.table is not None
    tables = chosen.positions.table.tables() if own and chosen.positions.table is not None else {}
    causal = config.looks_back_only(name)
    step = 1 if most is None else max(1, math.ceil((2 * n_pos - 1) / most))
    far = (n_pos - 1) // step * step
    offset = torch.arange(-far, 1 if causal else far + 1, step)  # [offset]
    with torch.no_grad():
        bias = config.position_kind.bias(config, tables, torch.tensor([far]), offset + far, causal=causal)
    assert bias is not None, f"{config.positions} positions add nothing to scores"
    return pd.DataFrame(
        {
            "head": torch.arange(config.n_heads).repeat_interleave(len(offset)).tolist(),
            "offset": offset.repeat(config.n_heads).tolist(),
            "bias": bias[0, :, 0].double().flatten().tolist(),
        }
    )


def _stack_of(model: Transformer, stack: str | None) -> tuple[str, Stack]:
    """The encoder or the decoder by name, the first there is where none is named."""
    name = stack or ("decoder" if model.encoder is None else "encoder")
    chosen = {"encoder": model.encoder, "decoder": model.decoder}[name]
    assert chosen is not None
    return name, chosen


def wavelengths(config: ModelConfig) -> Float[Tensor, " pair"]:
    """How many positions each wave takes for one turn: 2π · base^(2i/width), the width being d_model, or d_head (rotary)."""
    width = config.position_kind.wave_width(config)
    pair = torch.arange(0, width, 2, dtype=torch.float64)  # [pair]: 2i
    return 2 * torch.pi * config.position_base ** (pair / width)


def attention_moved(before: Trace, after: Trace) -> pd.DataFrame:
    """How far each head's attention moved between two runs of equal length: layer, head, moved.

    moved = mean over queries of ½ Σ_key |p_after − p_before|, the share of the attention that went elsewhere (0 to 1).
    """
    rows = []
    for path, pattern in before.patterns().items():
        apart = (after[f"{path}.pattern"][0].double() - pattern[0].double()).abs().sum(dim=-1) / 2  # [head, query]
        rows += [(path, head, moved) for head, moved in enumerate(apart.mean(dim=-1).tolist())]
    return pd.DataFrame(rows, columns=["layer", "head", "moved"])


@dataclass(frozen=True)
class OrderTest:
    """What a model without positions makes of the same tokens (patches) in another order."""

    difference: float
    """The largest difference of any logit, each token's output compared with its own in the other order."""
    scale: float
    """The largest magnitude of any logit."""

    @property
    def is_blind(self) -> bool:
        """Whether nothing but rounding is left of the order."""
        return self.difference <= ROUNDING * self.scale


def order_test(model: Transformer, inputs: Int[Tensor, "1 pos"]) -> OrderTest | None:
    """Run a model of one stack with its positions off on an input, and on the same input backwards.

    An image (`inputs` are its pixels) is put together from its patches in reverse order; its class token stays in front. None
    where backwards is the same as forwards, so that there is nothing to be seen.
    """
    embedding = model.embedding
    is_image = isinstance(embedding, PatchEmbedding)
    other = reversed_patches(inputs, embedding.patch) if is_image else inputs.flip(1)
    if other.equal(inputs):
        return None
    off = [] if model.config.position_kind.acts_on == "nothing" else [zero_positions()]
    forwards, backwards = (
        record(model, x, edits=off, keep=["logits"]).logits[0] for x in (inputs, other)
    )  # [out, vocab]
    if is_image:
        forwards, backwards = forwards[:1], backwards[:1]  # the answer is read at the class token alone
    else:
        backwards = backwards.flip(0)
    return OrderTest((forwards - backwards).abs().max().item(), forwards.abs().max().item())


def reversed_patches(pixels: Int[Tensor, "batch pixel"], patch: int) -> Int[Tensor, "batch pixel"]:
    """The same images with their patches in reverse order: the last one first, each as it is inside."""
    side = math.isqrt(pixels.shape[-1])
    across = side // patch
    tiles = pixels.view(-1, across, patch, across, patch)  # [batch, row, y, column, x]
    return tiles.flip(1, 3).reshape(pixels.shape)


def is_causal(trace: Trace, stack: str | None = None) -> bool:
    """Whether every self-attention of a run (of one of its stacks) kept each query from all later keys."""
    paths = [site.path for site in trace.sites() if not site.is_cross and stack in (None, site.stack)]
    return all(not trace[f"{path}.mask"].triu(1).any() for path in paths)


def pattern_table(
    trace: Trace, path: str, head: int, queries: Sequence[str], keys: Sequence[str], most: int | None = None
) -> pd.DataFrame:
    """One head's attention: query position and token, key position and token, weight, and whether looking is allowed.

    With more than `most` queries or keys, neighbours are put together into blocks: the weight of a cell is then the share of
    the attention of its queries, on average, that goes to any of its keys, so that each row still sums to 1.
    """
    pattern = trace[f"{path}.pattern"][0, head].double()  # [query, key]
    allowed = trace[f"{path}.mask"][0, head]
    rows, columns = (block_size(size, most) for size in pattern.shape)
    weight = _block_sums(_block_sums(pattern, columns).T, rows).T
    of_block = torch.tensor([len(block) for block in torch.arange(len(pattern)).split(rows)])
    weight = weight / of_block[:, None]  # [block of queries, block of keys]
    may_look = _block_sums(_block_sums(allowed.double(), columns).T, rows).T > 0
    query, query_token = _block_names(queries, rows)
    key, key_token = _block_names(keys, columns)
    n_query, n_key = weight.shape
    return pd.DataFrame(
        {
            "query": np.array(query, dtype=object).repeat(n_key),
            "query token": np.array(query_token, dtype=object).repeat(n_key),
            "key": np.tile(np.array(key, dtype=object), n_query),
            "key token": np.tile(np.array(key_token, dtype=object), n_query),
            "weight": weight.flatten().numpy(),
            "allowed": may_look.flatten().numpy(),
        }
    )


def block_size(n: int, most: int | None) -> int:
    """How many neighbours stand in one block, so that there are at most `most` blocks of `n` positions."""
    return 1 if most is None else math.ceil(n / most)


def _block_sums(matrix: Float[Tensor, "row column"], size: int) -> Float[Tensor, "row block"]:
    missing = -matrix.shape[1] % size
    return torch.nn.functional.pad(matrix, (0, missing)).unflatten(1, (-1, size)).sum(dim=-1)


def _block_names(tokens: Sequence[str], size: int) -> tuple[list, list[str]]:
    """The positions and the tokens of each block; where a block is more than one position, from where to where it goes."""
    if size == 1:
        return list(range(len(tokens))), list(tokens)
    starts = range(0, len(tokens), size)
    return [f"{start}–{min(start + size, len(tokens)) - 1}" for start in starts], [""] * len(starts)
