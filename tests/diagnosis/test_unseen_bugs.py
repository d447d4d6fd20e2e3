"""What becomes of bugs that no check was written for, said as it is: those that are found must stay found."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.diagnosis.unseen_bugs import BY_A_TRACE, MISSED_BY_A_TRACE, UNSEEN, Unseen
from tests.layers.reference import randomise
from xformer.diagnosis.diagnose import diagnose
from xformer.diagnosis.model import check_up, examination


def model_of(unseen: Unseen) -> xformer.Transformer:
    """A small model with room for padding that can have the bug, all of its weights random: biases and gains too."""
    for architecture in ("encoder", "decoder", "encoder-decoder"):
        for norm in ("post", "pre"):
            config = xformer.ModelConfig(
                architecture=architecture, vocab_size=23, d_model=12, n_layers=2, n_heads=3, d_ff=37, max_len=19, norm=norm,
                attention_bias=True,
            )  # fmt: skip
            if unseen.applies(config):
                return randomise(xformer.Transformer(config)).eval().requires_grad_(False)
    raise AssertionError(unseen.name)


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda unseen: unseen.name)
def test_it_is_found_with_the_model_at_hand_and_where_it_shows_in_a_trace_too(unseen: Unseen) -> None:
    torch.manual_seed(0)
    model = model_of(unseen)
    assert not [finding for finding in check_up(model).findings if finding.severity == "error"]
    broken, inputs = unseen.put_into(model), examination(model.config)
    assert [finding for finding in check_up(broken).findings if finding.severity == "error"]
    found = diagnose(inputs.record(broken), valid=inputs.valid, target_valid=inputs.target_valid).findings
    if unseen.name in BY_A_TRACE:
        assert [finding for finding in found if finding.severity == "error"]
    assert (unseen.name in BY_A_TRACE) != (unseen.name in MISSED_BY_A_TRACE)
