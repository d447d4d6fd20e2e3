"""Masks, cell by cell, and a softmax that survives rows without a permitted key."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.layers.reference import (
    ARCHITECTURES,
    BY_TURNS,
    WHOLE_MODEL,
    assert_same,
    build,
    inputs,
    random,
    random_tokens,
    softmax_by_hand,
)
from xformer.errors import InputError
from xformer.layers.masks import SequencePacking, causal_mask, combine, masked_softmax
from xformer.model import Transformer
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("see_self", [True, False])
@pytest.mark.parametrize(("n_query", "n_key"), [(7, 7), (3, 7), (1, 5)])
def test_causal_mask_cell_by_cell(n_query: int, n_key: int, see_self: bool) -> None:
    mask = causal_mask(n_query, n_key, see_self=see_self)
    for query in range(n_query):
        here = n_key - n_query + query  # the last query is aligned with the last key
        for key in range(n_key):
            assert bool(mask[query, key]) == (key <= here if see_self else key < here)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_padding_causality_and_a_custom_mask_combine(causal: bool, batched: bool) -> None:
    valid = torch.tensor([[True, True, True, True, False], [False, True, True, True, True]])
    drawn = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    drawn = drawn if batched else drawn[0]
    layout = SequencePacking.from_valid(valid)
    mask = combine(layout, layout, n_query=5, n_key=5, causal=causal, custom_mask=drawn)
    allowed = mask.allowed
    for batch in range(2):
        for query in range(5):
            for key in range(5):
                hand = bool(valid[batch, query] and valid[batch, key])
                hand = hand and bool(drawn[batch, query, key] if batched else drawn[query, key])
                assert bool(allowed[batch, 0, query, key]) == (hand and (key <= query or not causal))
    never_empty, empty = mask.allowed_or_empty, mask.empty_rows
    assert torch.equal(empty[..., 0], ~allowed.any(dim=-1))
    assert torch.equal(never_empty, allowed | empty)
    assert never_empty.any(dim=-1).all()


def test_masked_softmax_values_and_gradients() -> None:
    allowed = torch.rand(2, 3, 7, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    allowed[:, :, 2], allowed[:, :, 4] = False, True
    scores = random(2, 3, 7, 5)
    hidden = scores.masked_fill(~allowed, float("-inf"))
    pattern = masked_softmax(hidden, ~allowed.any(dim=-1, keepdim=True))
    assert (pattern[:, :, 2] == 0).all()
    assert_same(pattern, softmax_by_hand(hidden), [scores, hidden])  # no NaN in the gradient either


@pytest.mark.usefixtures("unchecked")
def test_a_mask_that_does_not_fit_is_refused() -> None:
    model = build()
    for mask, received in (
        (torch.ones(11, 11, dtype=torch.float32), r"torch\.float32 \[11, 11\]"),
        (torch.ones(11, 7, dtype=torch.bool), r"torch\.bool \[11, 7\]"),
        (torch.ones(2, 1, 11, 11, dtype=torch.bool), r"torch\.bool \[2, 1, 11, 11\]"),
    ):
        with pytest.raises(InputError, match=received):
            model(*inputs(model), mask=mask)


def assert_each_as_alone(model: Transformer, together: list[Tensor], arguments: list[list[Tensor]]) -> None:
    """Compare the logits of each sequence in a shared batch, `together`, with a separate call for each."""
    alone = [model(*call)[0] for call in arguments]
    assert list(map(len, together)) == list(map(len, alone))
    assert_same(torch.cat(together), torch.cat(alone), list(model.parameters()), WHOLE_MODEL)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_by_token_or_by_valid_changes_no_output(architecture: str) -> None:
    model = build(architecture=architecture)
    lengths, sides = torch.tensor([[7], [1], [3]]), torch.arange(8)
    valid, source_valid = sides >= 8 - lengths, sides[:6] < lengths.clamp(max=5)  # on the left, and on the right
    tokens, source = random_tokens(3, 8).where(valid, 0), random_tokens(3, 6, seed=1).where(source_valid, 0)
    if architecture == "encoder-decoder":
        logits = model(source, tokens, valid=source_valid, target_valid=valid)
        assert torch.equal(model(source, tokens, pad=0), logits)
        alone = [[source[n][source_valid[n]][None], tokens[n][valid[n]][None]] for n in range(3)]
    else:
        logits = model(tokens, valid=valid)
        assert torch.equal(model(tokens, pad=0), logits)
        alone = [[tokens[n][valid[n]][None]] for n in range(3)]
    assert_each_as_alone(model, [logits[n][valid[n]] for n in range(3)], alone)


@pytest.mark.parametrize(
    ("architecture", "positions", "tape"), [(*kind, (None, Tape)[number % 2]) for number, kind in enumerate(BY_TURNS)]
)
def test_packed_sequences_give_outputs_as_if_alone(architecture: str, positions: str, tape: type[Tape] | None) -> None:
    model = build(architecture=architecture, positions=positions)
    segments = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2, 3, 0], [0, 1, 2, 2, 2, 2, 4, 4, 4, 4]])
    source_segments = torch.tensor([[1, 1, 2, 3, 3, 3], [1, 1, 2, 0, 4, 4]])
    tokens, source = random_tokens(2, 10), random_tokens(2, 6, seed=1)
    layout = SequencePacking.from_segments(segments)
    recording = {} if tape is None else {"tape": tape()}
    if architecture == "encoder-decoder":
        source_layout = SequencePacking.from_segments(source_segments)
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


def test_positions_within_each_segment_by_hand() -> None:
    layout = SequencePacking.from_segments(torch.tensor([[0, 1, 1, 1, 5, 5, 0], [2, 2, 2, 2, 2, 2, 2]]))
    assert layout.positions.tolist() == [[0, 0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5, 6]]
    assert layout.mirrored.tolist() == [[0, 2, 1, 0, 1, 0, 0], [6, 5, 4, 3, 2, 1, 0]]
    assert layout.padded
    plain = SequencePacking.plain(3)
    assert (plain.positions.tolist(), plain.mirrored.tolist()) == ([0, 1, 2], [2, 1, 0])
    assert SequencePacking.plain(3, start=4).positions.tolist() == [4, 5, 6]
