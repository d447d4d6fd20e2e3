"""Summaries of training runs: head scores, appearances, dips, quantiles and sweeps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from xformer import analysis
from xformer.analysis.training_runs import Emerged, appearance, best_heads, dip, emerged, head_table, settled, thinned


def test_head_table_has_a_row_per_step_and_head() -> None:
    scores = {20: {"a": [0.1, 0.7], "b": [0.2]}, 10: {"a": [0.3, 0.1], "b": [0.3]}}
    table = head_table(scores)
    assert table.to_numpy().tolist() == [
        [10, "a", 0, 0.3], [10, "a", 1, 0.1], [10, "b", 0, 0.3],
        [20, "a", 0, 0.1], [20, "a", 1, 0.7], [20, "b", 0, 0.2],
    ]  # fmt: skip
    assert best_heads(table).to_numpy().tolist() == [[10, "a", 0, 0.3], [20, "a", 1, 0.7]]
    assert isinstance(head_table({}), pd.DataFrame)


def test_a_head_appears_unless_it_was_there_from_the_start() -> None:
    def best(*scores: float) -> pd.DataFrame:
        return best_heads(head_table({10 * i: {"a": [score, 0.0]} for i, score in enumerate(scores)}))

    assert appearance(best(0.1, 0.4, 0.6, 0.4, 0.9)) == 20
    assert appearance(best(0.1, 0.4)) is None
    assert appearance(best(0.6, 0.4, 0.9)) is None  # it scores that much by chance
    assert appearance(best()) is None


def test_a_head_emerges_if_it_appears_and_stays() -> None:
    def found(*scores: tuple[float, float]) -> Emerged | None:
        return emerged(head_table({10 * i: {"a": list(pair)} for i, pair in enumerate(scores)}))

    assert found((0.4, 0.1), (0.6, 0.55), (0.3, 0.9)) == Emerged(10, "a", 1, 0.1, 0.9)
    assert found((0.4, 0.1), (0.9, 0.1), (0.3, 0.4)) is None  # it did not stay
    assert found((0.1, 0.5), (0.1, 0.9)) is None  # it was there from the start
    assert found((0.1, 0.4), (0.1, 0.6)) is None  # on few tokens this happens by chance
    assert emerged(head_table({})) is None


def test_a_curve_has_settled_after_its_last_value_below_the_threshold() -> None:
    assert settled([10, 20, 30, 40], [1.0, 0.9, 1.0, 1.0], 0.99) == 30
    assert settled([10, 20], [1.0, 1.0], 0.99) == 10
    assert settled([10, 20], [0.0, 1.0], 0.99) is None
    assert settled([10, 20], [1.0, 0.0], 0.99) is None
    assert settled([], [], 0.99) is None


def test_a_dip_is_a_fall_from_a_high_value_that_recovers() -> None:
    for curve, found in (
        ([0.1, 0.97, 0.85, 0.9, 0.99], (2, 0.85)),  # a fall and a recovery
        ([0.1, 0.97, 0.85, 0.9], None),  # it has not recovered
        ([0.1, 0.5, 0.3, 0.9], None),  # it was not high before
        ([0.1, 0.97, 0.95, 0.99], None),  # too small for a dip
        ([], None),
    ):
        assert dip(list(range(len(curve))), curve) == found


def test_thinning_keeps_its_steps_as_a_run_grows() -> None:
    assert thinned(range(0, 330, 10), 16) == [*range(0, 330, 40)]
    assert thinned(range(0, 340, 10), 16) == [*range(0, 330, 40), 330]  # plus the last step
    assert thinned([], 16) == []


def test_a_fan_keeps_the_last_value_of_finished_members() -> None:
    rows = pd.DataFrame(
        [("a", 10, 0.0), ("b", 10, 0.4), ("c", 20, np.nan), ("a", 20, 1.0), ("b", 30, 0.8), ("c", 30, 0.6)],
        columns=["member", "step", "held_out_exact_match"],
    )
    table = analysis.training_fan(rows).set_index("step")
    assert list(table["members"]) == [2, 2, 3]
    np.testing.assert_allclose(table["median"], [0.2, 0.7, 0.8])
    assert (table["low"] <= table["lower"]).all()
    assert (table["upper"] <= table["high"]).all()
    assert analysis.training_fan(rows.iloc[:0]).empty


def test_a_sweep_outcome_counts_only_finished_members() -> None:
    outcomes = pd.DataFrame(
        {
            "rate": [0.1, 0.1, 0.1, 0.01, 0.01, 0.001],
            "solved": pd.Series([True, True, None, False, None, None], dtype=object),
            "steps_to_solve": [100.0, 300.0, np.nan, np.nan, np.nan, np.nan],
        }
    )
    table = analysis.sweep_outcome(outcomes, x="rate").set_index("rate")
    assert list(table.index) == [0.001, 0.01, 0.1]
    assert table.loc[0.1].to_dict() == {
        "members": 3, "decided": 2, "solved": 2, "share_solved": 1.0, "steps_to_solve": 200.0,
    }  # fmt: skip
    assert table.loc[0.01, "share_solved"] == 0.0
    assert np.isnan(table.loc[0.01, "steps_to_solve"])
    assert np.isnan(table.loc[0.001, "share_solved"])
