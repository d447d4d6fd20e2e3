"""How a model represents positions: what is applied at each position, and how two positions affect each other's score.

    added       P[i] · P[j]                       sinusoidal, learned, mirror
    turned      (R_i q) · (R_j k)                 the same q and k at any two positions          (Su et al. 2021, §3.4)
    biased      b_head(i − j)                     added to the score itself: ALiBi, T5

Each is a matrix [query, key]; `position_offsets` reads it along its diagonals. For sinusoidal positions with an even d_model
every diagonal is constant, Σ cos(offset · ω); for rotary positions it is constant, a sum over pairs, by construction.

`kind` is the name of a kind of positions, by default the model's own; `stack` selects one side of an encoder-decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters import BareModel, own_model
from xformer.analysis.tables import array_table, selected_positions
from xformer.arguments import Count
from xformer.config import ModelConfig
from xformer.edits import zero_positions
from xformer.errors import InputError, UnavailableError
from xformer.formatting import check_index, check_indices, check_option
from xformer.layers.masks import SequencePacking
from xformer.layers.stack import Stack
from xformer.memory import check_analysis
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.positions.rotary import rotary_angles
from xformer.reading import Reading
from xformer.trace import record


@torch.no_grad()
def added_positions(
    reading: Reading, n: int | None = None, *, kind: str | None = None, stack: str | None = None
) -> Float[Tensor, "pos d_model"]:
    """Return the vectors added at the first `n` positions, by default at all positions that the model supports.

    If the vectors depend on the end of the input, the default is the length of this input. A kind without parameters can be
    computed for any model. Raises `InputError` for a kind that adds no vectors this model has.
    """
    if not isinstance(reading.adapter, BareModel):
        how, found = found_positions(reading, stack)
        if how != "added":
            raise UnavailableError(f"{reading.adapter.name} adds no position vectors.")
        return found if n is None else found[:n]
    config, chosen = own_model(reading.adapter).config, position_kind(reading, kind)
    is_own = chosen is config.position_kind
    if chosen.acts_on != "stream" or not (is_own or chosen.can_be_drawn(config)):
        raise InputError(f"{chosen.title} positions add no vectors that this model has; it uses {config.positions}.")
    n = config.max_len if n is None else n
    if not is_own:
        sizes = config.replace(positions=chosen.name, max_len=max(n, config.max_len))
        index = torch.arange(n)
        vectors = chosen.add(sizes, chosen.fixed(sizes), index, index.flip(0))
        assert vectors is not None
        return vectors.to(torch.get_default_dtype())
    check_index("position", n - 1, config.max_len, least=-1)
    table = _stack_of(reading, stack)[1].positions.table
    assert table is not None
    device = own_model(reading.adapter).device
    return table(SequencePacking.plain(n if chosen.can_cache_keys else len(reading.tokens_of(stack)), device))[:n].cpu()


def position_values(
    reading: Reading, *, positions: Sequence[int] | None = None, kind: str | None = None, stack: str | None = None
) -> pd.DataFrame:
    """Tabulate what a kind of positions applies at each position: added vectors, or rotation angles of queries and keys.

    Args:
        reading: The run.
        positions: The positions, from 0; all by default.
        kind: A kind of positions (`ModelConfig.positions`); the model's own by default.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        For added vectors, a row per number: position, dimension (from 0) and value. For rotated queries and keys, a row per
        pair of dimensions: position, pair (from 0), angle (in radians, not reduced to one turn), cos and sin.

    Raises:
        InputError: If the kind does neither in this model.
        UnavailableError: If an external model only adds biases to its scores, or nothing was found.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_values(reading)
        >>> list(table.columns)
        ['position', 'dimension', 'value']
    """
    if not isinstance(reading.adapter, BareModel):
        how, found = found_positions(reading, stack)
        if how == "biased":
            raise UnavailableError(f"{reading.adapter.name} adds biases to its scores, nothing at single positions.")
        shown = selected_positions(positions, len(found))
        return _added_table(found[shown], shown) if how == "added" else _angle_table(found[shown].double(), shown)
    if position_kind(reading, kind).acts_on != "queries and keys":
        vectors = added_positions(reading, None if positions is None else max(positions) + 1, kind=kind, stack=stack)
        shown = selected_positions(positions, len(vectors))
        return _added_table(vectors[shown], shown)
    config = own_model(reading.adapter).config
    shown = list(range(config.max_len) if positions is None else positions)
    angles = rotary_angles(torch.tensor(shown), _rotary_width(config), config.position_base).double()  # [pos, pair]
    return _angle_table(angles, shown)


def position_curves(
    reading: Reading, *, dimensions: Sequence[int], positions: Sequence[int] | None = None, stack: str | None = None
) -> pd.DataFrame:
    """Tabulate chosen dimensions of the added position vectors, for curves over the positions.

    Args:
        reading: The run.
        dimensions: The dimensions, from 0.
        positions: The positions, from 0; all by default.
        stack: "encoder" or "decoder" of an encoder-decoder.

    Returns:
        A row per dimension and position: position, dimension and value.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_curves(reading, dimensions=[0, 1, 6, 7])
        >>> list(table.columns)
        ['position', 'dimension', 'value']
    """
    vectors = added_positions(reading, None if positions is None else max(positions) + 1, stack=stack)
    shown = selected_positions(positions, len(vectors))
    check_indices("dimensions", dimensions, vectors.shape[1])
    values = vectors[shown][:, list(dimensions)].T.double()  # [dimension, pos]
    table = array_table({"dimension": dimensions}, {"position": shown}, value=values)
    return table.reindex(columns=["position", "dimension", "value"])


def position_offsets(
    reading: Reading,
    *,
    n: Count | None = None,
    kind: str | None = None,
    stack: str | None = None,
    most: Count | None = None,
) -> pd.DataFrame:
    """Tabulate how two of the first `n` positions affect each other's score, by their offset = key − query.

    For rotary positions the products are those of a query with an equal key, both of norm 1 with equal shares in every pair.

    Args:
        reading: The run.
        n: The number of positions; by default as many as the model supports.
        kind: A kind of positions (`ModelConfig.positions`); the model's own by default.
        stack: "encoder" or "decoder" of an encoder-decoder.
        most: The most offsets per head in a table of biases; offsets are skipped evenly, and symmetrically around 0.

    Returns:
        For biases on scores: head (from 0), offset and bias, in a causal stack only for offsets ≤ 0. For other kinds, a row per
        diagonal of the products: offset, mean, low, high and pairs (the number of pairs of positions).

    Raises:
        InputError: If the kind does nothing that this model has.
        UnavailableError: If nothing was found in an external model.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_offsets(reading)
        >>> list(table.columns)
        ['offset', 'mean', 'low', 'high', 'pairs']
    """
    if not isinstance(reading.adapter, BareModel):
        how, found = found_positions(reading, stack)
        if how == "biased":
            return found_biases(found)
        return by_offset(dot_products(found[:n]) if how == "added" else turned_products(found[:n]))
    config, chosen = own_model(reading.adapter).config, position_kind(reading, kind)
    check_analysis("cosines", "give a smaller n", n=n or config.max_len)  # also a table of all pairs
    if chosen.acts_on == "scores":
        return _biases(reading, n or config.max_len, chosen, stack, most)
    if chosen.acts_on == "queries and keys":
        angles = rotary_angles(torch.arange(n or config.max_len), _rotary_width(config), config.position_base)
        return by_offset(turned_products(angles))
    return by_offset(dot_products(added_positions(reading, n, kind=kind, stack=stack)))


def dot_products(vectors: Float[Tensor, "pos d_model"]) -> Float[Tensor, "query key"]:
    """Return the dot products of all pairs of position vectors, in double precision."""
    vectors = vectors.double()
    return vectors @ vectors.T


def by_offset(matrix: Float[Tensor, "query key"]) -> pd.DataFrame:
    """Summarise each diagonal: offset = key − query, mean, lowest and highest entry, and number of entries."""
    n = len(matrix)
    diagonals = [(offset, matrix.diagonal(offset)) for offset in range(1 - n, n)]
    rows = [(offset, line.mean().item(), line.min().item(), line.max().item(), len(line)) for offset, line in diagonals]
    return pd.DataFrame(rows, columns=["offset", "mean", "low", "high", "pairs"])


def wavelengths(config: ModelConfig) -> Float[Tensor, " pair"]:
    """Return the wavelength of each pair in positions: 2π · base^(2i/width), where width is d_model, or d_head for rotary."""
    width = config.position_kind.wave_width(config)
    pair = torch.arange(0, width, 2, dtype=torch.float64)  # [pair]: 2i
    return 2 * torch.pi * config.position_base ** (pair / width)


@torch.no_grad()
def _biases(reading: Reading, n: int, kind: PositionKind, stack: str | None, most: int | None) -> pd.DataFrame:
    own = own_model(reading.adapter).config
    config = own if kind is own.position_kind else own.replace(positions=kind.name)
    name, chosen = _stack_of(reading, stack)
    table = chosen.positions.table if kind is own.position_kind else None
    if table is None and kind.learned(config):
        raise InputError(f"This model has not learned {kind.title} positions; it uses {own.positions}.")
    causal = config.looks_back_only(name)
    step = 1 if most is None else max(1, math.ceil((2 * n - 1) / most))
    far = (n - 1) // step * step
    offset = torch.arange(-far, 1 if causal else far + 1, step)  # [offset]
    tables = {} if table is None else {name: one.cpu() for name, one in table.tables().items()}
    bias = config.position_kind.bias(config, tables, torch.tensor([far]), offset + far, causal=causal)
    assert bias is not None
    return array_table({"head": range(bias.shape[1])}, {"offset": offset.tolist()}, bias=bias[0, :, 0].double())


def position_kind(reading: Reading, name: str | None) -> PositionKind:
    """Return the kind of positions with that name; by default the model's own."""
    check_option("kind", name, (None, *POSITION_KINDS))
    return own_model(reading.adapter).config.position_kind if name is None else POSITION_KINDS[name]


