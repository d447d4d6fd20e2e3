"""The numbers in charts of embeddings equal those of the reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import xformer
from tests.adapters.test_huggingface import tokenizer
from tests.analysis.test_text_similarity import MEMBERS
from tests.training.tiny import random_model
from tests.viz.drawn_file import all_rows, ends_of
from xformer import viz
from xformer.adapters import BareModel
from xformer.analysis.embeddings import principal_axes, vector_table
from xformer.errors import InputError
from xformer.viz.embeddings import MAX_CELLS, vector_heatmap

LABELS = ["3", "7", "1", "7", "2"]
TOKENS = [3, 7, 1, 7, 2]


def test_wide_vectors_are_thinned_by_columns() -> None:
    rows = all_rows(vector_heatmap(vector_table(torch.zeros(11, 997), [""] * 11)))
    assert len(rows) <= MAX_CELLS
    assert {row["dimension"] for row in rows} == set(range(0, 997, 3))  # evenly, from the first to the last


def test_projection_has_every_token_once_and_marks_the_input() -> None:
    reading = xformer.read(random_model("encoder"), [3, 10, 3])
    found = principal_axes(reading)
    chart = viz.projection(reading, token=4)
    rows = all_rows(chart)
    assert [row["id"] for row in rows] == list(range(11))
    assert [[row["pc1"], row["pc2"]] for row in rows] == found.points[:, :2].tolist()
    assert [row["id"] for row in rows if row["shown"]] == [3, 10]
    titles = str(chart.to_dict(validate=False))
    assert f"PC1 ({found.explained[0]:.1%} of the variance)" in titles
    assert "(datum.id === 4)" in titles
    assert [param["name"] for param in chart.to_dict(validate=False)["params"]] == ["point"]


class Named(BareModel):
    """A model with a token that looks like markup."""

    token_labels = (*(f"t{i}" for i in range(10)), "<script>")  # pyright: ignore


def test_projection_in_space_has_the_same_points_and_escapes_markup() -> None:
    reading = xformer.read(random_model("encoder"), [3, 10, 3])
    reading = replace(reading, adapter=Named(random_model("encoder")))
    rest, shown = viz.projection(reading, axes=3).data
    assert (len(rest.x), len(shown.x)) == (9, 2)
    for index, axis in enumerate("xyz"):
        np.testing.assert_array_equal(shown[axis], principal_axes(reading).points[[3, 10], index].numpy())
    assert list(shown.text) == ["t3", "&lt;script&gt;"]
    assert shown.customdata[:, 0].tolist() == ["0, 2", "1"]


TEXTS = ["the cat sat", "a dog", "the bird flew and then it sat", "the mat", "a cat"]


def test_similarity_map_shows_one_layer_and_the_lines_all_layers() -> None:
    model = MEMBERS["BertModel"].make()
    table = xformer.analysis.similarity(model, TEXTS[:3], tokenizer=tokenizer())
    options = {"layer": 1, "tokenizer": tokenizer()}
    heat = viz.similarity(model, TEXTS[:3], **options)
    cells = all_rows(heat)
    wanted = table.loc[table["layer"] == 1]
    assert [cell["cosine"] for cell in cells] == wanted["cosine"].tolist()
    assert [cell["shown"] for cell in cells] == [f"{one:.2f}".replace("-", "−") for one in wanted["cosine"]]
    assert ends_of(heat) == (-1, 1)
    rows = all_rows(viz.similarity(model, TEXTS[:3], what="layers", **options))
    assert {row["pair"] for row in rows} == {"1, 2", "1, 3", "2, 3"}
    assert {row["layer"] for row in rows if row["is_shown"]} == {1}

    with pytest.raises(InputError, match="layers 0 to 2, got 7"):
        viz.similarity(model, TEXTS, layer=7, tokenizer=tokenizer())
