"""Position numbers drawn at random while a model trains: growing, alike from both ends, and all of them come up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.training.tiny import ARCHITECTURES, tiny_preset, tiny_task
from xformer.layers.layout import Layout
from xformer.presets import preset
from xformer.tasks import Task
from xformer.training.by_length import scores_by_length
from xformer.training.loop import Run
from xformer.training.random_positions import spread, with_random_positions

MAX_LEN = 17


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("packed", [True, False])
def test_each_sequence_has_growing_numbers_of_its_own_alike_from_both_ends(packed: bool) -> None:
    batch = tiny_task().sample(40, seed=1, packed=packed)
    after = with_random_positions(batch, MAX_LEN, draw()).layout
    assert batch.layout.segments is not None
    seen = set()
    for row, segments in enumerate(batch.layout.segments):
        for segment in segments.unique():
            inside = segments == segment
            numbers, from_end = after.positions[row][inside].tolist(), after.mirrored[row][inside].tolist()
            if segment == 0:  # padding stays as it was
                assert numbers == batch.layout.positions[row][inside].tolist()
                continue
            assert numbers == sorted(set(numbers))
            assert from_end == numbers[::-1]
            assert max(numbers) < MAX_LEN
            seen |= set(numbers)
    assert seen == set(range(MAX_LEN))


def test_numbers_without_gaps_come_up_too_and_every_number_does() -> None:
    layout = spread(Layout.from_segments(torch.ones(4000, 3, dtype=torch.long)), 7, draw(3))
    rows = layout.positions.tolist()
    assert [0, 1, 2] in rows
    first, last = ({row[at] for row in rows} for at in (0, 2))
    assert first == set(range(5))
    assert last == set(range(2, 7))


def test_a_sequence_as_long_as_there_are_numbers_keeps_them() -> None:
    layout = Layout.from_segments(torch.tensor([[1] * 5, [1, 1, 2, 2, 2]]))
    after = spread(layout, 5, draw())
    assert after.positions[0].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(spread(layout, 5, draw(1)).positions, spread(layout, 5, draw(1)).positions)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_trains_on_them_and_is_scored_on_plain_ones(architecture: str) -> None:
    settings = tiny_preset(architecture, random_positions=True)
    run = Run(settings, Task(settings.task), torch.device("cpu"), None)
    batch = run.batch(3)
    layouts = [batch.layout] + ([] if batch.target_layout is None else [batch.target_layout])
    longest = max(run.task.longest)
    for layout in layouts:
        assert int(layout.positions.max()) >= longest  # which no plain input has
        assert int(layout.positions.max()) < settings.model.max_len
    assert int(run.held_out.layout.positions.max()) < longest
    assert torch.equal(run.batch(3).layout.positions, batch.layout.positions)
    assert not torch.equal(run.batch(4).layout.positions, batch.layout.positions)


def test_they_carry_a_reverser_beyond_its_training() -> None:
    """A short training, so only that it helps: without them the first longer inputs fail already."""
    settings = preset("reverse-long")
    settings = replace(settings, train=settings.train.replace(steps=250, snapshot_every=0))
    right = {}
    for on in (True, False):
        of = replace(settings, train=settings.train.replace(random_positions=on))
        run = Run(of, Task(of.task), torch.device("cpu"), None)
        for _ in range(250):
            run.train_step()
        [(_, score)] = scores_by_length(run.model.eval(), run.task, [22], samples=100, seed=1)
        right[on] = score.exact_match
    assert right[True] > 0.5
    assert right[False] < 0.5
