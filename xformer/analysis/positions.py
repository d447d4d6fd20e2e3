"""How a model knows where a token is: what is done at each position, and what two positions make of each other.

    added       P[i] · P[j]                       sinusoidal, learned, mirror
    turned      (R_i q) · (R_j k)                 the same q and k at any two positions          (Su et al. 2021, §3.4)
    biased      b_head(i − j)                     added to the score itself: ALiBi, T5

Each is a matrix [query, key]; `position_offsets` reads it along its diagonals. For the sinusoidal kind with an even d_model
every diagonal is constant, Σ cos(offset · ω); for rotary it is Σ over pairs as well, by construction.

`kind` is the name of a kind of positions, the model's own where none is given; `stack` the side of an encoder-decoder.
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
from xformer.analysis.tables import array_table
from xformer.config import ModelConfig
from xformer.edits import zero_positions
from xformer.errors import InputError, UnavailableError
from xformer.layers.masks import Layout
from xformer.layers.stack import Stack
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.positions.rotary import rotary_angles
from xformer.reading import Reading
from xformer.trace import record


@torch.no_grad()
def added_positions(
    reading: Reading, n: int | None = None, *, kind: str | None = None, stack: str | None = None
) -> Float[Tensor, "pos d_model"]:
    """What is added at each of the first `n` positions: all that the model can have, or where that hangs on the end of the
    input, that it has. A kind that learns nothing can be added to any model.

    Raises `InputError` for one that adds nothing that this model has.
    """
    if not isinstance(reading.subject, BareModel):
        how, found = found_positions(reading, stack)
        if how != "added":
            raise UnavailableError(f"{reading.subject.name} adds no vectors for its positions.")
        return found if n is None else found[:n]
    config, chosen = own_model(reading.subject).config, kind_of(reading, kind)
    is_own = chosen is config.position_kind
    if chosen.acts_on != "stream" or not (is_own or chosen.can_be_drawn(config)):
        raise InputError(f"{chosen.title} positions add nothing that this model has; its own are {config.positions}.")
    n = config.max_len if n is None else n
    if not is_own:
        sizes = config.replace(positions=chosen.name, max_len=max(n, config.max_len))
        index = torch.arange(n)
        vectors = chosen.add(sizes, chosen.fixed(sizes), index, index.flip(0))
        assert vectors is not None
        return vectors.to(torch.get_default_dtype())
    table = _stack_of(reading, stack)[1].positions.table
    assert table is not None
    device = own_model(reading.subject).device
    return table(Layout.plain(n if chosen.keeps_keys else len(reading.tokens_of(stack)), device))[:n].cpu()


def position_values(
    reading: Reading, *, positions: Sequence[int] | None = None, kind: str | None = None, stack: str | None = None
) -> pd.DataFrame:
    """Tabulate what a kind of positions does at each position.

    Of vectors that are added one row a number (position, dimension, value), of queries and keys that are rotated one row a
    pair of dimensions (position, pair, angle in radians, not reduced, cos, sin).

    Raises `InputError` where a kind does neither in this model.

    Args:
        reading: The run.
        positions: The positions, from 0; all of them by default.
        kind: A kind of positions (`ModelConfig.positions`); the model's own by default.
        stack: "encoder" or "decoder", where a model has both.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_values(reading)
        >>> list(table.columns)
        ['position', 'dimension', 'value']
    """
    if not isinstance(reading.subject, BareModel):
        how, found = found_positions(reading, stack)
        if how == "biased":
            raise UnavailableError(f"{reading.subject.name} adds to its scores; nothing is done at a position itself.")
        shown = [at for at in (range(len(found)) if positions is None else positions) if at < len(found)]
        return _added_table(found[shown], shown) if how == "added" else _angle_table(found[shown].double(), shown)
    if kind_of(reading, kind).acts_on != "queries and keys":
        vectors = added_positions(reading, None if positions is None else max(positions) + 1, kind=kind, stack=stack)
        shown = list(range(len(vectors)) if positions is None else positions)
        return _added_table(vectors[shown], shown)
    config = own_model(reading.subject).config
    shown = list(range(config.max_len) if positions is None else positions)
    angles = rotary_angles(torch.tensor(shown), _turned(config), config.position_base).double()  # [pos, pair]
    return _angle_table(angles, shown)


def position_curves(
    reading: Reading, *, dimensions: Sequence[int], positions: Sequence[int] | None = None, stack: str | None = None
) -> pd.DataFrame:
    """Some dimensions of the vectors that the model adds, as curves: position, dimension, value.

    Args:
        reading: The run.
        dimensions: The dimensions, from 0.
        positions: The positions, from 0; all of them by default.
        stack: "encoder" or "decoder", where a model has both.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_curves(reading, dimensions=[0, 1, 6, 7])
        >>> list(table.columns)
        ['position', 'dimension', 'value']
    """
    vectors = added_positions(reading, None if positions is None else max(positions) + 1, stack=stack)
    shown = list(range(len(vectors)) if positions is None else positions)
    values = vectors[shown][:, list(dimensions)].T.double()  # [dimension, pos]
    table = array_table({"dimension": dimensions}, {"position": shown}, value=values)
    return table.reindex(columns=["position", "dimension", "value"])


def position_offsets(
    reading: Reading,
    *,
    n: int | None = None,
    kind: str | None = None,
    stack: str | None = None,
    most: int | None = None,
) -> pd.DataFrame:
    """What two of the first `n` positions make of each other by how far apart they are, offset = key − query.

    Where something is added to scores: head, offset, bias; of a causal stack the past; `most` leaves out offsets, evenly and
    the same on both sides of 0, so that each head has at most so many rows. Else, along each diagonal of the products: offset,
    mean, low, high, and how many pairs there are. Turned is a query that meets its own key, both of length 1 and with the same
    share in every pair. Raises `InputError` where a kind does nothing that this model has.

    Args:
        reading: The run.
        n: The number of positions.
        kind: A kind of positions (`ModelConfig.positions`); the model's own by default.
        stack: "encoder" or "decoder", where a model has both.
        most: The most rows.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.position_offsets(reading)
        >>> list(table.columns)
        ['offset', 'mean', 'low', 'high', 'pairs']
    """
    if not isinstance(reading.subject, BareModel):
        how, found = found_positions(reading, stack)
        if how == "biased":
            return found_biases(found)
        return by_offset(dot_products(found[:n]) if how == "added" else turned_products(found[:n]))
    config, chosen = own_model(reading.subject).config, kind_of(reading, kind)
    if chosen.acts_on == "scores":
        return _biases(reading, n or config.max_len, chosen, stack, most)
    if chosen.acts_on == "queries and keys":
        angles = rotary_angles(torch.arange(n or config.max_len), _turned(config), config.position_base)
        return by_offset(turned_products(angles))
    return by_offset(dot_products(added_positions(reading, n, kind=kind, stack=stack)))


def dot_products(vectors: Float[Tensor, "pos d_model"]) -> Float[Tensor, "query key"]:
    """Each position's vector times each other's, in double precision."""
    vectors = vectors.double()
    return vectors @ vectors.T


def by_offset(matrix: Float[Tensor, "query key"]) -> pd.DataFrame:
    """Along each diagonal: offset = key − query, the mean, the lowest and the highest entry, and how many there are."""
    n = len(matrix)
    diagonals = [(offset, matrix.diagonal(offset)) for offset in range(1 - n, n)]
    rows = [(offset, line.mean().item(), line.min().item(), line.max().item(), len(line)) for offset, line in diagonals]
    return pd.DataFrame(rows, columns=["offset", "mean", "low", "high", "pairs"])


def wavelengths(config: ModelConfig) -> Float[Tensor, " pair"]:
    """How many positions each wave takes for one turn: 2π · base^(2i/width), the width being d_model, or d_head (rotary)."""
    width = config.position_kind.wave_width(config)
    pair = torch.arange(0, width, 2, dtype=torch.float64)  # [pair]: 2i
    return 2 * torch.pi * config.position_base ** (pair / width)


@torch.no_grad()
def _biases(reading: Reading, n: int, kind: PositionKind, stack: str | None, most: int | None) -> pd.DataFrame:
    own = own_model(reading.subject).config
    config = own if kind is own.position_kind else own.replace(positions=kind.name)
    name, chosen = _stack_of(reading, stack)
    table = chosen.positions.table if kind is own.position_kind else None
    if table is None and kind.learned(config):
        raise InputError(f"This model has learned no {kind.title} positions; {own.positions} is its kind.")
    causal = config.looks_back_only(name)
    step = 1 if most is None else max(1, math.ceil((2 * n - 1) / most))
    far = (n - 1) // step * step
    offset = torch.arange(-far, 1 if causal else far + 1, step)  # [offset]
    tables = {} if table is None else {name: one.cpu() for name, one in table.tables().items()}
    bias = config.position_kind.bias(config, tables, torch.tensor([far]), offset + far, causal=causal)
    assert bias is not None
    return array_table({"head": range(bias.shape[1])}, {"offset": offset.tolist()}, bias=bias[0, :, 0].double())


def kind_of(reading: Reading, name: str | None) -> PositionKind:
    """The kind of positions of that name, the model's own where none is given."""
    return own_model(reading.subject).config.position_kind if name is None else POSITION_KINDS[name]


