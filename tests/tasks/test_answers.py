"""The right answers, against what plain Python says."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from tests.training.tiny import tiny_task
from xformer.tasks.answers import ANSWERS

PLAIN: dict[str, Callable[[list[int]], list[int]]] = {
    "reverse": lambda symbols: list(reversed(symbols)),
    "sort": sorted,
    "copy": list,
}


def test_every_task_is_compared() -> None:
    assert set(PLAIN) == set(ANSWERS)


@pytest.mark.parametrize("name", PLAIN)
def test_a_batch_of_answers_is_what_plain_python_gives(name: str) -> None:
    draw, width = random.Random(3), 13
    sequences = [[draw.randint(1, 7) for _ in range(draw.randint(1, width))] for _ in range(500)]
    cells = [symbols + [draw.randint(0, 9) for _ in range(width - len(symbols))] for symbols in sequences]  # filler
    tokens = torch.tensor(cells)
    before = tokens.clone()
    answers = ANSWERS[name](tokens, torch.tensor([len(symbols) for symbols in sequences]))
    for symbols, row in zip(sequences, answers.tolist(), strict=True):
        assert row[: len(symbols)] == PLAIN[name](symbols)
    assert torch.equal(tokens, before)


@pytest.mark.parametrize("name", PLAIN)
def test_a_single_answer_is_a_list(name: str) -> None:
    task = tiny_task(name=name)
    for symbols in ([4], [2, 1], [3, 1, 2, 3, 7, 7, 1]):
        assert task.answer(symbols) == PLAIN[name](symbols)
