"""The learning rate schedule and random positions. test_loop.py tests the steps and the saved state."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.training.tiny import run_of, tiny_preset, tiny_task
from xformer.config import TrainConfig
from xformer.layers.masks import SequencePacking
from xformer.training.recipe import learning_rate, spread, with_random_positions

R = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # W = 2: 1/2 and 2/2 of the peak, then t = (step - 3) / 8
        ({"steps": 10, "warmup": 0.2, "peak_lr": 8.0}, [4, 8, 8, 7, 6, 5, 4, 3, 2, 1]),
        ({"steps": 6, "warmup": 1 / 3, "peak_lr": 5.0, "final_lr": 1.0}, [2.5, 5, 5, 4, 3, 2]),
        # W = 1, t = 0, 1/4, 1/2, 3/4: 1 + 4 (1 + cos πt) / 2
        (
            {"steps": 5, "warmup": 0.2, "peak_lr": 5.0, "final_lr": 1.0, "decay": "cosine"},
            [5, 5, 3 + 2 * R, 3, 3 - 2 * R],
        ),
        ({"steps": 4, "warmup": 1.0, "peak_lr": 4.0, "decay": "cosine"}, [1, 2, 3, 4]),
        ({"steps": 7, "warmup": 0.4, "peak_lr": 3.0, "decay": "none"}, [1, 2, 3, 3, 3, 3, 3]),  # 2.8 steps are 3
    ],
)
def test_schedule_warms_up_and_decays(settings: dict[str, Any], expected: list[float]) -> None:
    config = TrainConfig(**settings)
    assert [learning_rate(config, step) for step in range(1, config.steps + 1)] == pytest.approx(expected)


MAX_LEN = 17


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("packed", [True, False])
def test_random_positions_increase_within_each_sequence_and_mirror_from_the_end(packed: bool) -> None:
    batch = tiny_task().sample(40, seed=1, packed=packed)
    after = with_random_positions(batch, MAX_LEN, draw()).layout
    assert batch.layout.segments is not None
    seen = set()
    for row, segments in enumerate(batch.layout.segments):
        for segment in segments.unique():
            inside = segments == segment
            numbers, from_end = after.positions[row][inside].tolist(), after.mirrored[row][inside].tolist()
            if segment == 0:  # padding is unchanged
                assert numbers == batch.layout.positions[row][inside].tolist()
                continue
            assert numbers == sorted(set(numbers))
            assert from_end == numbers[::-1]
            assert max(numbers) < MAX_LEN
            seen |= set(numbers)
    assert seen == set(range(MAX_LEN))


def test_random_positions_cover_the_range_and_a_sequence_of_maximal_length_gets_them_all() -> None:
    layout = spread(SequencePacking.from_segments(torch.ones(4000, 3, dtype=torch.long)), 7, draw(3))
    rows = layout.positions.tolist()
    assert [0, 1, 2] in rows
    first, last = ({row[at] for row in rows} for at in (0, 2))
    assert first == set(range(5))
    assert last == set(range(2, 7))

    layout = SequencePacking.from_segments(torch.tensor([[1] * 5, [1, 1, 2, 2, 2]]))
    after = spread(layout, 5, draw())
    assert after.positions[0].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(spread(layout, 5, draw(1)).positions, spread(layout, 5, draw(1)).positions)


def test_run_trains_on_random_positions_and_is_scored_on_plain_ones() -> None:
    settings = tiny_preset("encoder-decoder", random_positions=True)
    run = run_of(settings)
    batch = run.batch(3)
    longest = max(run.task.longest)
    for layout in (batch.layout, batch.target_layout):
        assert layout is not None
        assert int(layout.positions.max()) >= longest  # plain inputs have smaller positions
        assert int(layout.positions.max()) < settings.model.max_len
    assert int(run.held_out.layout.positions.max()) < longest
    assert torch.equal(run.batch(3).layout.positions, batch.layout.positions)
    assert not torch.equal(run.batch(4).layout.positions, batch.layout.positions)
