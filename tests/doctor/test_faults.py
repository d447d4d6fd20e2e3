"""Every fault that is planted is named by its check, and found in its layer and head; right models have no finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from tests.doctor.llama import llama
from tests.doctor.own import NOT_HERE, own
from tests.doctor.plain_gpt import FAULTS, LAYER, OPTIONS, PlainGPT
from xformer.doctor.diagnosis import diagnose

TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])
MODELS: dict[str, Callable[..., nn.Module]] = {"plain": PlainGPT, "llama": llama, "own": own}
LACKS = {"plain": set[str](), "llama": {"window_one_more"}, "own": NOT_HERE}
"""Mistakes that a kind of model has no place for."""
CASES = [(model, fault) for model in MODELS for fault in FAULTS if fault not in LACKS[model]]
RIGHT = [(model, options) for model in MODELS for options in ({}, {"window": 5}, {"scaling": 4.0})]


@pytest.mark.parametrize(("model", "options"), [one for one in RIGHT if one != ("own", {"scaling": 4.0})])
def test_a_right_model_has_no_finding(model: str, options: dict[str, Any]) -> None:
    diagnosis = diagnose(MODELS[model](**options), TOKENS)
    assert diagnosis.ok, repr(diagnosis)
    assert "could not run" not in set(diagnosis.table["verdict"])


@pytest.mark.parametrize(("model", "fault"), CASES)
def test_a_fault_is_named_and_found(model: str, fault: str) -> None:
    check, where = FAULTS[fault]
    diagnosis = diagnose(MODELS[model](fault, **OPTIONS.get(fault, {})), TOKENS, checks=[check])
    row = diagnosis.table.iloc[0]
    assert row["verdict"] == "broken", row["sentence"]
    layer = where.get("layer", LAYER)
    assert layer is None or row["layer"] == layer
    assert "head" not in where or row["head"] == where["head"]
    assert row["remedy"]


def test_the_offending_cell_is_the_key_after_the_query() -> None:
    row = diagnose(PlainGPT("one_too_far"), TOKENS, checks=["causality"]).table.iloc[0]
    assert row["key"] == row["query"] + 1


def test_a_finding_is_shown_with_its_cell() -> None:
    shown = diagnose(PlainGPT("one_too_far"), TOKENS, checks=["causality"])._repr_html_()
    assert "<svg" in shown
    assert "Layer 1, head 2" in shown


def test_a_model_that_draws_random_numbers_is_not_compared_further() -> None:
    table = diagnose(PlainGPT("dropout_always"), TOKENS).table.set_index("check")
    assert table.loc["determinism", "verdict"] == "broken"
    assert table.loc["causality", "verdict"] == "could not run"


def test_a_diagnosis_leaves_the_model_as_it_was() -> None:
    model = PlainGPT().train()
    before, state = {name: one.clone() for name, one in model.named_parameters()}, torch.random.get_rng_state()
    diagnose(model, TOKENS)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], one) and one.grad is None for name, one in model.named_parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_positions_in_the_table_are_whole_numbers() -> None:
    table = diagnose(PlainGPT(), TOKENS, checks=["causality"]).table
    assert isinstance(table["layer"].dtype, pd.Int64Dtype)
