"""Vectors of a reading against what the run received and against F.cosine_similarity; prime sizes."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch.nn.functional as F

import xformer
from tests.training.tiny import random_model
from xformer.analysis.embeddings import (
    cosines,
    input_vectors,
    neighbours,
    pca,
    principal_axes,
    projection,
    vectors,
    vocabulary_vectors,
)
from xformer.edits import zero_positions

TOKENS = [3, 7, 1, 7, 2]


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("scale", [False, True])
def test_the_parts_add_up_to_what_layer_1_received(architecture: str, scale: bool) -> None:
    model = random_model(architecture, positions="learned", scale_embeddings=scale)
    reading = xformer.read(model, TOKENS)
    parts = input_vectors(reading)
    assert list(parts) == ["tokens", "positions", "sum"]
    stack = model.encoder or model.decoder
    assert stack is not None
    expected = model.embedding.token[TOKENS] * (math.sqrt(13) if scale else 1.0)
    assert parts["tokens"].equal(expected.detach())
    assert parts["positions"].equal(stack.positions.table.table[:5].detach())  # pyright: ignore
    assert parts["sum"].equal(parts["tokens"] + parts["positions"])
    assert parts["sum"].equal(reading[f"{architecture}.0.resid_pre"][0])
    assert parts["tokens"].equal(vocabulary_vectors(reading)[TOKENS])


@pytest.mark.parametrize("tied", [False, True])
def test_the_two_sides_of_an_encoder_decoder(tied: bool) -> None:
    model = random_model("encoder-decoder", tied_source=tied, positions="learned")
    reading = xformer.read(model, "3 7 1 7 2 > 10 4 4")
    source, target = input_vectors(reading, "encoder"), input_vectors(reading, "decoder")
    assert source["tokens"].equal(vocabulary_vectors(reading, "encoder")[TOKENS])
    assert target["tokens"].equal(vocabulary_vectors(reading, "decoder")[[10, 4, 4]])
    assert source["sum"].equal(reading["encoder.0.resid_pre"][0])
    assert target["sum"].equal(reading["decoder.0.resid_pre"][0])
    assert vocabulary_vectors(reading, "encoder").equal(vocabulary_vectors(reading, "decoder")) == tied
    assert vectors(reading, stack="decoder")["token"].unique().tolist() == ["10", "4"]
    assert projection(reading, stack="decoder").loc[[4, 7], "positions"].tolist() == ["1, 2", ""]


@pytest.mark.parametrize("kind", ["rotary", "alibi", "none"])
def test_a_model_that_adds_no_positions_has_token_vectors_only(kind: str) -> None:
    reading = xformer.read(random_model("encoder", positions=kind), TOKENS)
    assert list(input_vectors(reading)) == ["tokens"]
    assert input_vectors(reading)["tokens"].equal(reading["encoder.0.resid_pre"][0])


def test_positions_switched_off_are_zero_and_the_sum_is_the_tokens() -> None:
    reading = xformer.read(random_model("encoder"), TOKENS, edits=[zero_positions()])
    parts = input_vectors(reading)
    assert not parts["positions"].any()
    assert parts["sum"].equal(parts["tokens"])
    assert not cosines(reading, part="positions")["cosine"].any()  # a vector without length has no direction


def test_tables_hold_every_number_once() -> None:
    reading = xformer.read(random_model("encoder"), TOKENS)
    x = input_vectors(reading)["sum"]
    table = vectors(reading, part="sum")
    assert len(table) == 5 * 13
    for row in table.to_dict("records"):
        assert row["value"] == x[row["position"], row["dimension"]].item()
        assert row["token"] == str(TOKENS[row["position"]])
    angles = cosines(reading, part="sum")
    assert len(angles) == 25
    for row in angles.to_dict("records"):
        expected = F.cosine_similarity(x[row["position"]].double(), x[row["other position"]].double(), dim=0).item()
        assert row["cosine"] == pytest.approx(expected, abs=1e-14)
        assert (row["token"], row["other token"]) == tuple(
            str(TOKENS[row[name]]) for name in ("position", "other position")
        )


def test_some_positions_are_those_rows_of_all() -> None:
    reading, wanted = xformer.read(random_model("encoder"), TOKENS), [1, 4]
    for tabulate, columns in ((vectors, ["position"]), (cosines, ["position", "other position"])):
        every = tabulate(reading)
        kept = every[every[columns].isin(wanted).all(axis=1)].reset_index(drop=True)
        pd.testing.assert_frame_equal(tabulate(reading, positions=wanted), kept)


def test_projection_says_where_a_token_stands() -> None:
    reading = xformer.read(random_model("encoder"), TOKENS)
    table, found = projection(reading), pca(vocabulary_vectors(reading), 3)
    assert table["positions"].tolist() == ["", "2", "4", "0", "", "", "", "1, 3", "", "", ""]
    assert list(table.columns) == ["id", "token", "positions", "PC1", "PC2", "PC3"]
    assert table["PC2"].tolist() == found.points[:, 1].tolist()
    assert principal_axes(reading).explained.tolist() == found.explained.tolist()


def test_neighbours_by_brute_force() -> None:
    reading = xformer.read(random_model("encoder"), TOKENS)
    x = vocabulary_vectors(reading).double()
    for token in range(11):
        table = neighbours(reading, token=token, n=3)
        expected = sorted(
            ((F.cosine_similarity(x[token], x[i], dim=0).item(), i) for i in range(11) if i != token), reverse=True
        )[:3]
        assert table["id"].tolist() == [i for _, i in expected]
        assert table["token"].tolist() == [str(i) for _, i in expected]
        assert table["cosine"].tolist() == pytest.approx([value for value, _ in expected], abs=1e-14)
        assert table["distance"].tolist() == pytest.approx([math.dist(x[token], x[i]) for _, i in expected], abs=1e-11)
    assert len(neighbours(reading, token=0, n=100)) == 10
