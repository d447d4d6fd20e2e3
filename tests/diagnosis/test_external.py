"""The checks of a run of an external model: silent on whole models, and each of them can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import xformer
from tests.adapters.families import FAMILIES
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.diagnosis.external import check_reading
from xformer.edits import set_causal
from xformer.errors import InputError

IDS = (5, 6, 7, 8, 5, 9)


def read(family: str, **options: Any) -> xformer.Reading:
    return xformer.read(HuggingFaceModel.open(FAMILIES[family].make()), IDS, **options)


@pytest.mark.parametrize("family", ["Llama", "GPT-2", "BERT", "GPT-OSS"])  # the last one has attention sinks
def test_a_whole_model_has_no_findings(family: str) -> None:
    assert check_reading(read(family)).findings == []


def test_a_lifted_causal_mask_is_found_in_every_layer() -> None:
    found = check_reading(read("Llama", edits=[set_causal(False)])).findings
    assert {finding.kind for finding in found} == {"causal-ignored"}
    assert [finding.where for finding in found] == [("decoder.0.attn",), ("decoder.1.attn",)]
    assert found[0].numbers["later"] > 0.1


@pytest.mark.parametrize("change", [lambda pattern: 1.01 * pattern, lambda pattern: pattern - 0.01])
def test_weights_that_are_no_distribution_are_found(change: Any) -> None:
    reading = read("BERT")
    name = "encoder.1.attn.pattern"
    activations = {**reading.trace.activations, name: change(reading[name])}
    changed = replace(reading, trace=replace(reading.trace, activations=activations))
    [finding] = check_reading(changed).findings
    assert (finding.kind, finding.where) == ("rows-not-one", ("encoder.1.attn",))


def test_a_reading_without_patterns_is_refused() -> None:
    with pytest.raises(InputError, match="needs the attention patterns"):
        check_reading(read("Llama", keep=("logits",)))