def is_rotary(reading: Reading, kind: str | None, stack: str | None) -> bool:
    """Return whether queries and keys are rotated, by the given kind or by the model itself."""
    if not isinstance(reading.adapter, BareModel):
        return found_positions(reading, stack)[0] == "turned"
    return position_kind(reading, kind).acts_on == "queries and keys"


def _stack_of(reading: Reading, stack: str | None) -> tuple[str, Stack]:
    """Return the name and module of a stack, by default of the first one."""
    check_option("stack", stack, (None, *dict.fromkeys(site.stack for site in reading.adapter.shape.layer_paths)))
    name = stack or reading.adapter.shape.layer_paths[0].stack
    return name, getattr(own_model(reading.adapter), name)


def _rotary_width(config: ModelConfig) -> int:
    """Return the head's number of dimensions, rounded up to even: rotary positions rotate pairs."""
    return config.d_head + config.d_head % 2


Found = Literal["added", "turned", "biased"]


def found_positions(reading: Reading, stack: str | None = None) -> tuple[Found, Tensor]:
    """Return how an external model represents positions, and its values: [pos, d_model], [pos, pair] or [head, query, key].

    Raises `UnavailableError` if nothing was found.
    """
    stack = (stack or "encoder") if reading.is_encoder_decoder else reading.output_stack
    at = f"{stack}." if reading.is_encoder_decoder else ""
    if f"{at}pos_embed" in reading:
        table = reading[f"{at}pos_embed"]
        return "added", table if table.dim() == 2 else table[0]
    for name in reading:
        if name.rpartition(".")[2].startswith("pos_angles"):
            angles = reading[name]
            angles = angles.reshape(-1, *angles.shape[-2:])[0]
            half = angles.shape[1] // 2
            return "turned", angles[:, :half] if angles[:, :half].equal(angles[:, half:]) else angles
    for name in reading:
        if name.startswith(stack) and name.endswith(".pos_bias") and "cross" not in name:
            return "biased", reading[name][0]
    raise UnavailableError(
        f"No position information was found in {reading.adapter.name}: no added vectors, no angles and no biases. It may be "
        "computed where it cannot be recorded, or the model may rely on its mask alone."
    )


