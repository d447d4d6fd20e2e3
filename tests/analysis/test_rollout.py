"""Rollout against a loop written from the paper's equation, and its laws."""

from __future__ import annotations

import pytest
import torch

import xformer
from xformer.analysis.attention_patterns import rollout_matrices
from xformer.errors import EditError


def model_of(architecture: str, **options: object) -> xformer.Transformer:
    config = xformer.ModelConfig(
        architecture=architecture, vocab_size=23, d_model=13, n_layers=3, n_heads=5, d_head=7, d_ff=11, max_len=17,
        embed_std=1.0, **options,
    )  # fmt: skip
    return xformer.Transformer(config, torch.Generator().manual_seed(3)).double().eval()


def test_against_the_equation() -> None:
    trace = xformer.record(model_of("encoder"), torch.arange(1, 12)[None])
    expected = torch.eye(11, dtype=torch.float64)
    for layer in range(3):
        pattern = trace[f"encoder.{layer}.attn.pattern"][0]
        mean = [[sum(pattern[head, q, k] for head in range(5)) / 5 for k in range(11)] for q in range(11)]
        expected = (0.5 * torch.tensor(mean, dtype=torch.float64) + 0.5 * torch.eye(11, dtype=torch.float64)) @ expected
        # float64, in another order of addition: a few ulps of numbers below 1
        torch.testing.assert_close(rollout_matrices(trace)[layer], expected, rtol=0, atol=1e-15)


def test_rows_sum_to_one_and_a_causal_model_reaches_nothing_later() -> None:
    reached = rollout_matrices(xformer.record(model_of("decoder"), torch.arange(1, 12)[None]))
    torch.testing.assert_close(reached.sum(dim=-1), torch.ones(3, 11, dtype=torch.float64))
    assert torch.equal(reached, reached.tril())


def test_a_row_that_sees_nothing_counts_as_itself() -> None:
    reached = rollout_matrices(
        xformer.record(model_of("encoder", causal=True, see_self=False), torch.arange(1, 12)[None])
    )
    torch.testing.assert_close(reached.sum(dim=-1), torch.ones(3, 11, dtype=torch.float64))
    assert reached[:, 0, 0].tolist() == [1.0, 1.0, 1.0]


def test_each_stack_of_a_pair_has_its_own() -> None:
    trace = xformer.record(model_of("encoder-decoder"), torch.arange(1, 8)[None], torch.arange(1, 6)[None])
    assert rollout_matrices(trace).shape == rollout_matrices(trace, "encoder").shape == (3, 7, 7)
    assert rollout_matrices(trace, "decoder").shape == (3, 5, 5)
    with pytest.raises(EditError, match="no stack"):
        rollout_matrices(trace, "cortex")
