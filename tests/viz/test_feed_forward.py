"""The numbers in the charts of neurons are those of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import random_model
from xformer.analysis.neurons import promoted
from xformer.analysis.survey import activity_of
from xformer.trace import record
from xformer.viz.feed_forward import (
    DEAD,
    FIRES,
    RESTS,
    activation_map,
    activity_chart,
    by_mean,
    neuron_chart,
    promotion_chart,
)

PATH = "encoder.1.ffn"
MODEL = random_model("encoder")
TRACE = record(MODEL, torch.tensor([[1, 2, 3, 4, 3, 2, 1]]))
POST = TRACE[f"{PATH}.post"][0].numpy()  # [7, 17]
TOKENS = [str(token) for token in TRACE.tokens[0].tolist()]


def rows(chart: Any) -> list[dict[str, Any]]:
    return [row for data in chart.to_dict()["datasets"].values() for row in data]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_the_map_shows_each_activation_under_its_neuron(is_sorted: bool, signed: bool) -> None:
    order = by_mean(POST) if is_sorted else np.arange(17)
    figure = activation_map(POST, TOKENS, order, signed=signed, limit=2.5, dark=False, chosen=5)
    heat = figure.data[0]
    assert heat.z.shape == (7, 17)
    for position in range(7):
        for column in range(17):
            neuron = heat.customdata[position][column]
            assert heat.z[position][column] == POST[position, neuron]
            assert heat.text[position][column] == f"{position} · {TOKENS[position]}"
    assert (heat.zmin, heat.zmax) == (-2.5 if signed else 0.0, 2.5)
    assert order[figure.layout.annotations[0].x] == 5


def test_sorting_is_by_the_mean_over_positions() -> None:
    means = [sum(POST[position, neuron] for position in range(7)) / 7 for neuron in by_mean(POST)]
    assert means == sorted(means, reverse=True)
    assert sorted(by_mean(POST)) == list(range(17))


def test_bars_of_activity_fill_up_to_one() -> None:
    frame = activity_of(TRACE, ["encoder.0.ffn", PATH])
    shown = rows(activity_chart(frame, {"encoder.0.ffn": "layer 1", PATH: "layer 2"}, dark=True))
    for name, path in (("layer 1", "encoder.0.ffn"), ("layer 2", PATH)):
        shares = {row["state"]: row["share"] for row in shown if row["where"] == f"{name} · this input"}
        fires = TRACE[f"{path}.post"][0].numpy() > 0  # [7, 17]
        assert sum(shares.values()) == pytest.approx(1)
        assert shares[FIRES] == pytest.approx(fires.mean())
        assert shares[DEAD] == pytest.approx(1 - fires.any(axis=0).mean())
        assert shares[RESTS] == pytest.approx(fires.any(axis=0).mean() - fires.mean())


def test_promotion_is_shown_token_by_token_on_a_scale_centred_on_zero() -> None:
    effect = promoted(MODEL, PATH).numpy()[[4, 11, 2]]
    labels = [f"t{token}" for token in range(11)]
    chart = promotion_chart(effect, [4, 11, 2], labels, dark=False)
    cells = chart.to_dict()["layer"][0]
    data = chart.to_dict()["datasets"][cells["data"]["name"]]
    assert [[row["adds"] for row in data if row["neuron"] == f"#{n}"] for n in (4, 11, 2)] == [
        pytest.approx(line) for line in effect.tolist()
    ]
    domain = cells["encoding"]["color"]["scale"]["domain"]
    assert domain[0] == -domain[-1] == pytest.approx(-abs(effect).max())
    [written] = [rows_ for name, rows_ in chart.to_dict()["datasets"].items() if name != cells["data"]["name"]]
    assert {row["neuron"]: row["token"] for row in written} == {
        f"#{n}": labels[int(line.argmax())] for n, line in zip((4, 11, 2), effect, strict=True)
    }


@pytest.mark.parametrize("names", [["original"], ["original", "1 change"]])
def test_one_neuron_by_position(names: list[str]) -> None:
    values = {name: POST[:, 3] * (index + 1) for index, name in enumerate(names)}
    shown = rows(neuron_chart(values, TOKENS, dark=False))
    for name in names:
        assert [row["activation"] for row in shown if row["run"] == name] == values[name].tolist()
    assert shown[2]["place"] == "2 · 3"
