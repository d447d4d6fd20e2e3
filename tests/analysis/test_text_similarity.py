"""Text similarity, compared with the original model run on each text alone, without padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import xformer
from tests.adapters.test_huggingface import tokenizer
from tests.adapters.zoo import ZOO
from xformer.adapters.load import open_model
from xformer.errors import CheckpointError, InputError, ModelFileError, UnavailableError

TEXTS = ["the cat sat on the mat", "a dog", "the bird flew and then it sat [EOS]"]
MEMBERS = {member.name: member for member in ZOO}


def by_hand(model: Any, text: str, pooling: str) -> list[torch.Tensor]:
    """Return the pooled hidden states of the original model, the embeddings first, for a text run alone."""
    ids = tokenizer()(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    return [{"mean": x.mean(dim=1), "last": x[:, -1], "first": x[:, 0]}[pooling][0] for x in states]


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("BertModel", None), ("BertModel", "first"), ("T5EncoderModel", None), ("LlamaForCausalLM", None)],
)
def test_cosines_match_the_original_model_without_padding(name: str, pooling: Any) -> None:
    model = MEMBERS[name].make()
    usual = "last" if MEMBERS[name].is_causal else "mean"
    vectors = [by_hand(model, text, pooling or usual) for text in TEXTS]
    table = xformer.analysis.similarity(model, TEXTS, pooling=pooling, tokenizer=tokenizer())
    assert table.columns.tolist() == ["layer", "first", "second", "cosine"]
    assert len(table) == len(vectors[0]) * len(TEXTS) ** 2
    for layer, first, second, cosine in table.itertuples(index=False):
        wanted = torch.cosine_similarity(vectors[first][layer], vectors[second][layer], dim=0)
        assert cosine == pytest.approx(wanted.item(), abs=1e-5)


def test_the_projected_vector_is_the_default_if_the_class_has_one() -> None:
    model = MEMBERS["CLIPTextModelWithProjection"].make()
    table = xformer.analysis.similarity(model, TEXTS, tokenizer=tokenizer())
    assert set(table["layer"]) == {2}
    with torch.no_grad():
        own = [model(**tokenizer()(text, return_tensors="pt")).text_embeds[0] for text in TEXTS]
    for _, first, second, cosine in table.itertuples(index=False):
        assert cosine == pytest.approx(torch.cosine_similarity(own[first], own[second], dim=0).item(), abs=1e-5)


def test_texts_that_cannot_be_compared_are_refused_with_the_reason() -> None:
    for name, texts, pooling, error, sentence in (
        ("GPT2Model", TEXTS, "own", UnavailableError, "has no pooled vector of its own"),
        ("T5Model", TEXTS, None, UnavailableError, "encoder-decoder"),
        ("BertModel", [], None, InputError, "no texts to compare"),
        ("BertModel", TEXTS, "max", InputError, "one of mean, last, first, own"),
    ):
        with pytest.raises(error, match=sentence):
            xformer.analysis.similarity(MEMBERS[name].make(), texts, pooling=pooling, tokenizer=tokenizer())  # pyright: ignore


def test_the_pooling_of_a_sentence_transformers_folder_is_used(tmp_path: Path) -> None:
    folder = MEMBERS["BertModel"].save(tmp_path / "encoder")
    (folder / "1_Pooling").mkdir()
    file = folder / "1_Pooling" / "config.json"
    several = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    for given, pooling in (({"pooling_mode_lasttoken": True}, "last"), (several, None)):
        file.write_text(json.dumps({"word_embedding_dimension": 24, **given}))
        model = open_model(folder)
        assert model.pooling == pooling
        found = xformer.analysis.similarity(model, TEXTS)
        assert found.equals(xformer.analysis.similarity(model, TEXTS, pooling=pooling or "mean"))  # pyright: ignore
    for content in ("[1, 2]", "{", "{" + " " * 30_000_000 + "}"):
        file.write_text(content)
        with pytest.raises((CheckpointError, ModelFileError)):
            open_model(folder)
