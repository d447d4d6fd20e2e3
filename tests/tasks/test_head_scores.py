"""The head score of each task on hand-made attention patterns."""

from __future__ import annotations

import pytest
import torch

from tests.tasks.test_rules import of


@pytest.mark.parametrize(
    ("name", "typed", "size", "edges", "value"),
    [
        ("reverse", "4 1 3", (3, 3), {(0, 2): 1.0, (1, 1): 0.5, (2, 0): 0.3, (2, 2): 0.7}, 0.6),
        ("copy", "4 1 3", (3, 3), {(0, 0): 1.0, (1, 1): 0.5, (2, 0): 0.7, (2, 2): 0.3}, 0.6),
        # sorted: 1 1 4; the ones are at 1 and 2
        ("sort", "4 1 1", (3, 3), {(0, 1): 0.5, (0, 2): 0.5, (1, 2): 0.4, (1, 0): 0.6, (2, 0): 0.1}, 0.5),
        # stream 4 1 3 start 4 1 3: after 4 (at 4) attend to 1, after 1 to 3; the start token does not count
        ("induction", "4 1 3", (7, 7), {(3, 0): 1.0, (4, 1): 0.8, (5, 2): 0.2, (5, 3): 0.8, (6, 3): 1.0}, 0.5),
        # stream 4 1 4 2 start …: after the second answer (1) attend to position 2; after 4 (at 5, 7) to what followed both 4s
        ("induction", "4 1 4 2", (9, 9), {(5, 1): 0.3, (5, 3): 0.7, (6, 2): 0.5, (7, 1): 0.0, (7, 3): 0.9}, 0.8),
        # 4 1 at 0 1, start at 2: output i is at 2 + i and attends to 0 1 0 1; the end (6) does not count
        ("copy-twice", "4 1", (7, 7), {(2, 0): 1.0, (3, 1): 0.5, (4, 0): 0.25, (5, 1): 0.25, (6, 0): 1.0}, 0.5),
        # bits 1 0 1 at 0 1 2, start at 3: output i is at 3 + i
        ("parity", "101", (6, 6), {(3, 0): 1.0, (4, 1): 0.2, (5, 2): 0.3, (0, 0): 1.0}, 0.5),
        # 12+34 at 0 … 4, start at 5: the last digits are at 1 and 4, the first at 0 and 3; the carry has no column
        ("addition", "12+34", (8, 8), {(5, 1): 0.5, (5, 4): 0.3, (6, 0): 0.1, (6, 3): 0.1, (7, 0): 1.0}, 0.5),
        # 3 11 at 0 and 1, start at 2
        ("modular", "3 11", (4, 4), {(2, 0): 0.3, (2, 1): 0.4, (2, 2): 0.3, (3, 0): 1.0}, 0.7),
        # the second and third bracket: an even look back would be ½ ½ and ⅓ ⅓ ⅓
        ("brackets", "(()", (3, 3), {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 0.5, (2, 2): 1.0}, 1 - 1 / 3),
    ],
)
def test_head_scores_equal_those_worked_out_by_hand(
    name: str, typed: str, size: tuple[int, int], edges: dict[tuple[int, int], float], value: float
) -> None:
    # one head [1, query, key] with these weights, and nothing elsewhere
    task, pattern = of(name), torch.zeros(1, *size)
    for (query, key), weight in edges.items():
        pattern[0, query, key] = weight
    source = task.vocabulary.read(typed)
    found = task.rule.head_score(pattern, source, task.answer_queries(len(source)))
    assert found.tolist() == pytest.approx([value], abs=1e-6)
