"""Many models trained alike: quantiles over all that have reported, and shares of those that have come to their end."""

from __future__ import annotations

import numpy as np
import pandas as pd

from xformer import analysis


def test_a_fan_counts_a_finished_member_with_its_last_value_and_leaves_out_who_has_said_nothing() -> None:
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


def test_an_outcome_counts_only_who_has_come_to_an_end() -> None:
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
