"""Padding and packing change nothing: each sequence of a batch gets the logits, and causes the gradients, it does alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.layers.reference import (
    ARCHITECTURES,
    FITTING,
    WHOLE_MODEL,
    assert_close,
    build,
    random_tokens,
)
from xformer.layers.layout import Layout
from xformer.model import Transformer
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")

LENGTHS, SOURCE_LENGTHS = (7, 1, 3), (2, 5, 3)
SIDES = {"right": lambda n, width: 0, "left": lambda n, width: width - n}


def sequences(lengths: tuple[int, ...], seed: int) -> list[Tensor]:
    return [random_tokens(1, length, seed + n) for n, length in enumerate(lengths)]


def pad(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """The rows as one batch with at least one cell of padding each, and where their tokens are."""
    width = max(row.shape[1] for row in rows) + 1
    tokens, valid = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.bool)
    for n, row in enumerate(rows):
        start = SIDES[side](row.shape[1], width)
        tokens[n, start : start + row.shape[1]] = row[0]
        valid[n, start : start + row.shape[1]] = True
    return tokens, valid


def assert_each_as_alone(model: Transformer, together: list[Tensor], arguments: list[list[Tensor]]) -> None:
    """`together` holds each sequence's logits out of a shared batch; compare with a call for each on its own."""
    alone = [model(*call)[0] for call in arguments]
    parameters = list(model.parameters())
    for mine, single in zip(together, alone, strict=True):
        assert_close(mine, single, WHOLE_MODEL)
    upstream = torch.randn(sum(map(len, alone)), 23, generator=torch.Generator().manual_seed(5))
    for mine, single in zip(
        torch.autograd.grad(torch.cat(together), parameters, upstream),
        torch.autograd.grad(torch.cat(alone), parameters, upstream),
        strict=True,
    ):
        assert_close(mine, single, WHOLE_MODEL)


@pytest.mark.parametrize("tape", [None, Tape], ids=["fused", "taped"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("architecture", "positions"), FITTING)
def test_a_padded_sequence_gets_what_it_gets_alone(
    architecture: str, positions: str, side: str, tape: type[Tape] | None
) -> None:
    model = build(architecture=architecture, positions=positions, see_self=architecture == "encoder")
    targets = sequences(LENGTHS, 0)
    tokens, valid = pad(targets, side)
    recording = {} if tape is None else {"tape": tape()}
    if architecture == "encoder-decoder":
        sources = sequences(SOURCE_LENGTHS, 10)
        source, source_valid = pad(sources, side)
        logits = model(source, tokens, valid=source_valid, target_valid=valid, **recording)
        alone = [[source, target] for source, target in zip(sources, targets, strict=True)]
    else:
        logits = model(tokens, valid=valid, **recording)
        alone = [[target] for target in targets]
    assert logits.isfinite().all()
    assert_each_as_alone(model, [logits[n][valid[n]] for n in range(3)], alone)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_padding_token_says_the_same_as_valid(architecture: str) -> None:
    model = build(architecture=architecture)
    tokens, valid = pad(sequences(LENGTHS, 0), "left")
    if architecture == "encoder-decoder":
        source, source_valid = pad(sequences(SOURCE_LENGTHS, 10), "right")
        by_token = model(source, tokens, pad=0)
        by_valid = model(source, tokens, valid=source_valid, target_valid=valid)
        without = model(source, tokens)
    else:
        by_token, by_valid, without = model(tokens, pad=0), model(tokens, valid=valid), model(tokens)
    assert torch.equal(by_token, by_valid)
    assert not torch.allclose(by_token[valid], without[valid])


@pytest.mark.parametrize("tape", [None, Tape], ids=["fused", "taped"])
@pytest.mark.parametrize(("architecture", "positions"), FITTING)
def test_packed_sequences_get_what_they_get_alone(architecture: str, positions: str, tape: type[Tape] | None) -> None:
    model = build(architecture=architecture, positions=positions)
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2, 3, 0], [0, 1, 2, 2, 2, 2, 4, 4, 4, 4]])
    source_segments = torch.tensor([[1, 1, 2, 3, 3, 3], [1, 1, 2, 0, 4, 4]])
    tokens, source = random_tokens(2, 10), random_tokens(2, 6, seed=1)
    layout = Layout.from_segments(segments)
    recording = {} if tape is None else {"tape": tape()}
    if architecture == "encoder-decoder":
        source_layout = Layout.from_segments(source_segments)
        logits = model(source, tokens, layout=source_layout, target_layout=layout, **recording)
    else:
        logits = model(tokens, layout=layout, **recording)
    together, alone = [], []
    for row, number in [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 4)]:
        mine = segments[row] == number
        together.append(logits[row][mine])
        sources = [source[row][source_segments[row] == number][None]] if architecture == "encoder-decoder" else []
        alone.append([*sources, tokens[row][mine][None]])
    assert_each_as_alone(model, together, alone)


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_packing_without_padding_may_say_so(architecture: str) -> None:
    model = build(architecture=architecture)
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2]])
    tokens = random_tokens(1, 7)
    logits = model(tokens, layout=Layout.from_segments(segments, padded=False))
    assert_each_as_alone(model, [logits[0, :3], logits[0, 3:]], [[tokens[:, :3]], [tokens[:, 3:]]])


def test_positions_within_each_segment_by_hand() -> None:
    layout = Layout.from_segments(torch.tensor([[0, 1, 1, 1, 5, 5, 0], [2, 2, 2, 2, 2, 2, 2]]))
    assert layout.positions.tolist() == [[0, 0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5, 6]]
    assert layout.mirrored.tolist() == [[0, 2, 1, 0, 1, 0, 0], [6, 5, 4, 3, 2, 1, 0]]
    assert layout.padded
    plain = Layout.plain(3)
    assert (plain.positions.tolist(), plain.mirrored.tolist()) == ([0, 1, 2], [2, 1, 0])
    assert Layout.plain(3, start=4).positions.tolist() == [4, 5, 6]
