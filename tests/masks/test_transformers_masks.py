"""Masks as Transformers makes them, and as a run recorded them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xformer
from xformer import masks
from xformer.errors import InputError
from xformer.masks import bidirectional, causal, chunked, documents, padding, window

PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]])
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 10])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"n_query": 10}, causal()),
        ({"attention_mask": LEFT}, causal() & padding(LEFT)),
        ({"position_ids": PACKED}, causal() & documents([0, 4, 7])),
        ({"kind": "sliding_window", "window": 3, "n_query": 10}, causal() & window(3)),
        ({"kind": "sliding_window", "window": 2, "position_ids": PACKED}, causal() & window(2) & documents([0, 4, 7])),
        ({"kind": "chunked", "window": 4, "n_query": 10}, causal() & chunked(4)),
        ({"kind": "bidirectional", "n_query": 10}, bidirectional()),
        ({"kind": "bidirectional", "attention_mask": LEFT}, padding(LEFT)),
        ({"kind": "bidirectional_sliding_window", "window": 3, "n_query": 10}, window(4, ahead=4)),
        (
            {"block_sequence_ids": torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1, -1]])},
            causal() | bidirectional(within=[(2, 5), (6, 8)]),
        ),
    ],
)
def test_the_mask_of_transformers_follows_its_rule(arguments: dict[str, Any], rule: masks.Rule) -> None:
    valid = arguments.get("attention_mask")
    found = masks.check(masks.transformers_mask(**arguments), rule, queries=valid)
    assert found.holds, found.sentence


def test_a_mask_of_ones_switches_the_detection_of_documents_off() -> None:
    """As reported for Transformers (pull request 46634)."""
    mask = masks.transformers_mask(position_ids=PACKED, attention_mask=torch.ones_like(PACKED))
    found = masks.check(mask, causal() & documents([0, 4, 7]))
    assert (found.n_leaks, found.n_losses, found.first) == (33, 0, (0, 0, 4, 0))
    assert masks.describe(mask).sentence == "causal"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs a number of positions"),
        ({"kind": "diagonal"}, "kind must be one of"),
        ({"kind": "sliding_window", "n_query": 4}, "window must be"),
        ({"n_query": 4, "window": 3}, "has no window"),
        ({"attention_mask": [1, 1]}, "must have shape"),
        ({"n_query": 99999}, "n_query must be"),
        ({"kind": "bidirectional", "position_ids": PACKED}, "takes no position_ids"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        masks.transformers_mask(**arguments)


def test_recorded_masks() -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 9")
    assert masks.describe(masks.recorded_mask(reading)).sentence == "full"
    changed = xformer.read("checkpoints/reverse", "3 7 12 9", edits=[xformer.edits.set_causal(True)])
    assert masks.describe(masks.recorded_mask(changed, layer=2)).sentence == "causal"
