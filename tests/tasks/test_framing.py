"""How examples are laid out for each architecture: by hand on two, then against a slow reference on hundreds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tasks.slow import slow_frame, slow_rows
from tests.training.tiny import ARCHITECTURES, tiny_task
from xformer.layers.layout import Layout
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED as X
from xformer.tasks.framing import Specials, frame, to_batch
from xformer.tasks.sampling import generator

LAYOUTS = [
    pytest.param("encoder", False, id="encoder"),
    pytest.param("encoder", True, id="encoder-end"),
    pytest.param("decoder", False, id="decoder"),
    pytest.param("encoder-decoder", False, id="encoder-decoder"),
]

# The sequences 4 1 3 and 2 5 of five symbols, to be reversed; 6 is the end and 7 the start. The 9 is filler.
SYMBOLS, ANSWERS, LENGTHS = [[4, 1, 3], [2, 5, 9]], [[3, 1, 4], [5, 2, 9]], [3, 2]


def by_hand(architecture: str, *, end: bool, widths: tuple[int, int] | None) -> Batch:
    special = Specials(pad=0, end=6 if end or architecture != "encoder" else None, start=7)
    lengths = torch.tensor(LENGTHS)
    streams = frame(architecture, torch.tensor(SYMBOLS), lengths, torch.tensor(ANSWERS), lengths, special)
    return to_batch(*streams, pad=0, widths=widths)


def assert_layout(layout: Layout | None, positions: list, mirrored: list, segments: list) -> None:
    assert layout is not None
    assert layout.segments is not None
    assert layout.positions.tolist() == positions
    assert layout.mirrored.tolist() == mirrored
    assert layout.segments.tolist() == segments


def test_encoder_padded() -> None:
    batch = by_hand("encoder", end=False, widths=None)
    assert batch.tokens.tolist() == [[4, 1, 3], [2, 5, 0]]
    assert batch.labels.tolist() == [[3, 1, 4], [5, 2, X]]
    assert_layout(batch.layout, [[0, 1, 2], [0, 1, 0]], [[2, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]])
    assert batch.target is None


def test_encoder_packed() -> None:
    batch = by_hand("encoder", end=False, widths=(5, 0))
    assert batch.tokens.tolist() == [[4, 1, 3, 2, 5]]
    assert batch.labels.tolist() == [[3, 1, 4, 5, 2]]
    assert_layout(batch.layout, [[0, 1, 2, 0, 1]], [[2, 1, 0, 1, 0]], [[1, 1, 1, 2, 2]])
    assert not batch.layout.padded


def test_encoder_with_end_padded() -> None:
    batch = by_hand("encoder", end=True, widths=None)
    assert batch.tokens.tolist() == [[4, 1, 3, 6], [2, 5, 6, 0]]
    assert batch.labels.tolist() == [[3, 1, 4, 6], [5, 2, 6, X]]
    assert_layout(
        batch.layout, [[0, 1, 2, 3], [0, 1, 2, 0]], [[3, 2, 1, 0], [2, 1, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]]
    )


def test_encoder_with_end_packed() -> None:
    batch = by_hand("encoder", end=True, widths=(7, 0))
    assert batch.tokens.tolist() == [[4, 1, 3, 6, 2, 5, 6]]
    assert batch.labels.tolist() == [[3, 1, 4, 6, 5, 2, 6]]
    assert_layout(batch.layout, [[0, 1, 2, 3, 0, 1, 2]], [[3, 2, 1, 0, 2, 1, 0]], [[1, 1, 1, 1, 2, 2, 2]])


def test_encoder_decoder_padded() -> None:
    batch = by_hand("encoder-decoder", end=True, widths=None)
    layout = [[0, 1, 2, 3], [0, 1, 2, 0]], [[3, 2, 1, 0], [2, 1, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch.tokens.tolist() == [[4, 1, 3, 6], [2, 5, 6, 0]]
    assert batch.target is not None
    assert batch.target.tolist() == [[7, 3, 1, 4], [7, 5, 2, 0]]
    assert batch.labels.tolist() == [[3, 1, 4, 6], [5, 2, 6, X]]
    assert_layout(batch.layout, *layout)
    assert_layout(batch.target_layout, *layout)


def test_encoder_decoder_packed() -> None:
    batch = by_hand("encoder-decoder", end=True, widths=(7, 7))
    layout = [[0, 1, 2, 3, 0, 1, 2]], [[3, 2, 1, 0, 2, 1, 0]], [[1, 1, 1, 1, 2, 2, 2]]
    assert batch.tokens.tolist() == [[4, 1, 3, 6, 2, 5, 6]]
    assert batch.target is not None
    assert batch.target.tolist() == [[7, 3, 1, 4, 7, 5, 2]]
    assert batch.labels.tolist() == [[3, 1, 4, 6, 5, 2, 6]]
    assert_layout(batch.layout, *layout)
    assert_layout(batch.target_layout, *layout)


def test_decoder_padded() -> None:
    batch = by_hand("decoder", end=True, widths=None)
    assert batch.tokens.tolist() == [[4, 1, 3, 7, 3, 1, 4], [2, 5, 7, 5, 2, 0, 0]]
    assert batch.labels.tolist() == [[X, X, X, 3, 1, 4, 6], [X, X, 5, 2, 6, X, X]]
    assert_layout(
        batch.layout,
        [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 0, 0]],
        [[6, 5, 4, 3, 2, 1, 0], [4, 3, 2, 1, 0, 0, 0]],
        [[1] * 7, [1, 1, 1, 1, 1, 0, 0]],
    )


def test_an_answer_of_another_length_than_its_source() -> None:
    """The sources 4 1 3 and 2 with the answers 5 and 3 2, in a decoder and in an encoder-decoder."""
    special = Specials(pad=0, end=6, start=7)
    source, lengths = torch.tensor([[4, 1, 3], [2, 9, 9]]), torch.tensor([3, 1])
    answer, answer_lengths = torch.tensor([[5, 9], [3, 2]]), torch.tensor([1, 2])
    stream, _ = frame("decoder", source, lengths, answer, answer_lengths, special)
    batch = to_batch(stream, None, pad=0, widths=None)
    assert batch.tokens.tolist() == [[4, 1, 3, 7, 5, 0], [2, 7, 3, 2, 0, 0]]
    assert batch.labels.tolist() == [[X, X, X, 5, 6, X], [X, 3, 2, 6, X, X]]
    packed = to_batch(stream, None, pad=0, widths=(9, 0))
    assert packed.tokens.tolist() == [[4, 1, 3, 7, 5, 2, 7, 3, 2]]
    assert packed.labels.tolist() == [[X, X, X, 5, 6, X, 3, 2, 6]]
    streams = frame("encoder-decoder", source, lengths, answer, answer_lengths, special)
    batch = to_batch(*streams, pad=0, widths=(6, 5))
    assert batch.tokens.tolist() == [[4, 1, 3, 6, 2, 6]]
    assert batch.target is not None
    assert batch.target.tolist() == [[7, 5, 7, 3, 2]]
    assert batch.labels.tolist() == [[5, 6, 3, 2, 6]]


def test_decoder_packed() -> None:
    batch = by_hand("decoder", end=True, widths=(12, 0))
    assert batch.tokens.tolist() == [[4, 1, 3, 7, 3, 1, 4, 2, 5, 7, 5, 2]]
    assert batch.labels.tolist() == [[X, X, X, 3, 1, 4, 6, X, X, 5, 2, 6]]
    assert_layout(
        batch.layout,
        [[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]],
        [[6, 5, 4, 3, 2, 1, 0, 4, 3, 2, 1, 0]],
        [[1] * 7 + [2] * 5],
    )


def drawn(task: Task, n: int, *, seed: int, packed: bool) -> list[list[int]]:
    """The sequences of symbols that `task.sample` starts from."""
    cells, lengths = task.rule.sources(n, paired=packed, draw=generator(seed, "test", 0, "cpu"), purpose="test")
    return [row[:length] for row, length in zip(cells.tolist(), lengths.tolist(), strict=True)]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", ["reverse", "sort"])
@pytest.mark.parametrize(("architecture", "end"), LAYOUTS)
@pytest.mark.parametrize(("min_len", "max_len"), [(2, 5), (3, 3), (1, 11)])
def test_a_batch_is_what_the_slow_reference_builds(
    architecture: str, end: bool, name: str, min_len: int, max_len: int, packed: bool
) -> None:
    compare(tiny_task(architecture, name=name, end_token=end, min_len=min_len, max_len=max_len), packed)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("name", "architecture", "options"),
    [
        ("addition", "decoder", {"symbols": 11, "min_len": 1, "max_len": 4}),
        ("addition", "encoder-decoder", {"symbols": 11, "min_len": 2, "max_len": 5}),
        ("modular", "decoder", {"symbols": 7, "min_len": 2, "max_len": 2}),
        ("modular", "encoder-decoder", {"symbols": 7, "min_len": 2, "max_len": 2}),
        ("induction", "decoder", {"symbols": 13, "max_len": 7}),
        ("copy-twice", "decoder", {"symbols": 7, "max_len": 7}),
        ("copy-twice", "encoder-decoder", {"symbols": 7, "max_len": 7}),
        ("parity", "decoder", {"symbols": 2, "max_len": 7}),
        ("parity", "encoder-decoder", {"symbols": 2, "max_len": 7}),
        ("brackets", "encoder", {"symbols": 2, "max_len": 7}),
        ("brackets", "encoder", {"symbols": 2, "max_len": 7, "end_token": True}),
    ],
)
def test_answers_of_another_length_are_laid_out_like_the_slow_reference(
    name: str, architecture: str, options: dict[str, Any], packed: bool
) -> None:
    compare(tiny_task(architecture, name=name, **options), packed)


def compare(task: Task, packed: bool) -> None:
    """A batch of the task against `slow`, cell by cell."""
    batch = task.sample(60, seed=5, packed=packed)
    framed = [slow_frame(task.config, symbols) for symbols in drawn(task, 60, seed=5, packed=packed)]
    sides = [([source for source, _ in framed], batch.tokens, batch.layout)]
    if batch.target is not None:
        sides.append(([target for _, target in framed if target], batch.target, batch.target_layout))
    for streams, tokens, layout in sides:
        expected = slow_rows(streams, 2 if packed else 1, tokens.shape[1])
        assert tokens.tolist() == expected.tokens
        assert_layout(layout, expected.positions, expected.mirrored, expected.segments)
        assert layout.padded is not packed
    assert batch.labels.tolist() == slow_rows(sides[-1][0], 2 if packed else 1, batch.labels.shape[1]).labels


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_label_stands_on_padding_or_on_a_prompt(architecture: str, packed: bool) -> None:
    task = tiny_task(architecture)
    batch = task.sample(40, seed=1, packed=packed)
    labelled = batch.labels != X
    assert not (labelled & (batch.output_segments == 0)).any()
    assert not (batch.labels == task.vocabulary.special.pad).any()
    if architecture != "decoder":
        assert torch.equal(labelled, batch.output_segments > 0)
        return
    for row in range(len(batch.tokens)):  # a prompt is every symbol of a segment before its start token
        answering = {0: False, 1: False, 2: False}
        for cell, segment in enumerate(batch.output_segments[row].tolist()):
            answering[segment] |= batch.tokens[row, cell].item() == task.vocabulary.special.start
            assert labelled[row, cell].item() == (answering[segment] and segment > 0)


def test_rows_of_a_batch_are_the_same_rows() -> None:
    whole = tiny_task("encoder-decoder").sample(12, seed=2)
    part = whole.rows(3, 7)
    assert torch.equal(part.tokens, whole.tokens[3:7])
    assert torch.equal(part.labels, whole.labels[3:7])
    assert whole.target is not None
    assert part.target is not None
    assert torch.equal(part.target, whole.target[3:7])
    for mine, theirs in ((part.layout, whole.layout), (part.target_layout, whole.target_layout)):
        assert mine is not None
        assert theirs is not None
        assert theirs.segments is not None
        assert_layout(
            mine, theirs.positions[3:7].tolist(), theirs.mirrored[3:7].tolist(), theirs.segments[3:7].tolist()
        )