def are_turned(reading: Reading, kind: str | None, stack: str | None) -> bool:
    """Whether queries and keys are turned, by a kind, or by the model itself."""
    if not isinstance(reading.subject, BareModel):
        return found_positions(reading, stack)[0] == "turned"
    return kind_of(reading, kind).acts_on == "queries and keys"


def _stack_of(reading: Reading, stack: str | None) -> tuple[str, Stack]:
    """The encoder or the decoder by name, the first there is where none is named."""
    name = stack or reading.subject.shape.sites[0].stack
    return name, getattr(own_model(reading.subject), name)


def _turned(config: ModelConfig) -> int:
    """The head's dimensions, made even: rotary positions turn them in pairs."""
    return config.d_head + config.d_head % 2


Found = Literal["added", "turned", "biased"]


def found_positions(reading: Reading, stack: str | None = None) -> tuple[Found, Tensor]:
    """Which of the three, and its numbers: [pos, d_model], [pos, pair] or [head, query, key].

    Raises `UnavailableError` where none was found.
    """
    stack = (stack or "encoder") if reading.is_pair else reading.output_stack
    at = f"{stack}." if reading.is_pair else ""
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
        f"Nothing was found in {reading.subject.name} that tells it where a token is: no vectors that are added, no angles and "
        "no biases. What it has may sit where it cannot be seen, or its mask is all there is."
    )


