"""Lay out sources and answers for each architecture, pack short examples into full rows, and sample sequences.

    encoder            in   s₁ … s_L (end)          out  a₁ … a_L (end)              all positions at once, A = L
    encoder-decoder    in   s₁ … s_L end  and  start a₁ … a_A      out  a₁ … a_A end
    decoder            in   s₁ … s_L start a₁ … a_A                out  – … – a₁ … a_A end     one stream

Packing: with lengths uniform on [min, max], an example of length L shares its row with one of length min + max − L. Rows are
then exactly full, and every length is equally frequent. The same holds for answers, since A = αL + β in every task.

Sampling: each batch is a function of (seed, step), so resuming needs only the step. Examples are drawn for many steps at once,
because drawing them step by step would take longer than a training step of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from xformer.config import Architecture
from xformer.layers.masks import SequencePacking
from xformer.tasks.batch import IGNORED, Batch


@dataclass(frozen=True)
class Stream:
    """Examples as one token sequence each, left-aligned; cells beyond `lengths` are arbitrary."""

    tokens: Int[Tensor, "example pos"]
    labels: Int[Tensor, "example pos"]
    lengths: Int[Tensor, " example"]


@dataclass(frozen=True)
class Specials:
    """The ids of the special tokens; None if the architecture does not use one."""

    pad: int
    end: int | None
    start: int | None


def frame(
    architecture: Architecture,
    source: Int[Tensor, "example pos"],
    lengths: Int[Tensor, " example"],
    answer: Int[Tensor, "example out"],
    answer_lengths: Int[Tensor, " example"],
    special: Specials,
) -> tuple[Stream, Stream | None]:
    """Lay out examples as the input stream, and for an encoder-decoder also the target stream."""
    if architecture == "encoder":
        if special.end is None:
            return Stream(source, answer, lengths), None
        return Stream(_append(source, lengths, special.end), _append(answer, lengths, special.end), lengths + 1), None
    if special.end is None or special.start is None:
        raise ValueError("A decoder needs an end and a start token.")
    answer_end = _append(answer, answer_lengths, special.end)  # a₁ … a_A end
    start_answer = torch.nn.functional.pad(answer, (1, 0), value=special.start)  # start a₁ … a_A
    if architecture == "encoder-decoder":
        source_end = _append(source, lengths, special.end)
        target = Stream(start_answer, answer_end, answer_lengths + 1)
        return Stream(source_end, source_end, lengths + 1), target
    width = source.shape[1] + answer.shape[1] + 1
    nothing = torch.full_like(source, IGNORED)
    tokens = _join(source, start_answer, lengths, width)
    labels = _join(nothing, answer_end, lengths, width)
    return Stream(tokens, labels, lengths + answer_lengths + 1), None


def pad_rows(stream: Stream, pad: int) -> tuple[Tensor, Tensor, SequencePacking]:
    """Put one example in each row, padded, and return tokens, labels and layout."""
    index = torch.arange(stream.tokens.shape[1], device=stream.tokens.device)  # [pos]
    valid = index < stream.lengths[:, None]  # [example, pos]
    positions, mirrored = (torch.where(valid, of, 0) for of in (index, stream.lengths[:, None] - 1 - index))
    layout = SequencePacking(positions, mirrored, segments=valid.long(), padded=True)
    return stream.tokens.masked_fill(~valid, pad), stream.labels.masked_fill(~valid, IGNORED), layout


def pack_rows(stream: Stream, width: int) -> tuple[Tensor, Tensor, SequencePacking]:
    """Put two examples whose lengths sum to `width` in each row, without padding, and return tokens, labels and layout."""
    lengths = stream.lengths.view(-1, 2)  # [row, 2]
    column = torch.arange(width, device=lengths.device).expand(len(lengths), width)  # [row, pos]
    second = (column >= lengths[:, :1]).long()  # [row, pos]: 0 in the first example, 1 in the second
    position = column - second * lengths[:, :1]
    flat = second * stream.tokens.shape[1] + position  # the index into the two examples, concatenated

    def pick(cells: Tensor) -> Tensor:
        return cells.reshape(len(lengths), -1).gather(1, flat)

    layout = SequencePacking(position, lengths.gather(1, second) - 1 - position, segments=second + 1, padded=False)
    return pick(stream.tokens), pick(stream.labels), layout


def full_layout(cells: Tensor) -> SequencePacking:
    """Return the layout of rows of full length, without padding or a mask, for tokens or labels [batch, pos]."""
    index = torch.arange(cells.shape[1], device=cells.device).expand_as(cells)
    return SequencePacking(positions=index, mirrored=index.flip(1))


def full_batch(source: Stream, target: Stream | None) -> Batch:
    """Return a batch of streams of full length, without padding or a mask."""
    if target is None:
        return Batch(source.tokens, full_layout(source.tokens), source.labels)
    return Batch(source.tokens, full_layout(source.tokens), target.labels, target.tokens, full_layout(target.tokens))


def to_batch(source: Stream, target: Stream | None, pad: int, widths: tuple[int, int] | None) -> Batch:
    """Return a batch of streams: packed into rows of `widths` (source, target), or padded if `widths` is None."""

    def rows(stream: Stream, which: int) -> tuple[Tensor, Tensor, SequencePacking]:
        return pad_rows(stream, pad) if widths is None else pack_rows(stream, widths[which])

    tokens, labels, layout = rows(source, 0)
    if target is None:
        return Batch(tokens, layout, labels)
    target_tokens, labels, target_layout = rows(target, 1)
    return Batch(tokens, layout, labels, target_tokens, target_layout)


def _append(symbols: Tensor, lengths: Tensor, token: int) -> Int[Tensor, "example pos_plus_1"]:
    """Append `token` to each sequence."""
    wider = torch.nn.functional.pad(symbols, (0, 1))
    return wider.scatter(1, lengths[:, None], token)


def _join(first: Tensor, second: Tensor, lengths: Tensor, width: int) -> Int[Tensor, "example pos"]:
    """Join the first `lengths` cells of `first` with `second`."""
    column = torch.arange(width, device=first.device).expand(len(first), width)  # [example, pos]
    in_second = column - lengths[:, None]
    left = first.gather(1, column.clamp(max=first.shape[1] - 1))
    right = second.gather(1, in_second.clamp(0, second.shape[1] - 1))
    return torch.where(in_second < 0, left, right)


Purpose = Literal["train", "held-out", "test", "init", "dropout", "positions"]

_STREAM: dict[Purpose, int] = {"train": 1, "held-out": 2, "test": 3, "init": 4, "dropout": 5, "positions": 6}


def generator(seed: int, purpose: Purpose, chunk: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return an independent generator for each (seed, purpose, chunk). CPU and GPU draw different numbers from one seed."""
    state = np.random.SeedSequence([seed, _STREAM[purpose], chunk]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0] >> np.uint64(1)))


def sequences(
    n: int, *, symbols: int, min_len: int, max_len: int, paired: bool, draw: torch.Generator
) -> tuple[Int[Tensor, "example pos"], Int[Tensor, " example"]]:
    """Draw n sequences of symbols 1 … `symbols`, and their lengths, uniform on [min_len, max_len].

    With `paired`, the lengths of two neighbours sum to min_len + max_len, so that they fill a row (n must be even).
    """
    cells = torch.randint(1, symbols + 1, (n, max_len), generator=draw)
    if not paired:
        return cells, torch.randint(min_len, max_len + 1, (n,), generator=draw)
    first = torch.randint(min_len, max_len + 1, (n // 2,), generator=draw)
    return cells, torch.stack((first, min_len + max_len - first), dim=1).flatten()


def rows_of(table: Int[Tensor, "row cell"], n: int, *, purpose: Purpose, draw: torch.Generator) -> Tensor:
    """Draw n rows: for training with replacement, else in random order without repetition until all were drawn."""
    if purpose == "train":
        return table[torch.randint(len(table), (n,), generator=draw)]
    rounds = [torch.randperm(len(table), generator=draw) for _ in range(-(-n // len(table)))]
    return table[torch.cat(rounds)[:n]]
