"""A trained language model, read and edited: known measurements are reproduced."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import xformer
from tests.real_models import real_model
from xformer import edits
from xformer.adapters import ModelAdapter
from xformer.edits import Edit
from xformer.model_files import inspect
from xformer.reading import Reading, adapter_of

LENGTH = 24


@pytest.fixture(scope="module")
def smollm2() -> ModelAdapter:
    return adapter_of(real_model("SmolLM2-135M-Instruct"))


def likeliest(reading: Reading) -> tuple[str, float]:
    """The most likely next token and its probability."""
    top = reading.logits[0, -1].softmax(dim=-1).max(dim=-1)
    return reading.adapter.token_labels[int(top.indices)], top.values.item()


def test_it_resolves_the_indirect_object_and_recalls_a_capital(smollm2: ModelAdapter) -> None:
    drink = xformer.read(smollm2, "When Mary and John went to the store, John gave a drink to", keep=("logits",))
    assert likeliest(drink) == ("·Mary", pytest.approx(0.92, abs=0.02))
    capital = xformer.read(smollm2, "The capital of France is", keep=("logits",))
    assert likeliest(capital) == ("·Paris", pytest.approx(0.77, abs=0.05))


def test_sizes_match_the_model_card(smollm2: ModelAdapter) -> None:
    shape = smollm2.shape
    assert (shape.n_layers, shape.n_heads, shape.d_model, shape.vocab_size) == (30, 9, 576, 49152)
    assert shape.is_causal
    found = inspect(real_model("SmolLM2-135M-Instruct"))
    assert (found.model_type, found.n_parameters, found.has_tokenizer) == ("llama", 134_515_008, True)
    assert (found.folder / "LICENSE").is_file()


def loss_on_the_repeat(adapter: ModelAdapter, ids: torch.Tensor, changes: list[Edit]) -> float:
    """Mean −log p of the second half, in nats."""
    logits = xformer.read(adapter, ids, edits=changes, keep=("logits",)).logits
    return F.cross_entropy(logits[0, LENGTH:-1], ids[0, LENGTH + 1 :]).item()


def test_the_induction_head_is_found_and_matters(smollm2: ModelAdapter) -> None:
    """Layer 18, head 6 attends to the token after the same token; ablating it makes the repeat harder to predict."""
    once = torch.randint(100, 49000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([once, once], dim=1)
    pattern = xformer.read(smollm2, ids, keep=("logits", "decoder.18.attn.pattern"))["decoder.18.attn.pattern"]
    queries = torch.arange(LENGTH, 2 * LENGTH - 1)
    scores = pattern[0][:, queries, queries - LENGTH + 1].mean(dim=-1)  # [head]
    assert int(scores.argmax()) == 6
    assert scores[6] > 0.7
    whole = loss_on_the_repeat(smollm2, ids, [])
    without = loss_on_the_repeat(smollm2, ids, [edits.ablate_head("decoder.18.attn", 6)])
    another = loss_on_the_repeat(smollm2, ids, [edits.ablate_head("decoder.18.attn", 2)])
    assert without > whole + 0.5
    assert abs(another - whole) < 0.5 * (without - whole)
