"""The numbers of a cell are those of the run, and each follows from the ones before it."""

from __future__ import annotations

import math

import pytest
import torch

import xformer
from xformer.analysis.principles import attention_cell, dimensions, head_output, softmax_of_cell
from xformer.errors import EditError
from xformer.reading import from_trace

KINDS = ["sinusoidal", "rotary", "alibi", "none"]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> tuple[xformer.Transformer, xformer.Trace]:
    config = xformer.ModelConfig(
        architecture="decoder", vocab_size=23, d_model=13, n_layers=2, n_heads=3, d_head=6, d_value=7, d_ff=11,
        max_len=17, positions=request.param, embed_std=1.0,
    )  # fmt: skip
    model = xformer.Transformer(config, torch.Generator().manual_seed(5)).double().eval()
    tokens = torch.randint(23, (1, 11), generator=torch.Generator().manual_seed(7))
    return model, xformer.record(model, tokens)


@pytest.mark.parametrize("run", KINDS, indirect=True)
def test_each_stage_follows_from_the_one_before(run: tuple[xformer.Transformer, xformer.Trace]) -> None:
    model, trace = run
    reading = from_trace(model, trace)
    cell = attention_cell(reading, layer=1, head=2, query=7, key=3)
    frame = dimensions(cell)
    assert frame["product"].sum() == pytest.approx(cell.dot, rel=1e-12)
    assert cell.score == pytest.approx(cell.dot / math.sqrt(6) + cell.bias, rel=1e-12)
    # float64: a sum of six products, whatever the kernel's order
    assert trace["decoder.1.attn.scores"][0, 2, 7, 3].item() == pytest.approx(cell.score, rel=1e-10)
    row = softmax_of_cell(cell)
    assert row["token"].tolist() == list(reading.tokens)
    assert (row["exp"] / row["exp"].sum()).tolist() == pytest.approx(row["weight"].tolist(), rel=1e-12)
    assert row["allowed"].tolist() == [key <= 7 for key in range(11)]
    assert row["score"].isna().tolist() == [key > 7 for key in range(11)]
    torch.testing.assert_close(cell.pattern @ cell.values, cell.z, rtol=1e-12, atol=1e-14)
    heads = [head_output(reading, layer=1, head=head, query=7) for head in range(3)]
    torch.testing.assert_close(sum(heads), trace["decoder.1.attn.out"][0, 7], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("run", ["none"], indirect=True)
@pytest.mark.parametrize("cell", [(3, 0, 0), (0, 11, 0), (0, 0, -1)])
def test_a_cell_that_is_not_there_is_an_error(
    run: tuple[xformer.Transformer, xformer.Trace], cell: tuple[int, int, int]
) -> None:
    head, query, key = cell
    with pytest.raises(EditError, match="got"):
        attention_cell(from_trace(*run), layer=0, head=head, query=query, key=key)
