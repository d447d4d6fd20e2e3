"""The data of “token + position = sum” has the numbers of the run, and only true sums are labelled as sums."""

from __future__ import annotations

import json

import pytest

import xformer
from tests.training.tiny import random_model
from xformer.analysis.embeddings import input_vectors
from xformer.widgets.embedding_sum import MAX_ROWS, MAX_VALUES, embedding_sum, embedding_sum_data


def test_data_has_the_vectors_of_the_run() -> None:
    reading = xformer.read(random_model("encoder", d_model=2 * MAX_VALUES + 3), [3, 7, 1, 7])
    data = json.loads(embedding_sum_data(reading, positions=[1, 3]))
    assert data["rows"] == [{"position": 1, "token": "7", "id": 7}, {"position": 3, "token": "7", "id": 7}]
    assert data["is_sum"]
    parts = input_vectors(reading)
    assert [column["name"] for column in data["columns"]] == ["tokens", "positions", "sum"]
    for column in data["columns"]:
        assert len(column["dimensions"]) == MAX_VALUES
        assert column["dimensions"][-1] > 2 * MAX_VALUES - 3  # evenly spaced over all of them
        vectors = parts[column["name"]][[1, 3]][:, column["dimensions"]]
        assert column["values"] == [pytest.approx(row, rel=1e-4, abs=1e-12) for row in vectors.tolist()]


def test_model_without_added_positions_has_one_column() -> None:
    reading = xformer.read(random_model("encoder", positions="rotary", max_len=40), [3] * (MAX_ROWS + 3))
    data = json.loads(embedding_sum_data(reading))
    assert (len(data["rows"]), data["n"]) == (MAX_ROWS, MAX_ROWS + 3)
    assert [column["name"] for column in data["columns"]] == ["tokens"]
    assert data["titles"] == ["token vectors"]


def test_notebook_output_is_an_iframe() -> None:
    html = embedding_sum(xformer.read(random_model("encoder"), [3, 7, 1]))._repr_html_()
    assert html.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in html  # the page is escaped