def _added_table(vectors: Float[Tensor, "pos d_model"], positions: Sequence[int]) -> pd.DataFrame:
    """Tabulate vectors, a row per number: position, dimension, value."""
    return array_table({"position": positions}, {"dimension": range(vectors.shape[1])}, value=vectors.double())


def _angle_table(angles: Float[Tensor, "pos pair"], positions: Sequence[int]) -> pd.DataFrame:
    """Tabulate angles, a row per pair of dimensions: position, pair, angle, cos, sin."""
    table = _added_table(angles, positions).rename(columns={"dimension": "pair", "value": "angle"})
    return table.assign(cos=angles.cos().flatten().numpy(force=True), sin=angles.sin().flatten().numpy(force=True))


def found_biases(bias: Float[Tensor, "head query key"]) -> pd.DataFrame:
    """Tabulate head, offset = key − query, and the mean bias of the pairs with that offset, usually all equal."""
    n_query, n_key = bias.shape[1:]
    offsets = range(1 - n_query, n_key)
    means = [bias.double().diagonal(offset, dim1=1, dim2=2).mean(dim=1) for offset in offsets]
    return array_table({"head": range(len(bias))}, {"offset": offsets}, bias=torch.stack(means, dim=1))


def turned_products(angles: Float[Tensor, "pos pair"]) -> Float[Tensor, "query key"]:
    """Return q · k of one vector rotated to two positions, of norm 1 with equal shares in every pair."""
    c, s = angles.double().cos(), angles.double().sin()
    return (c @ c.T + s @ s.T) / angles.shape[1]


