"""Vectors against independent references: what a run received, F.cosine_similarity, an eigen-decomposition; prime sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.tiny import random_model
from xformer.analysis.embeddings import (
    cosine_table,
    cosines,
    input_vectors,
    mean_alikeness,
    mean_cosines,
    neighbours,
    pca,
    projection_table,
    random_cosine,
    token_embedding,
    vector_table,
    vocabulary_vectors,
)
from xformer.edits import zero_positions
from xformer.trace import record

TOKENS = torch.tensor([[3, 7, 1, 7, 2]])
TARGET = torch.tensor([[10, 4, 4]])


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Points with a mean that is not zero and axes of clearly different lengths."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) * torch.arange(1, d + 1) + 3.0


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize("scale", [False, True])
def test_the_parts_add_up_to_what_layer_1_received(architecture: str, scale: bool) -> None:
    model = random_model(architecture, positions="learned", scale_embeddings=scale)
    trace = record(model, TOKENS)
    parts = input_vectors(trace)
    assert list(parts) == ["tokens", "positions", "sum"]
    stack = model.encoder or model.decoder
    assert stack is not None
    expected = model.embedding.token[TOKENS[0]] * (math.sqrt(13) if scale else 1.0)
    assert parts["tokens"].equal(expected.detach())
    assert parts["positions"].equal(stack.positions.table.table[:5].detach())  # pyright: ignore
    assert parts["sum"].equal(parts["tokens"] + parts["positions"])
    assert parts["sum"].equal(trace[f"{architecture}.0.resid_pre"][0])
    assert parts["tokens"].equal(vocabulary_vectors(model)[TOKENS[0]])


@pytest.mark.parametrize("tied", [False, True])
def test_the_two_sides_of_an_encoder_decoder(tied: bool) -> None:
    model = random_model("encoder-decoder", tied_source=tied, positions="learned")
    trace = record(model, TOKENS, TARGET)
    source, target = input_vectors(trace, "encoder"), input_vectors(trace, "decoder")
    assert source["tokens"].equal(vocabulary_vectors(model, "encoder")[TOKENS[0]])
    assert target["tokens"].equal(vocabulary_vectors(model, "decoder")[TARGET[0]])
    assert source["sum"].equal(trace["encoder.0.resid_pre"][0])
    assert target["sum"].equal(trace["decoder.0.resid_pre"][0])
    assert (token_embedding(model, "encoder") is token_embedding(model, "decoder")) == tied
    assert vocabulary_vectors(model, "encoder").equal(vocabulary_vectors(model, "decoder")) == tied


@pytest.mark.parametrize("kind", ["rotary", "alibi", "none"])
def test_a_model_that_adds_no_positions_has_token_vectors_only(kind: str) -> None:
    trace = record(random_model("encoder", positions=kind), TOKENS)
    assert list(input_vectors(trace)) == ["tokens"]
    assert input_vectors(trace)["tokens"].equal(trace["encoder.0.resid_pre"][0])


def test_positions_switched_off_are_zero_and_the_sum_is_the_tokens() -> None:
    trace = record(random_model("encoder"), TOKENS, edits=[zero_positions()])
    parts = input_vectors(trace)
    assert not parts["positions"].any()
    assert parts["sum"].equal(parts["tokens"])
    assert not cosines(parts["positions"]).any()  # a vector without length has no direction


def test_cosines_are_those_of_pytorch() -> None:
    a, b = points(7, 13), points(5, 13, seed=1)
    expected = torch.stack([F.cosine_similarity(a, row[None], dim=-1) for row in b], dim=1)
    torch.testing.assert_close(cosines(a, b), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(cosines(a).diagonal(), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-14)
    assert cosines(a.float()).dtype == torch.float64


@pytest.mark.parametrize(("n", "d"), [(11, 5), (5, 11), (7, 7)])
def test_pca_is_the_eigen_decomposition_of_the_covariance(n: int, d: int) -> None:
    x = points(n, d)
    found = pca(x)
    covariance = torch.cov(x.T, correction=0)  # [d, d]
    values, vectors = torch.linalg.eigh(covariance)  # ascending
    k = min(n - 1, d)  # centred points span at most n − 1 directions
    share = values.flip(0)[:k] / values.sum()
    torch.testing.assert_close(found.explained[:k], share, rtol=0, atol=1e-13)
    along = (found.axes[:k] * vectors.T.flip(0)[:k]).sum(dim=1).abs()  # the same axes, up to their sign
    torch.testing.assert_close(along, torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.points.square().mean(dim=0)[:k], values.flip(0)[:k], rtol=1e-11, atol=0)


@pytest.mark.parametrize(("n", "d"), [(11, 5), (5, 11)])
def test_pca_gives_the_points_back_and_its_axes_are_orthonormal(n: int, d: int) -> None:
    x = points(n, d)
    found = pca(x)
    torch.testing.assert_close(found.mean + found.points @ found.axes, x, rtol=0, atol=1e-12)
    torch.testing.assert_close((x - found.mean) @ found.axes.T, found.points, rtol=0, atol=1e-12)
    k = len(found.axes)
    torch.testing.assert_close(found.axes @ found.axes.T, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-13)
    assert found.explained.sum().item() == pytest.approx(1.0, abs=1e-13)
    # Two axes lose exactly the variance that they do not explain.
    two = pca(x, 2)
    lost = (two.mean + two.points @ two.axes - x).square().sum() / (x - x.mean(dim=0)).square().sum()
    assert lost.item() == pytest.approx(1 - two.explained.sum().item(), abs=1e-13)


def test_pca_has_one_sign_only() -> None:
    x = points(11, 5)
    axes = pca(x).axes
    assert (axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) > 0).all()
    mirrored = pca(2 * x.mean(dim=0) - x)  # every point on the other side of the mean
    torch.testing.assert_close(mirrored.axes, axes, rtol=0, atol=1e-12)
    torch.testing.assert_close(mirrored.points, -pca(x).points, rtol=0, atol=1e-11)


def test_pca_of_points_that_are_all_the_same_explains_nothing() -> None:
    assert pca(torch.ones(5, 3)).explained.tolist() == [0.0, 0.0, 0.0]


def test_tables_hold_every_number_once() -> None:
    x = points(3, 5)
    table = vector_table(x, ["a", "b", "a"])
    assert len(table) == 15
    for row in table.to_dict("records"):
        assert row["value"] == x[row["position"], row["dimension"]].item()
        assert row["token"] == "aba"[row["position"]]
    later = vector_table(x, ["a", "b", "a"], 7)
    assert later["position"].tolist() == (table["position"] + 7).tolist()
    assert later["value"].tolist() == table["value"].tolist()
    angles = cosine_table(x, ["a", "b", "a"])
    assert len(angles) == 9
    for row in angles.to_dict("records"):
        expected = F.cosine_similarity(x[row["position"]], x[row["other position"]], dim=0).item()
        assert row["cosine"] == pytest.approx(expected, abs=1e-14)


def test_projection_table_says_where_a_token_stands() -> None:
    found = pca(points(4, 3), 2)
    table = projection_table(found, ["pad", "1", "2", "3"], [2, 3, 2])
    assert table["positions"].tolist() == ["", "", "0, 2", "1"]
    assert list(table.columns) == ["id", "token", "positions", "PC1", "PC2"]
    assert table["PC2"].tolist() == found.points[:, 1].tolist()


def test_neighbours_by_brute_force() -> None:
    x = points(7, 13)
    labels = [f"t{i}" for i in range(7)]
    for token in range(7):
        table = neighbours(x, labels, token, n=3)
        expected = sorted(
            ((F.cosine_similarity(x[token], x[i], dim=0).item(), i) for i in range(7) if i != token), reverse=True
        )[:3]
        assert table["id"].tolist() == [i for _, i in expected]
        assert table["cosine"].tolist() == pytest.approx([value for value, _ in expected], abs=1e-14)
        assert table["distance"].tolist() == pytest.approx([math.dist(x[token], x[i]) for _, i in expected], abs=1e-11)
    assert len(neighbours(x, labels, 0, n=100)) == 6


def test_mean_cosines_by_loops() -> None:
    x = points(7, 5)
    angle = cosines(x)
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    beside = [angle[i, i + 1].item() for i in range(6)]
    assert mean_cosines(x) == pytest.approx((sum(beside) / 6, sum(angle[i, j].item() for i, j in pairs) / 42))


@pytest.mark.parametrize("d", [2, 3, 13])
def test_random_directions_are_as_alike_as_the_formula_says(d: int) -> None:
    x = torch.randn(200_000, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    first = (x[:, 0] / x.norm(dim=1)).abs()  # the cosine with a fixed direction
    assert random_cosine(d) == pytest.approx(first.mean().item(), abs=5 * first.std().item() / math.sqrt(200_000))
    assert first.var().item() == pytest.approx(1 / d - random_cosine(d) ** 2, rel=0.02)
    assert random_cosine(2) == pytest.approx(2 / math.pi, abs=1e-14)
    assert random_cosine(3) == pytest.approx(1 / 2, abs=1e-14)


def test_alikeness_in_standard_errors() -> None:
    """Over many random vocabularies the errors are those of a standard score; vectors drawn together stand out."""
    draw = torch.Generator().manual_seed(1)
    errors = torch.tensor(
        [mean_alikeness(torch.randn(19, 17, generator=draw, dtype=torch.float64))[1] for _ in range(400)]
    )
    assert abs(errors.mean().item()) < 5 / math.sqrt(400)
    assert errors.std().item() == pytest.approx(1.0, abs=0.2)
    assert mean_alikeness(torch.eye(17, dtype=torch.float64))[0] == 0.0
    assert mean_alikeness(torch.eye(17, dtype=torch.float64))[1] < -5
    assert mean_alikeness(torch.randn(19, 17, generator=draw) + 2.0)[1] > 5
