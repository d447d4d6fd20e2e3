"""Where examples come from: each batch a function of (seed, purpose, step), its examples valid, its lengths uniform."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations

import pytest
import torch

from tests.tasks.slow import examples, slow_frame
from tests.training.tiny import ARCHITECTURES, ONE_IN_A_MILLION, chance, tiny_task
from xformer.errors import InputError
from xformer.tasks import Task

N = 6000
MIN, MAX = 3, 15  # 13 lengths, the real task's


def full_task(architecture: str, name: str = "reverse") -> Task:
    return tiny_task(architecture, name=name, symbols=19, min_len=MIN, max_len=MAX)


def symbols_of(task: Task, packed: bool) -> list[list[int]]:
    """The sequence of every example, after checking that all its cells are what they should be."""
    found = []
    for tokens, target, labels in examples(task.sample(N, seed=7, packed=packed)):
        symbols = tokens[: (len(tokens) - 1) // 2] if task.config.architecture == "decoder" else tokens
        symbols = [token for token in symbols if token <= task.config.symbols]
        source, answer = slow_frame(task.config, symbols)
        assert tokens == source.tokens
        assert target == ([] if answer is None else answer.tokens)
        assert labels == (source.labels if answer is None else answer.labels)
        found.append(symbols)
    return found


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_examples_are_valid_and_lengths_and_symbols_uniform(architecture: str, packed: bool) -> None:
    found = symbols_of(full_task(architecture), packed)
    assert len(found) == N
    lengths = [len(symbols) for symbols in found]
    if packed:  # of a pair only the first is free
        assert all(a + b == MIN + MAX for a, b in zip(lengths[::2], lengths[1::2], strict=True))
        lengths = lengths[::2]
    counts = Counter(lengths)
    assert set(counts) == set(range(MIN, MAX + 1))
    assert chance([counts[n] for n in range(MIN, MAX + 1)], [len(lengths) / 13] * 13) > ONE_IN_A_MILLION
    for column in (0, 2, -1):
        counts = Counter(symbols[column] for symbols in found)
        assert set(counts) == set(range(1, 20))
        assert chance([counts[s] for s in range(1, 20)], [N / 19] * 19) > ONE_IN_A_MILLION


def test_packed_rows_are_full() -> None:
    for architecture, width in (("encoder", 18), ("encoder-decoder", 20), ("decoder", 38)):
        task = full_task(architecture)
        batch = task.sample(100, seed=1, packed=True)
        assert batch.labels.shape == (50, width)
        assert (batch.output_segments > 0).all()
        assert task.widths == (width, width if architecture == "encoder-decoder" else 0)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_a_batch_is_a_function_of_seed_purpose_and_step(packed: bool) -> None:
    task = tiny_task()
    keys = [
        (seed, purpose, step)
        for seed in (0, 1, 2**32 - 1)
        for purpose in ("train", "held-out", "test")
        for step in (0, 1, 63)
    ]

    def draw(seed: int, purpose: str, step: int) -> torch.Tensor:
        return task.sample(32, seed=seed, purpose=purpose, step=step, packed=packed).tokens

    batches = {key: draw(*key) for key in keys}
    for key in reversed(keys):
        assert torch.equal(draw(*key), batches[key])
    for one, other in combinations(
        keys, 2
    ):  # two of 32 examples over 7 symbols agree by chance less than once in 10^50
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
    batch = full_task(architecture, name).sample(6, seed=3, step=5, steps=2, purpose="train", packed=packed)
    digest = hashlib.sha256()
    for cells in (batch.tokens, batch.labels, batch.target):
        if cells is not None:
            digest.update(cells.contiguous().numpy().tobytes())
    assert digest.hexdigest()[:16] == STREAMS[name, architecture, packed]


def test_sampling_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    tiny_task().sample(32, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_several_steps_at_once_are_one_after_the_other_in_the_rows() -> None:
    batch = tiny_task().sample(6, seed=0, steps=3, packed=True)
    assert len(batch.tokens) == 9
    assert len(examples(batch)) == 18


def test_packed_rows_need_an_even_number() -> None:
    with pytest.raises(InputError, match=r"must be even, got 7; try 8\."):
        tiny_task().sample(7, seed=0, packed=True)
