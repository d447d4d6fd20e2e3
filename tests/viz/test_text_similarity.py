"""The picture of similar texts has the numbers of the table, on one scale whatever they are."""

from __future__ import annotations

import pytest

import xformer
from tests.subjects.test_language_models import tokenizer
from tests.subjects.zoo import ZOO
from xformer import viz
from xformer.errors import InputError

pytestmark = pytest.mark.xdist_group("transformers")
TEXTS = ["the cat sat", "a dog", "the bird flew and then it sat", "the mat", "a cat"]
MODEL = next(member for member in ZOO if member.name == "BertModel")


@pytest.mark.parametrize("dark", [False, True])
def test_a_few_texts_have_a_map_and_a_line_a_pair(dark: bool) -> None:
    model = MODEL.make()
    table = xformer.analysis.similarity(model, TEXTS[:3], tokenizer=tokenizer())
    spec = viz.similarity(model, TEXTS[:3], layer=1, tokenizer=tokenizer(), dark=dark).to_dict()
    heat, lines = spec["vconcat"]
    cells = spec["datasets"][heat["data"]["name"]]
    wanted = table.loc[table["layer"] == 1]
    assert [cell["cosine"] for cell in cells] == wanted["cosine"].tolist()
    assert [cell["shown"] for cell in cells] == [f"{one:.2f}".replace("-", "−") for one in wanted["cosine"]]
    domain = heat["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert (domain[0], domain[len(domain) // 2], domain[-1]) == (-1, pytest.approx(0), 1)
    rows = spec["datasets"][lines["data"]["name"]]
    assert {row["pair"] for row in rows} == {"1 and 2", "1 and 3", "2 and 3"}
    assert {row["layer"] for row in rows if row["is_shown"]} == {1}


def test_many_texts_have_a_map_alone_without_crowded_numbers() -> None:
    spec = viz.similarity(MODEL.make(), TEXTS * 2, tokenizer=tokenizer()).to_dict()
    assert "vconcat" not in spec
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rect"]
    assert len({row["one"] for rows in spec["datasets"].values() for row in rows}) == 10  # equal texts stay apart


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="layers 0 to 2, got 7"):
        viz.similarity(MODEL.make(), TEXTS, layer=7, tokenizer=tokenizer())