ROUNDING = 1e-4
"""Logits that differ by less than this share of the largest are equal up to single precision."""

MAX_TOKENS_READ = 32
"""More tokens would not show more."""


@dataclass(frozen=True)
class OrderTest:
    """How the logits of a model without positions change when its tokens (patches) are reordered."""

    difference: float
    """The largest difference of any logit, comparing each token's output in both orders."""
    scale: float
    """The largest magnitude of any logit."""

    @property
    def is_blind(self) -> bool:
        """Whether the order makes no difference beyond rounding."""
        return self.difference <= ROUNDING * self.scale


def order_test(reading: Reading) -> OrderTest | None:
    """Run a single-stack model with its positions disabled on its input (the first `MAX_TOKENS_READ` tokens) and its reverse.

    The patches of an image are reversed; its class token stays in front. Returns None for a model with two stacks, and if the
    reversed input equals the input, so that there is nothing to compare.
    """
    model = own_model(reading.adapter)
    config, inputs = model.config, reading.example.tokens[:1]
    inputs = inputs if config.patch else inputs[:, :MAX_TOKENS_READ]
    other = reversed_patches(inputs, config.patch) if config.patch else inputs.flip(1)
    if reading.is_encoder_decoder or other.equal(inputs):
        return None
    off = [] if config.position_kind.acts_on == "nothing" else [zero_positions()]
    # [out, vocab] each
    forwards, backwards = (record(model, x, edits=off, keep=["logits"]).logits[0] for x in (inputs, other))
    if config.patch:
        forwards, backwards = forwards[:1], backwards[:1]  # only the class token has an output
    else:
        backwards = backwards.flip(0)
    return OrderTest((forwards - backwards).abs().max().item(), forwards.abs().max().item())


def reversed_patches(pixels: Int[Tensor, "batch pixel"], patch: int) -> Int[Tensor, "batch pixel"]:
    """Return the same images with their patches in reverse order; pixels within a patch keep their order."""
    across = math.isqrt(pixels.shape[-1]) // patch
    tiles = pixels.view(-1, across, patch, across, patch)  # [batch, row, y, column, x]
    return tiles.flip(1, 3).reshape(pixels.shape)
