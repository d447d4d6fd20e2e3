"""The picture of similar texts has the numbers of the table, on one scale whatever they are."""

from __future__ import annotations

import pytest

import xformer
from tests.adapters.test_huggingface import tokenizer
from tests.adapters.zoo import ZOO
from xformer import viz
from xformer.errors import InputError

TEXTS = ["the cat sat", "a dog", "the bird flew and then it sat", "the mat", "a cat"]
MODEL = next(member for member in ZOO if member.name == "BertModel")


@pytest.mark.parametrize("dark", [False, True])
def test_the_map_has_the_cosines_of_a_layer_and_the_lines_those_of_all(dark: bool) -> None:
    model = MODEL.make()
    table = xformer.analysis.similarity(model, TEXTS[:3], tokenizer=tokenizer())
    of = {"layer": 1, "tokenizer": tokenizer(), "dark": dark}
    heat = viz.similarity(model, TEXTS[:3], **of).to_dict()
    [cells] = heat["datasets"].values()
    wanted = table.loc[table["layer"] == 1]
    assert [cell["cosine"] for cell in cells] == wanted["cosine"].tolist()
    assert [cell["shown"] for cell in cells] == [f"{one:.2f}".replace("-", "−") for one in wanted["cosine"]]
    domain = heat["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert (domain[0], domain[len(domain) // 2], domain[-1]) == (-1, pytest.approx(0), 1)
    [rows] = viz.similarity(model, TEXTS[:3], what="layers", **of).to_dict()["datasets"].values()
    assert {row["pair"] for row in rows} == {"1, 2", "1, 3", "2, 3"}
    assert {row["layer"] for row in rows if row["is_shown"]} == {1}


def test_many_texts_have_a_map_without_crowded_numbers() -> None:
    spec = viz.similarity(MODEL.make(), TEXTS * 2, tokenizer=tokenizer()).to_dict()
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rect"]
    assert len({row["one"] for rows in spec["datasets"].values() for row in rows}) == 10  # equal texts stay apart


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="layers 0 to 2, got 7"):
        viz.similarity(MODEL.make(), TEXTS, layer=7, tokenizer=tokenizer())
