"""Embedding and unembedding: rows of a matrix, their scale, and tied matrices."""

from __future__ import annotations

import math

import pytest
import torch

from tests.layers.reference import assert_same, build, inputs, random_tokens
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("scaled", [True, False])
def test_an_embedding_is_a_row_times_sqrt_d_model(scaled: bool) -> None:
    model, tape, tokens = build(scale_embeddings=scaled), Tape(), random_tokens(2, 11)
    model(tokens, tape=tape)
    factor = math.sqrt(13) if scaled else 1.0
    for batch in range(2):
        for pos in range(11):
            row = model.embedding.token[tokens[batch, pos]] * factor
            assert torch.equal(tape.activations["embed"][batch, pos], row)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_are_dot_products_with_the_output_matrix(tied: bool, bias: bool) -> None:
    model, tape = build(tied_output=tied, output_bias=bias, norm="pre"), Tape()
    logits = model(random_tokens(2, 11), tape=tape)
    weight = model.embedding.token if tied else model.unembedding.weight
    assert weight is not None
    assert (model.unembedding.weight is None) == tied
    assert (model.unembedding.bias is None) == (not bias)
    expected = tape.activations["final_norm"] @ weight.T
    expected = expected if model.unembedding.bias is None else expected + model.unembedding.bias
    assert_same(logits, expected, list(model.parameters()))


@pytest.mark.parametrize("tied", [True, False])
def test_source_and_target_share_one_embedding_where_tied(tied: bool) -> None:
    model, tape = build(architecture="encoder-decoder", tied_source=tied), Tape()
    source, target = inputs(model)
    model(source, target, tape=tape)
    table = model.embedding if model.source_embedding is None else model.source_embedding
    assert (model.source_embedding is None) == tied
    assert torch.equal(tape.activations["encoder.embed"], table.token[source])
    assert torch.equal(tape.activations["decoder.embed"], model.embedding.token[target])
