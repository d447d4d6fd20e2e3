"""The data of the matrices widget has the numbers of the run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import xformer
from tests.training.tiny import random_model
from xformer.analysis.principles import AttentionCell, attention_cell, stream_update
from xformer.widgets.matrices_data import MAX_KEYS, is_followed, row_data


def cell_of(n: int = 4) -> AttentionCell:
    reading = xformer.read(random_model("decoder", max_len=16), [3, 7, 1, 4, 2, 5, 6, 8, 9, 3, 4, 5, 6][:n])
    return attention_cell(reading, layer=1, head=1, query=2, key=1)


def test_row_data_has_the_numbers_of_the_head() -> None:
    cell = cell_of()
    data = row_data(cell, query="2 1", key=1, step="a")
    found = {one["name"]: torch.tensor([[math.nan if v is None else v for v in row] for row in one["values"]])
             for one in data["matrices"]}  # fmt: skip
    scores = found["q"] @ found["K"].T / data["matrices"][3]["made"]["divide"]
    assert found["S"][0, :3].tolist() == pytest.approx(scores[0, :3].tolist(), rel=1e-4)
    assert data["matrices"][3]["values"][0][3] is None  # a later key is masked
    assert found["A"][0].tolist() == cell.pattern.tolist()
    assert found["Z"][0].tolist() == pytest.approx(cell.z[: found["Z"].shape[1]].tolist(), rel=1e-4, abs=1e-6)
    assert (data["matrices"][3]["about"], data["at"]) == ("1 masked: −∞", ["S", 1])


def test_row_data_ends_with_what_the_head_adds_to_the_stream() -> None:
    reading = xformer.read(random_model("decoder", max_len=16), [3, 7, 1, 4])
    cell = attention_cell(reading, layer=1, head=1, query=2, key=1)
    stream = stream_update(reading, layer=1, head=1, query=2)
    found = {one["name"]: one for one in row_data(cell, query="2 1", key=1, step="a", stream=stream)["matrices"]}
    kept = [int(name[1:]) - 1 for name in found["O"]["columns"]]
    assert set(kept) == set(stream.head.abs().topk(4).indices.tolist())
    z, w_o, o = (torch.tensor(found[name]["values"]) for name in ("z", "Wₒ", "O"))
    torch.testing.assert_close(z @ w_o, o)
    added = [torch.tensor(found[name]["values"]) for name, _ in found["X"]["made"]["of"]]
    torch.testing.assert_close(sum(added), torch.tensor(found["X"]["values"]))
    assert found["X"]["about"] == "normalised, then the stream goes on"


def test_ablated_head_is_labelled_as_set_to_0() -> None:
    cell = replace(cell_of(), z=torch.zeros_like(cell_of().z))
    assert row_data(cell, query="", key=0, step="")["matrices"][-1]["about"] == "ablated: set to 0"


def test_keys_that_share_a_column_keep_the_softmax_and_the_sum_of_the_values() -> None:
    n = MAX_KEYS + 5
    reading = xformer.read(random_model("encoder", max_len=n), [(7 * at) % 10 for at in range(n)])
    for key in (0, n - 1):
        cell = attention_cell(reading, layer=1, head=1, query=2, key=key)
        data = row_data(cell, query="2", key=key, step="a")
        found = {one["name"]: one for one in data["matrices"]}
        [scores], [weights] = (torch.tensor(found[name]["values"]) for name in ("S", "A"))
        assert found["S"]["columns"][-1] == "6 others"
        assert found["S"]["columns"][data["at"][1]].startswith(f"{key} ·")
        torch.testing.assert_close(scores.softmax(dim=0), weights)
        torch.testing.assert_close(weights @ torch.tensor(found["V"]["values"]), cell.z)
        named = [int(name.split(" ")[0]) for name in found["S"]["columns"][:-1]]
        assert set(named) >= set(cell.pattern.topk(MAX_KEYS - 2).indices.tolist())


def test_row_whose_weights_are_no_softmax_is_not_followed() -> None:
    assert is_followed(cell_of())
    assert not is_followed(replace(cell_of(), pattern=torch.tensor([0.0, 0.0, 1.0, 0.0])))
