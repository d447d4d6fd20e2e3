"""The layout of examples for each architecture equals a slow reference, and pinned streams do not change."""

from __future__ import annotations

import hashlib
from itertools import combinations, product
from typing import Any

import pytest
import torch

from tests.tasks.rules.test_rule import SIZES, of
from tests.tasks.slow import slow_frame, slow_rows
from tests.training.tiny import ARCHITECTURES, tiny_task
from xformer.errors import InputError
from xformer.layers.masks import SequencePacking
from xformer.tasks import Task
from xformer.tasks.framing import generator


def assert_layout(layout: SequencePacking | None, positions: list, mirrored: list, segments: list) -> None:
    assert layout is not None
    assert layout.segments is not None
    assert layout.positions.tolist() == positions
    assert layout.mirrored.tolist() == mirrored
    assert layout.segments.tolist() == segments


def drawn(task: Task, n: int, *, seed: int, packed: bool) -> list[list[int]]:
    """Return the sequences of symbols from which `task.sample` starts."""
    cells, lengths = task.rule.sources(n, paired=packed, draw=generator(seed, "test", 0, "cpu"), purpose="test")
    return [row[:length] for row, length in zip(cells.tolist(), lengths.tolist(), strict=True)]


COMPARED: list[tuple[str, str, dict[str, Any]]] = [
    ("sort", "decoder", {"min_len": 3, "max_len": 3}),
    *(("reverse", of, {"min_len": 1, "max_len": 11}) for of in ARCHITECTURES),
    ("sort", "encoder", {"min_len": 2, "max_len": 5, "end_token": True}),
    ("addition", "encoder-decoder", {"symbols": 11, "min_len": 2, "max_len": 5}),
    ("induction", "decoder", {"symbols": 13, "max_len": 7}),
    ("copy-twice", "encoder-decoder", {"symbols": 7, "max_len": 7}),
    ("brackets", "encoder", {"symbols": 2, "max_len": 7, "end_token": True}),
]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("name", "architecture", "options"), COMPARED)
def test_batches_equal_the_slow_reference(name: str, architecture: str, options: dict[str, Any], packed: bool) -> None:
    """Every cell is compared."""
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


def test_a_batch_is_a_function_of_seed_purpose_and_step() -> None:
    task, before = tiny_task(), torch.get_rng_state()
    keys = list(product((0, 1, 2**32 - 1), ("train", "held-out", "test"), (0, 1, 63)))

    def draw(seed: int, purpose: str, step: int) -> torch.Tensor:
        return task.sample(32, seed=seed, purpose=purpose, step=step, packed=True).tokens

    batches = {key: draw(*key) for key in keys}
    for key in reversed(keys):
        assert torch.equal(draw(*key), batches[key])
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is not used
    for one, other in combinations(keys, 2):  # 32 examples over 7 symbols agree by chance less than once in 10^50
        assert not torch.equal(batches[one], batches[other]), f"{one} and {other} give the same batch"


# SHA-256 of the tokens and labels of the batches drawn below.
STREAMS = {
    "reverse": "0c083bbcb5f78956",
    "sort": "8feca4cf503a92a2",
    "induction": "fa662b5e8b165b0a",
    "addition": "89126ce0f1783053",
    "parity": "89283cde2698eb70",
    "brackets": "08a0c3186b1bca09",
    "modular": "17d2fbe33f944aec",
    "copy in an encoder-decoder": "0d4f0b81aab1a3ef",
}


@pytest.mark.parametrize("name", STREAMS)
def test_training_streams_of_shipped_models_are_unchanged(name: str) -> None:
    """A seed on a model card must give exactly these sequences, padded and packed, or its scores are not reproducible."""
    task = of(name) if name in SIZES else tiny_task("encoder-decoder", name="copy", symbols=19, min_len=3, max_len=15)
    digest = hashlib.sha256()
    for packed in (False, True):
        batch = task.sample(200, seed=3, step=5, purpose="train", packed=packed)
        for cells in (batch.tokens, batch.labels):
            digest.update(cells.contiguous().numpy().tobytes())
    assert digest.hexdigest()[:16] == STREAMS[name]


def test_several_steps_share_a_batch_and_packing_needs_an_even_number() -> None:
    assert len(tiny_task().sample(6, seed=0, steps=3, packed=True).tokens) == 9
    with pytest.raises(InputError, match=r"must be even, got 7; try 8\."):
        tiny_task().sample(7, seed=0, packed=True)