def _added_table(vectors: Float[Tensor, "pos d_model"], positions: Sequence[int]) -> pd.DataFrame:
    """One row a number: position, dimension, value."""
    return array_table({"position": positions}, {"dimension": range(vectors.shape[1])}, value=vectors.double())


def _angle_table(angles: Float[Tensor, "pos pair"], positions: Sequence[int]) -> pd.DataFrame:
    """One row a pair of dimensions: position, pair, angle, cos, sin."""
    table = _added_table(angles, positions).rename(columns={"dimension": "pair", "value": "angle"})
    return table.assign(cos=angles.cos().flatten().numpy(force=True), sin=angles.sin().flatten().numpy(force=True))


def found_biases(bias: Float[Tensor, "head query key"]) -> pd.DataFrame:
    """Head, offset = key − query, and the bias there, the mean of its pairs, which are alike where only distance counts."""
    n_query, n_key = bias.shape[1:]
    offsets = range(1 - n_query, n_key)
    means = [bias.double().diagonal(offset, dim1=1, dim2=2).mean(dim=1) for offset in offsets]
    return array_table({"head": range(len(bias))}, {"offset": offsets}, bias=torch.stack(means, dim=1))


def turned_products(angles: Float[Tensor, "pos pair"]) -> Float[Tensor, "query key"]:
    """q · k of one vector turned to two positions, of length 1 and with the same share in every pair."""
    c, s = angles.double().cos(), angles.double().sin()
    return (c @ c.T + s @ s.T) / angles.shape[1]


ROUNDING = 1e-4
"""Logits that differ by less than this share of the largest are the same but for single precision."""

MOST_TOKENS_READ = 32
"""More would show no more."""


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


def order_test(reading: Reading) -> OrderTest | None:
    """Run a model of one stack with its positions off on its input (the first `MOST_TOKENS_READ` tokens), and backwards.

    An image is put together from its patches in reverse order; its class token stays in front. None for a model of two stacks,
    and where backwards is the same as forwards, so that there is nothing to be seen.
    """
    model = own_model(reading.subject)
    config, inputs = model.config, reading.example.tokens[:1]
    inputs = inputs if config.patch else inputs[:, :MOST_TOKENS_READ]
    other = reversed_patches(inputs, config.patch) if config.patch else inputs.flip(1)
    if reading.is_pair or other.equal(inputs):
        return None
    off = [] if config.position_kind.acts_on == "nothing" else [zero_positions()]
    # [out, vocab] each
    forwards, backwards = (record(model, x, edits=off, keep=["logits"]).logits[0] for x in (inputs, other))
    if config.patch:
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
