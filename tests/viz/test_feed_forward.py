"""The numbers in charts of neurons equal those of the run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import random_model
from tests.viz.drawn_file import all_rows as rows
from tests.viz.drawn_file import rows_of_layer, spec_of
from xformer import viz
from xformer.analysis.feed_forward import direct_logit_effect, top_neurons
from xformer.reading import from_trace
from xformer.trace import record
from xformer.viz import feed_forward
from xformer.viz.feed_forward import DEAD, FIRES, RESTS, clear_limit, trigger_words

PATH, LAYER = "encoder.1.ffn", 1
MODEL = random_model("encoder")
TRACE = record(MODEL, torch.tensor([[1, 2, 3, 4, 3, 2, 1]]))
RUN, OTHER = from_trace(MODEL, TRACE), from_trace(MODEL, record(MODEL, torch.tensor([[4, 4, 1, 2, 9, 8, 7]])))
POST = TRACE[f"{PATH}.post"][0].numpy()  # [7, 17]
TOKENS = RUN.tokens
ROWS = MODEL.get_parameter("encoder.blocks.1.ffn.weight_out").norm(dim=0).detach().numpy()  # [17]
RANKING = np.argsort(-(np.abs(POST) * ROWS).mean(axis=0), kind="stable")  # by the mean activity over positions


def lines(chart: Any) -> tuple[list[tuple[str, list[int], list[float]]], dict[str, Any]]:
    """Return the rows of a map, one per position: place, neurons and activations; and its colour scale."""
    cells = spec_of(chart)["layer"][0]
    neurons = next(step["calculate"] for step in cells["transform"] if step.get("as") == "neuron")
    assert neurons.endswith("[datum.column]")
    order = json.loads(neurons.removesuffix("[datum.column]"))
    shown = [
        (row["place"], order, [float(value) for value in row["activations"].split(" ")])
        for row in rows_of_layer(chart, 0)
    ]
    return shown, cells["encoding"]["color"]["scale"]


@pytest.mark.parametrize(("order", "stage"), [("sorted", "post"), ("plain", "pre")])
def test_map_shows_each_activation_at_its_neuron(order: str, stage: str) -> None:
    values = TRACE[f"{PATH}.{stage}"][0].numpy()
    chart = viz.activations(RUN, layer=LAYER, stage=stage, order=order, neuron=5)
    shown, scale = lines(chart)
    ranking = RANKING if order == "sorted" else np.arange(17)
    assert [row[:2] for row in shown] == [(f"{at} · {token}", ranking.tolist()) for at, token in enumerate(TOKENS)]
    np.testing.assert_allclose([row[2] for row in shown], values[:, ranking], rtol=1e-5)
    limit = float(abs(values).max())
    assert (scale["domain"][0], scale["domain"][-1]) == pytest.approx((-limit if stage == "pre" else 0.0, limit))
    [mark] = [row for row in rows(chart) if "left" in row]
    assert ranking[mark["left"]] == 5


def test_map_has_no_lists_which_streamlit_cannot_send() -> None:
    assert not [
        value for row in rows(viz.activations(RUN, layer=LAYER)) for value in row.values() if type(value) is list
    ]


def test_map_of_a_changed_run_keeps_the_order_and_scale_of_the_original() -> None:
    shown, scale = lines(viz.activations(OTHER, layer=LAYER, before=RUN, positions=[2, 3]))
    assert shown[0][1] == RANKING.tolist()
    assert scale["domain"][-1] == pytest.approx(max(POST.max(), OTHER[f"{PATH}.post"].max().item()))
    np.testing.assert_allclose(shown[1][2], OTHER[f"{PATH}.post"][0, 3].numpy()[RANKING], rtol=1e-5)


def test_shares_of_firing_neurons_sum_to_one() -> None:
    shown = rows(viz.firing(RUN, before=OTHER))
    runs = {"original": OTHER, "changed": RUN}
    for name, path in (("layer 1", "encoder.0.ffn"), ("layer 2", PATH)):
        for which, run in runs.items():
            shares = {row["state"]: row["share"] for row in shown if row["where"] == f"{name} · {which}"}
            fires = run[f"{path}.post"][0].numpy() > 0  # [7, 17]
            assert sum(shares.values()) == pytest.approx(1)
            assert shares[FIRES] == pytest.approx(fires.mean())
            assert shares[DEAD] == pytest.approx(1 - fires.any(axis=0).mean())
            assert shares[RESTS] == pytest.approx(fires.any(axis=0).mean() - fires.mean())


def test_outlier_activations_do_not_set_the_scale() -> None:
    values = np.random.default_rng(0).normal(size=(7, 311))
    assert clear_limit(values) == np.abs(values).max()
    values[0, 5] = 470.0
    assert np.quantile(np.abs(values), 0.99) < clear_limit(values) < 10
    sparse = np.zeros((7, 311))
    sparse[2, 3] = 9.0  # almost nothing fires: the 99th percentile is 0
    assert clear_limit(sparse) == 9.0
    assert clear_limit(np.full((2, 3), np.nan)) == 1.0


def test_neurons_are_labelled_by_their_triggers() -> None:
    chart = viz.neurons(RUN, layer=LAYER, n=5)
    shown = [row for row in rows(chart) if "activation" in row]
    assert len(shown) == 7 * 5
    for row in shown:
        assert row["name"].endswith(f"· #{row['neuron']}")
        position = int(row["place"].split(" · ")[0])
        assert row["activation"] == pytest.approx(float(POST[position, row["neuron"]]))
        assert row["share"] == pytest.approx(row["activation"] / max(abs(POST[:, row["neuron"]]).max(), 1e-12))
    found = [trigger_words(*trigger) for trigger in (("says", ("3", "7")), ("from_end", (0,)), ("none", ()))]
    assert found == ["fires to say 3 or 7", "fires at the last position", "no clear trigger"]


def test_promotion_shows_the_tokens_with_the_largest_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_forward, "MAX_TOKENS_DRAWN", 4)
    chosen = top_neurons(RUN, layer=LAYER, position=2, n=3)
    effect = direct_logit_effect(RUN, LAYER)[chosen].numpy() * POST[2, chosen][:, None]  # [3, 11]
    kept = np.argsort(-np.abs(effect).max(axis=0))[:4]
    drawn = [row for row in rows(viz.promotion(RUN, layer=LAYER, position=2, n=3)) if "adds" in row]
    assert {row["token"] for row in drawn} == {str(token) for token in kept}
