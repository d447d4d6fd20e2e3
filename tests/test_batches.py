"""Batches: each input is read as it would be alone, and padding is masked and ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.errors import InputError
from xformer.trace import first_nan
from xformer.viz.packing import pattern_layers

TEXTS = ["the cat sat on the mat", "a dog saw"]
CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5"])
def test_each_text_of_a_batch_is_read_as_if_alone(name: str) -> None:
    model = FAMILIES[name].make()
    texts: list[Any] = [(text, "it flew") for text in TEXTS] if name == "T5" else TEXTS
    batch = xformer.read(model, texts, tokenizer=tokenizer())
    assert batch.batch_size == 2
    for index, text in enumerate(texts):
        alone, one = xformer.read(model, text, tokenizer=tokenizer()), batch.one(index)
        assert one.batch_size == 1
        n = alone.logits.shape[1]
        assert torch.allclose(one.logits[:, :n], alone.logits, **CLOSE)
        assert one.answers == alone.answers
        assert one.loss == pytest.approx(alone.loss, abs=1e-5)
        path = alone.attention[0].path
        n_query, n_key = alone[f"{path}.pattern"].shape[2:]
        assert torch.allclose(one[f"{path}.pattern"][:, :, :n_query, :n_key], alone[f"{path}.pattern"], **CLOSE)


def test_each_row_of_ids_is_one_input() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 5, 6, 7]])
    model = FAMILIES["GPT-2"].make()
    batch = xformer.read(model, ids, tokenizer=tokenizer())
    assert batch["decoder.0.attn.pattern"].shape == (2, 6, 5, 5)
    assert torch.allclose(batch.logits, model(ids).logits, **CLOSE)
    assert torch.equal(batch.one(1).logits, batch.logits[1:])
    assert batch.one(-1).ids() == [10, 11, 5, 6, 7]
    with pytest.raises(InputError, match="inputs 0 to 1, got 2"):
        batch.one(2)
    assert xformer.read(model, ids[0], tokenizer=tokenizer()).ids() == ids[0].tolist()


def test_padding_is_masked_in_figures_and_ignored_by_scores() -> None:
    model = FAMILIES["BERT"].make()
    short = xformer.read(model, TEXTS, tokenizer=tokenizer()).one(1)
    alone = xformer.read(model, TEXTS[1], tokenizer=tokenizer())
    [first, *_] = pattern_layers(short)
    allowed = first.allowed  # type: ignore[union-attr]
    seen = torch.arange(allowed.shape[-1]) < 3
    assert (torch.as_tensor(allowed[0]) == seen & seen[:, None]).all()
    columns = ["diagonal", "anti_diagonal", "previous", "first", "entropy"]
    padded, whole = (xformer.analysis.head_scores(one)[columns].to_numpy(float) for one in (short, alone))
    assert padded == pytest.approx(whole, abs=1e-5)


def test_a_batch_of_an_xformer_model() -> None:
    batch = xformer.read("checkpoints/reverse", ["3 7 12 9", "5 4 3 2 1 6"])
    for index, text in enumerate(["3 7 12 9", "5 4 3 2 1 6"]):
        alone, one = xformer.read("checkpoints/reverse", text), batch.one(index)
        n = alone.logits.shape[1]
        assert torch.allclose(one.logits[:, :n], alone.logits, **CLOSE)
        assert (one.answers, one.n_correct) == (alone.answers, alone.n_correct)
    with pytest.raises(InputError, match="got a batch of 2"):
        xformer.read("checkpoints/reverse", ["3 7 12 9", "5 4 3 2 1 6"], edits="token:0.7")


def test_inputs_can_be_the_arguments_of_the_model() -> None:
    model = FAMILIES["BERT"].make()
    ids, mask = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]]), torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
    reading = xformer.read(model, {"input_ids": ids, "attention_mask": mask})
    assert torch.allclose(reading.logits, model(input_ids=ids, attention_mask=mask).logits, **CLOSE)
    assert not reading.one(0)["encoder.0.attn.mask"][0, 0, :, 3:].any()
    named = xformer.read(model, {"input_ids": ids}, tokens=list("abcde"))
    assert named.tokens == tuple("abcde")
    with pytest.raises(InputError, match="one label for each of the 5 tokens, got 2"):
        xformer.read(model, {"input_ids": ids}, tokens=["a", "b"])


def test_an_encoder_decoder_reads_a_source_alone_if_the_model_accepts_it() -> None:
    model, ids = FAMILIES["BART"].make(), torch.tensor([[5, 6, 7, 8, 2]])
    reading = xformer.read(model, {"input_ids": ids})
    assert torch.allclose(reading.logits, model(input_ids=ids).logits, **CLOSE)
    assert reading.ids("decoder") == [2, 5, 6, 7, 8]
    pair = xformer.read(model, ([5, 6, 7], [8, 9, 2]))
    wanted = model(input_ids=torch.tensor([[5, 6, 7]]), decoder_input_ids=torch.tensor([[2, 8, 9]])).logits
    assert torch.allclose(pair.logits, wanted, **CLOSE)
    with pytest.raises(InputError, match="pass decoder_input_ids"):
        xformer.read(FAMILIES["T5"].make(), {"input_ids": ids})


class Gpt(nn.Module):
    """A hand-written model: one causal attention block over six tokens."""

    def __init__(self, *, blind_row: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.qkv, self.head = nn.Embedding(6, 15), nn.Linear(15, 45), nn.Linear(15, 6)
        self.blind_row = blind_row

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (part.unflatten(-1, (3, 5)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        if self.blind_row is not None:
            later[self.blind_row] = True
        scores = (q @ k.transpose(-2, -1) / 5**0.5).masked_fill(later, float("-inf"))
        return self.head(x + (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("ids", [[5, 2, 5], [3], [1, 2]])
def test_stack_names_do_not_depend_on_the_ids(ids: list[int]) -> None:
    for form in (torch.tensor([ids]), torch.tensor(ids), ids):
        reading = xformer.read(Gpt(), form)
        assert [site.path for site in reading.attention] == ["decoder.0.attn"]
        assert reading.logits.shape == (1, len(ids), 6)


def test_the_mask_of_a_hand_written_model_is_recorded() -> None:
    reading = xformer.read(Gpt(), [1, 2, 3, 4])
    assert torch.equal(reading["decoder.0.attn.mask"][0, 0], torch.ones(4, 4).tril().bool())
    assert not pattern_layers(reading)[0].allowed[0, 0, 1:].any()  # type: ignore[union-attr]


def test_a_model_with_nan_output_opens_and_reports_the_first_nan() -> None:
    reading = xformer.read(Gpt(blind_row=0), [1, 2, 3, 4])
    assert reading.logits[0, 0].isnan().all()
    assert reading.logits[0, 1:].isfinite().all()
    assert "The model's output is NaN." in str(reading.adapter.verification)
    assert "row 0 has no permitted key" in first_nan(reading.trace.activations)
    assert first_nan(xformer.read(Gpt(), [1, 2, 3, 4]).trace.activations) == ""
