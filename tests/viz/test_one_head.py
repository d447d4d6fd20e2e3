"""One head as a chart: on which scale, what is masked, and what becomes of more cells than can be drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tests.training.tiny import random_model
from xformer import analysis, edits, viz
from xformer.analysis.attention_patterns import MOST_TOKENS, pattern_cells, rollout_matrices
from xformer.reading import from_trace
from xformer.trace import record
from xformer.viz.attention_patterns import head_chart, pooled

DRAW = np.random.default_rng(3)


def frame(n: int, *, causal: bool = True) -> pd.DataFrame:
    pattern = DRAW.dirichlet(np.full(n, 0.3), size=n).astype(np.float32)
    allowed = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    names = [f"{position} t" for position in range(n)]
    return pattern_cells(pattern, allowed, names, names)


def colour(spec: dict) -> dict:
    return spec["encoding"]["color"]["condition"]


def test_the_scale_is_fixed_or_the_heads_own() -> None:
    cells = frame(5)
    assert colour(head_chart(cells).to_dict())["scale"]["domain"][-1] == 1
    own = colour(head_chart(cells, scale="own").to_dict())["scale"]["domain"][-1]
    assert own == pytest.approx(cells["weight"].max())


def test_the_difference_is_that_of_the_weights_and_a_masked_one_counts_0() -> None:
    model, tokens = random_model("encoder"), torch.tensor([[3, 1, 4, 1]])
    own, causal = (from_trace(model, record(model, tokens, edits=made)) for made in ([], [edits.set_causal(True)]))
    at = {"layer": 1, "head": 2}
    spec = viz.attention(causal, before=own, **at).to_dict()
    assert [one["title"] for one in spec["hconcat"]] == ["original", "changed", "changed − original"]
    shown = spec["datasets"][spec["hconcat"][2]["data"]["name"]]
    before, after = analysis.attention(own, **at), analysis.attention(causal, **at)
    assert after["weight"].isna().sum() == 6
    for cell, old, new in zip(shown, before["weight"], after["weight"].fillna(0.0), strict=True):
        assert cell["weight"] == pytest.approx(new - old)


@pytest.mark.parametrize("n", [65, 130])
def test_more_cells_than_can_be_drawn_are_pooled_by_their_largest(n: int) -> None:
    cells = frame(n)
    small = pooled(cells, 64)
    assert len(small) <= 64**2
    assert small["weight"].max() == cells["weight"].max()
    size = -(-n // 64)
    block = cells["weight"].to_numpy().reshape(n, n)[:size, :size]
    assert small["weight"].iloc[0] == pytest.approx(np.nanmax(block))
    assert not small["allowed"].iloc[int(len(small) ** 0.5) - 1]  # the last keys of the first queries
    assert pooled(cells, n) is cells


def test_rows_of_a_pooled_rollout_still_sum_to_1() -> None:
    n = 2 * MOST_TOKENS + 5
    model = random_model("encoder", max_len=n)
    trace = record(model, torch.arange(n)[None] % 11)
    table = analysis.rollout(from_trace(model, trace))
    assert len(table) <= 2 * MOST_TOKENS**2
    assert table.groupby(["layer", "query"])["share"].sum().to_numpy() == pytest.approx(1.0)
    first = table[(table["layer"] == 1)].iloc[0]
    assert first["share"] == pytest.approx(rollout_matrices(trace)[0, :3, :3].sum(dim=1).mean().item())
