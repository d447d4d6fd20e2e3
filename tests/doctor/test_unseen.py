"""Mistakes that the checks were not written for: those that break a rule are named, in their layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.doctor.unseen import LAYER, NO_LAYER, PAIR_FAULTS, UNSEEN, UnseenGPT, pair
from xformer.doctor.diagnosis import Finding, diagnose

TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])
SENTENCES = {
    "tokens": torch.tensor([[5, 14, 12, 1, 7, 20, 3]]),
    "decoder_input_ids": torch.tensor([[2, 9, 4, 17, 8, 11]]),
}
FOUND = {fault: check for fault, check in UNSEEN.items() if check}


def the_finding(model: nn.Module, inputs: Any, check: str) -> Finding:
    (finding,) = diagnose(model, inputs, checks=[check]).findings
    return finding


@pytest.mark.parametrize("alibi", [False, True])
def test_the_right_model_has_no_finding(alibi: bool) -> None:
    diagnosis = diagnose(UnseenGPT(alibi=alibi), TOKENS)
    assert diagnosis.ok, repr(diagnosis)


@pytest.mark.parametrize("fault", FOUND)
def test_a_mistake_that_breaks_a_rule_is_named_in_its_layer(fault: str) -> None:
    finding = the_finding(UnseenGPT(fault), TOKENS, FOUND[fault])
    assert finding.verdict == "broken", finding.sentence
    assert finding.place is not None
    assert finding.place.layer == (None if fault in NO_LAYER else LAYER)


@pytest.mark.parametrize("fault", PAIR_FAULTS)
def test_a_mistake_in_the_decoder_of_a_pair_is_named_in_its_layer(fault: str) -> None:
    assert the_finding(pair(), SENTENCES, PAIR_FAULTS[fault]).verdict == "holds"
    finding = the_finding(pair(fault), SENTENCES, PAIR_FAULTS[fault])
    assert finding.verdict == "broken", finding.sentence
    assert finding.place is not None
    assert finding.place.name.startswith(f"decoder.{LAYER}.")


def test_dropout_behind_the_layers_is_not_taken_for_positions() -> None:
    finding = the_finding(UnseenGPT("dropout_on_logits"), TOKENS, "position_shift")
    assert finding.verdict == "could not run"
