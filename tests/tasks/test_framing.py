"""How examples are laid out for each architecture: by hand on two, then against a slow reference on hundreds."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations, product
from typing import Any

import pytest
import torch

from tests.tasks.slow import slow_frame, slow_rows
from tests.training.tiny import ARCHITECTURES, ONE_IN_A_MILLION, chance, tiny_task
from xformer.errors import InputError
from xformer.layers.masks import Layout
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED as X
from xformer.tasks.framing import Specials, frame, generator, sequences, to_batch

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


def test_frames_worked_out_by_hand() -> None:
    batch = by_hand("encoder-decoder", end=True, widths=(7, 7))
    layout = [[0, 1, 2, 3, 0, 1, 2]], [[3, 2, 1, 0, 2, 1, 0]], [[1, 1, 1, 1, 2, 2, 2]]
    assert batch.tokens.tolist() == [[4, 1, 3, 6, 2, 5, 6]]
    assert batch.target is not None
    assert batch.target.tolist() == [[7, 3, 1, 4, 7, 5, 2]]
    assert batch.labels.tolist() == [[3, 1, 4, 6, 5, 2, 6]]
    assert_layout(batch.layout, *layout)
    assert_layout(batch.target_layout, *layout)
    batch = by_hand("decoder", end=True, widths=None)
    assert batch.tokens.tolist() == [[4, 1, 3, 7, 3, 1, 4], [2, 5, 7, 5, 2, 0, 0]]
    assert batch.labels.tolist() == [[X, X, X, 3, 1, 4, 6], [X, X, 5, 2, 6, X, X]]
    positions, mirrored = [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 0, 0]], [[6, 5, 4, 3, 2, 1, 0], [4, 3, 2, 1, 0, 0, 0]]
    assert_layout(batch.layout, positions, mirrored, [[1] * 7, [1, 1, 1, 1, 1, 0, 0]])


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


def drawn(task: Task, n: int, *, seed: int, packed: bool) -> list[list[int]]:
    """The sequences of symbols that `task.sample` starts from."""
    cells, lengths = task.rule.sources(n, paired=packed, draw=generator(seed, "test", 0, "cpu"), purpose="test")
    return [row[:length] for row, length in zip(cells.tolist(), lengths.tolist(), strict=True)]


COMPARED: list[tuple[str, str, dict[str, Any]]] = [
    ("sort", "decoder", {"min_len": 3, "max_len": 3}),
    *(("reverse", of, {"min_len": 1, "max_len": 11}) for of in ARCHITECTURES),
    ("sort", "encoder", {"min_len": 2, "max_len": 5, "end_token": True}),
    ("addition", "decoder", {"symbols": 11, "min_len": 1, "max_len": 4}),
    ("addition", "encoder-decoder", {"symbols": 11, "min_len": 2, "max_len": 5}),
    *(("modular", of, {"symbols": 7, "min_len": 2, "max_len": 2}) for of in ARCHITECTURES[1:]),
    ("induction", "decoder", {"symbols": 13, "max_len": 7}),
    *(("copy-twice", of, {"symbols": 7, "max_len": 7}) for of in ARCHITECTURES[1:]),
    *(("parity", of, {"symbols": 2, "max_len": 7}) for of in ARCHITECTURES[1:]),
    *(("brackets", "encoder", {"symbols": 2, "max_len": 7, "end_token": end}) for end in (False, True)),
]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("name", "architecture", "options"), COMPARED)
def test_a_batch_is_what_the_slow_reference_builds(
    name: str, architecture: str, options: dict[str, Any], packed: bool
) -> None:
    """Cell by cell."""
    task = tiny_task(architecture, name=name, **options)
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


@pytest.mark.parametrize("paired", [False, True])
def test_lengths_and_symbols_are_uniform_and_the_lengths_of_a_pair_fill_a_row(paired: bool) -> None:
    draw = torch.Generator().manual_seed(7)
    cells, lengths = sequences(6000, symbols=19, min_len=3, max_len=15, paired=paired, draw=draw)
    if paired:  # of a pair only the first is free
        assert (lengths[::2] + lengths[1::2] == 18).all()
        lengths = lengths[::2]
    for found, values in ((lengths, range(3, 16)), *((cells[:, column], range(1, 20)) for column in (0, 14))):
        counts = Counter(found.tolist())
        assert set(counts) == set(values)
        expected = [len(found) / len(values)] * len(values)
        assert chance([counts[n] for n in values], expected) > ONE_IN_A_MILLION


def test_a_batch_is_a_function_of_seed_purpose_and_step() -> None:
    task, before = tiny_task(), torch.get_rng_state()
    keys = list(product((0, 1, 2**32 - 1), ("train", "held-out", "test"), (0, 1, 63)))

    def draw(seed: int, purpose: str, step: int) -> torch.Tensor:
        return task.sample(32, seed=seed, purpose=purpose, step=step, packed=True).tokens

    batches = {key: draw(*key) for key in keys}
    for key in reversed(keys):
        assert torch.equal(draw(*key), batches[key])
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left alone
    for one, other in combinations(keys, 2):  # 32 examples over 7 symbols agree by chance less than once in 10^50
        assert not torch.equal(batches[one], batches[other]), f"{one} and {other} give the same batch"


# SHA-256 of the bytes of tokens, labels and (where there is one) target of the batch drawn below.
STREAMS = {
    ("reverse", "encoder", False): "8352ba863c83b1be",
    ("reverse", "encoder", True): "c4a38e1eeb6d3f8e",
    ("reverse", "decoder", False): "7d68ea0cae24cee6",
    ("reverse", "decoder", True): "9e5bd256d23ddc60",
    ("sort", "encoder", False): "b950134c64d73118",
    ("sort", "encoder", True): "28dbfb0a04336b6c",
    ("copy", "encoder-decoder", False): "3386dc8faf287b86",
    ("copy", "encoder-decoder", True): "25906841eafce69a",
}


@pytest.mark.parametrize(("name", "architecture", "packed"), STREAMS)
def test_the_streams_that_shipped_models_were_trained_on_stay_what_they_were(
    name: str, architecture: str, packed: bool
) -> None:
    """A seed on a card means these very sequences: else its figures could not be had again."""
    task = tiny_task(architecture, name=name, symbols=19, min_len=3, max_len=15)
    batch = task.sample(6, seed=3, step=5, steps=2, purpose="train", packed=packed)
    digest = hashlib.sha256()
    for cells in (batch.tokens, batch.labels, batch.target):
        if cells is not None:
            digest.update(cells.contiguous().numpy().tobytes())
    assert digest.hexdigest()[:16] == STREAMS[name, architecture, packed]


def test_several_steps_are_in_one_batch_and_packed_rows_need_an_even_number() -> None:
    assert len(tiny_task().sample(6, seed=0, steps=3, packed=True).tokens) == 9
    with pytest.raises(InputError, match=r"must be even, got 7; try 8\."):
        tiny_task().sample(7, seed=0, packed=True)
