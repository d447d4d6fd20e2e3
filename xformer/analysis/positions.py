"""What positions look like to a model: the vectors that are added, and what two positions make of each other by offset.

    added       P[i] · P[j]                       sinusoidal, learned, mirror
    rotary      (R_i q) · (R_j k)                 the same q and k at any two positions          (Su et al. 2021, §3.4)
    ALiBi       −slope_head · |i − j|             added to the score itself                      (Press et al. 2022, §3)

Each is a matrix [query, key]; `by_offset` then reads it along its diagonals. For the sinusoidal kind with an even d_model
every diagonal is constant, Σ cos(offset · ω); for rotary it is Σ over pairs as well, by construction.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.edits import zero_positions
from xformer.layers.layout import Layout
from xformer.layers.positions import alibi_bias, alibi_slopes, rotary_angles, rotate
from xformer.model import Transformer
from xformer.trace import Trace, record

KINDS = ("sinusoidal", "learned", "mirror", "rotary", "alibi", "none")
ADDED = ("sinusoidal", "learned", "mirror")


def added_positions(model: Transformer, n_pos: int, stack: str | None = None) -> Float[Tensor, "pos d_model"] | None:
    """What the model adds at each position of a sequence of `n_pos` tokens; None where it adds nothing.

    The length matters to the mirror kind alone. `stack` chooses the side of an encoder-decoder, else there is one.
    """
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    chosen = stacks[stack] if stack else model.encoder or model.decoder
    assert chosen is not None
    if chosen.positions.table is None:
        return None
    with torch.no_grad():
        return chosen.positions.table(Layout.plain(n_pos))


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


def alibi_scores(n_pos: int, n_heads: int) -> Float[Tensor, "head query key"]:
    """What ALiBi adds to the scores of each head."""
    index = torch.arange(n_pos)
    return alibi_bias(index, index, n_heads)[0].double()


def by_offset(matrix: Float[Tensor, "query key"]) -> pd.DataFrame:
    """Along each diagonal: offset = key − query, the mean, the lowest and the highest entry, and how many there are."""
    n = len(matrix)
    rows = []
    for offset in range(1 - n, n):
        along = matrix.diagonal(offset)
        low, high = along.aminmax()
        rows.append((offset, along.mean().item(), low.item(), high.item(), len(along)))
    return pd.DataFrame(rows, columns=["offset", "mean", "low", "high", "pairs"])


def curve_table(vectors: Float[Tensor, "pos d_model"], dimensions: Sequence[int]) -> pd.DataFrame:
    """One row a point of a curve: position, dimension, value."""
    n_pos = len(vectors)
    return pd.DataFrame(
        {
            "position": list(range(n_pos)) * len(dimensions),
            "dimension": [d for d in dimensions for _ in range(n_pos)],
            "value": vectors[:, list(dimensions)].T.flatten().double().tolist(),
        }
    )


def angle_table(n_pos: int, d_head: int, base: float = 10_000.0) -> pd.DataFrame:
    """Rotary: one row a position and pair of dimensions, with its angle (radians, not reduced), cos and sin."""
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


def alibi_table(n_pos: int, n_heads: int) -> pd.DataFrame:
    """ALiBi: one row a head and offset, with the bias that is added to the score, and the head's slope."""
    slopes = alibi_slopes(n_heads).tolist()
    tables = []
    for head, matrix in enumerate(alibi_scores(n_pos, n_heads)):
        table = by_offset(matrix)
        tables.append(
            pd.DataFrame({"head": head, "offset": table["offset"], "bias": table["mean"], "slope": slopes[head]})
        )
    return pd.concat(tables, ignore_index=True)


def wavelengths(config: ModelConfig) -> Float[Tensor, " pair"]:
    """How many positions each wave takes for one turn: 2π · base^(2i/width), the width being d_model, or d_head (rotary)."""
    width = config.d_head if config.positions == "rotary" else config.d_model
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


def order_blindness(model: Transformer, tokens: Int[Tensor, "1 pos"]) -> float:
    """How far an encoder without positions is from not noticing order at all: it reads the input and the input backwards;
    the largest difference between the logits of the one and the mirrored logits of the other. 0 but for rounding."""
    forwards = record(model, tokens, edits=[zero_positions()], keep=["logits"]).logits[0]  # [pos, vocab]
    backwards = record(model, tokens.flip(1), edits=[zero_positions()], keep=["logits"]).logits[0]
    return (forwards - backwards.flip(0)).abs().max().item()


def pattern_table(trace: Trace, path: str, head: int, queries: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """One head's attention: query position and token, key position and token, weight, and whether looking is allowed."""
    pattern = trace[f"{path}.pattern"][0, head].double()  # [query, key]
    allowed = trace[f"{path}.mask"][0, head]
    n_query, n_key = pattern.shape
    query = torch.arange(n_query).repeat_interleave(n_key).tolist()
    key = torch.arange(n_key).repeat(n_query).tolist()
    return pd.DataFrame(
        {
            "query": query,
            "query token": [queries[i] for i in query],
            "key": key,
            "key token": [keys[i] for i in key],
            "weight": pattern.flatten().tolist(),
            "allowed": allowed.flatten().tolist(),
        }
    )
