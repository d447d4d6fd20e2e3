"""Charts of many training runs: fans, sweeps and maps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.viz.drawn_file import maps_of, rows_of, rows_of_layer
from xformer import viz
from xformer.viz import theme
from xformer.viz.export import svg

ROWS = pd.DataFrame(
    [(member, step, step / 100 * (member + 1) / 3) for member in range(3) for step in (0, 50, 100)],
    columns=["member", "step", "held_out_exact_match"],
)
OUTCOMES = pd.DataFrame(
    [(0.1, 0, True, 100.0), (0.1, 1, False, np.nan), (0.2, 0, None, np.nan)],
    columns=["peak_lr", "seed", "solved", "steps_to_solve"],
)


def test_fan_draws_every_member_and_the_median() -> None:
    chart = viz.training_fan(ROWS).to_dict(validate=False)
    assert {row["member"] for row in rows_of_layer(chart, 2)} == {0, 1, 2}
    assert [row["median"] for row in rows_of_layer(chart, 3)] == [0, 1 / 3, 2 / 3]
    assert chart["layer"][3]["encoding"]["y"]["scale"]["domain"] == [0, 1]


def test_sweep_cells_count_solved_members_and_are_grey_if_none_finished() -> None:
    chart = viz.sweep_outcome(OUTCOMES, x="peak_lr")
    cells = [(cell["column"], cell["words"], cell["known"]) for cell in rows_of_layer(chart, 0)]
    assert cells == [("0.1", "1 of 2", True), ("0.2", "…", False)]
    assert theme.MASKED in svg([chart])  # a cell without a number is drawn
    steps = viz.sweep_outcome(OUTCOMES, x="peak_lr", y="seed", measure="steps_to_solve")
    cells = [(cell["column"], cell["row"], cell["words"]) for cell in rows_of_layer(steps, 0)]
    assert cells == [("0.1", "0", "100"), ("0.1", "1", "—"), ("0.2", "0", "—")]


def test_maps_are_pooled_and_masked_only_if_the_whole_block_is() -> None:
    maps = np.zeros((2, 30, 30), np.uint8)  # pooled to 15 × 15
    maps[0, 0, 1] = 253
    maps[1] = 255
    maps[1, 29, 28] = 0
    chart = viz.map_grid(maps, ["seed 0", "seed 1"], [True, False])
    first, second = maps_of(chart)
    assert (first[0, 0], first.sum(), first.shape) == (1, 1, (15, 15))
    assert (second[14, 14], np.isnan(second).sum()) == (0, 224)
    assert [row["name"] for row in rows_of(chart, "name")] == ["seed 0 ✓", "seed 1"]
    assert "<image" not in svg([chart])
