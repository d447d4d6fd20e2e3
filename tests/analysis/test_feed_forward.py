"""What neurons write to the logits, compared with finite differences."""

from __future__ import annotations

import pytest
import torch

from tests.analysis.test_neuron_survey import feed_forward_paths, ran
from xformer import edits
from xformer.analysis.feed_forward import direct_logit_effect
from xformer.reading import from_trace
from xformer.trace import record


@pytest.mark.usefixtures("float64")
def test_direct_logit_effects_match_finite_differences() -> None:
    """In the last layer of a model without norms the direct path is exact: each neuron is changed and the logits compared."""
    model, trace = ran("encoder-decoder", norm="none")
    path, step = feed_forward_paths(model)[-1], 0.25
    effect = direct_logit_effect(from_trace(model, trace), len(feed_forward_paths(model)) - 1)
    assert effect.shape == (17, 11)
    for neuron in (0, 16):
        nudged = trace[f"{path}.post"].clone()
        nudged[:, :, neuron] += step
        moved = record(model, trace.tokens, trace.target, edits=[edits.replace(f"{path}.post", nudged)]).logits
        # The logits are linear in the activation, so the difference quotient is the derivative for any step.
        slope = (moved - trace.logits) / step
        # Without a norm some logits are in the thousands and dominate the rounding: 2⁻⁵³ · 10⁴ / step ≈ 5e-12 per operation.
        torch.testing.assert_close(slope, effect[neuron].expand_as(slope), rtol=0, atol=1e-8)
