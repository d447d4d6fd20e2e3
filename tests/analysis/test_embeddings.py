"""Vectors of a reading, compared with what the run received and with F.cosine_similarity; prime sizes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import xformer
from tests.training.tiny import random_model
from xformer.analysis import embeddings
from xformer.analysis.embeddings import (
    cosine_matrix,
    cosines,
    input_vectors,
    kinds_together,
    most_alike,
    neighbours,
    numbers_in_order,
    pca,
    places_side_by_side,
    projection,
    vectors,
    vocabulary_vectors,
)
from xformer.reading import Reading

TOKENS = [3, 7, 1, 7, 2]


@pytest.fixture(scope="module")
def reading() -> Reading:
    return xformer.read(random_model("encoder"), TOKENS)


@pytest.mark.parametrize(("architecture", "scale"), [("encoder", False), ("decoder", True)])
def test_the_parts_sum_to_the_input_of_layer_1(architecture: str, scale: bool) -> None:
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
def test_both_sides_of_an_encoder_decoder_have_vectors(tied: bool) -> None:
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


def test_tables_have_every_number_once(reading: Reading) -> None:
    x = input_vectors(reading)["sum"]
    rows = [(p, str(token), d, x[p, d].item()) for p, token in enumerate(TOKENS) for d in range(13)]
    assert list(vectors(reading, part="sum").itertuples(index=False, name=None)) == rows
    angles = cosines(reading, part="sum")
    assert len(angles) == 25
    for position, token, other, other_token, cosine in angles.itertuples(index=False):
        expected = F.cosine_similarity(x[position].double(), x[other].double(), dim=0).item()
        assert cosine == pytest.approx(expected, abs=1e-14)
        assert (token, other_token) == (str(TOKENS[position]), str(TOKENS[other]))


def test_neighbours_match_brute_force(reading: Reading) -> None:
    x = vocabulary_vectors(reading).double()
    for token in (0, 4, 10):
        cosine = F.cosine_similarity(x, x[token], dim=-1)
        ids = [at for at in cosine.argsort(descending=True).tolist() if at != token][:3]
        assert neighbours(reading, token=token, n=3).to_dict("list") == {
            "id": ids,
            "token": list(map(str, ids)),
            "cosine": pytest.approx(cosine[ids].tolist(), abs=1e-14),
            "distance": pytest.approx([math.dist(x[token], x[at]) for at in ids], abs=1e-11),
        }
    assert len(neighbours(reading, token=0, n=100)) == 10


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Draw points with a nonzero mean and axes of clearly different lengths."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=draw, dtype=torch.float64) * torch.arange(1, d + 1) + 3.0


@pytest.mark.parametrize(("n", "d"), [(11, 5), (5, 11)])
def test_pca_is_the_eigen_decomposition_of_the_covariance(n: int, d: int) -> None:
    x = points(n, d)
    found = pca(x)
    covariance = torch.cov(x.T, correction=0)  # [d, d]
    values, vectors = torch.linalg.eigh(covariance)  # ascending
    torch.testing.assert_close(found.mean + found.points @ found.axes, x, rtol=0, atol=1e-12)
    unit = torch.eye(len(found.axes), dtype=torch.float64)
    torch.testing.assert_close(found.axes @ found.axes.T, unit, rtol=0, atol=1e-13)
    k = min(n - 1, d)  # centred points span at most n − 1 directions
    torch.testing.assert_close(found.explained[:k], values.flip(0)[:k] / values.sum(), rtol=0, atol=1e-13)
    two = pca(x, 2)
    assert (two.axes.equal(found.axes[:2]), two.explained.equal(found.explained[:2])) == (True, True)
    along = (found.axes[:k] * vectors.T.flip(0)[:k]).sum(dim=1).abs()  # the same axes, up to their sign
    torch.testing.assert_close(along, torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.points.square().mean(dim=0)[:k], values.flip(0)[:k], rtol=1e-11, atol=0)


def test_pca_of_many_points_in_single_precision_gives_the_same_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = points(31, 5).float()
    few = pca(vectors, 2)
    monkeypatch.setattr(embeddings, "MAX_DOUBLE_VALUES", 0)
    many = pca(vectors, 2)
    torch.testing.assert_close(many.points, few.points, rtol=0, atol=1e-3)
    torch.testing.assert_close(many.explained, few.explained, rtol=0, atol=1e-5)


def test_most_alike_reports_only_pairs_more_similar_than_by_chance() -> None:
    model = random_model("encoder")
    table = model.embedding.token
    with torch.no_grad():
        table[7] = table[3] + 0.01 * table[1]
    found = most_alike(xformer.read(model, TOKENS))
    assert found is not None
    assert found.tokens == (3, 7)
    assert found.cosine == pytest.approx(F.cosine_similarity(table[3], table[7], dim=0).item(), abs=1e-6)
    assert found.usual < found.cosine
    assert most_alike(xformer.read(model, [1, 2, 3, 3])) is None
    assert most_alike(xformer.read(model, [3, 3])) is None


def arc(n: int) -> Tensor:
    angle = torch.linspace(0, 2, n, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def random(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_numbers_along_an_arc_are_in_order_unless_shuffled() -> None:
    found = numbers_in_order(arc(11))
    assert (found.share, found.is_above_chance) == (1.0, True)
    # Chance is the share of pairs (number, another number) that are one apart.
    assert found.chance == pytest.approx(2 / 11, abs=0.02)
    order = torch.tensor([0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9])  # neighbours along the arc are two apart
    assert not numbers_in_order(arc(11)[order.argsort()]).is_above_chance
    assert not any(numbers_in_order(random(19, 16, seed)).is_above_chance for seed in range(2))
    assert not numbers_in_order(arc(1)).is_above_chance


def test_kinds_together_detects_clusters_only() -> None:
    together = torch.cat([random(12, 8, 0) + 9.0, random(12, 8, 1) - 9.0])
    kinds = {"one": list(range(12)), "other": list(range(12, 24))}
    for near in kinds_together(together, kinds).values():
        assert (near.share, near.is_above_chance) == (1.0, True)
        assert near.chance == pytest.approx(11 / 23, abs=0.03)
    mixed = {"even": list(range(0, 24, 2)), "odd": list(range(1, 24, 2))}
    assert not any(near.is_above_chance for near in kinds_together(together, mixed).values())


def test_adjacent_patches_are_detected_and_random_ones_are_not() -> None:
    row, column = (x.flatten().double() for x in torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
    apart = (row[:, None] - row).abs() + (column[:, None] - column).abs()
    found = places_side_by_side(-apart)
    assert (found.share, found.is_above_chance) == (1.0, True)
    assert found.chance == pytest.approx(48 / 240, abs=0.02)  # the share of ordered pairs that are adjacent
    assert places_side_by_side(apart).share == 0.0
    for seed in range(3):
        assert not places_side_by_side(cosine_matrix(random(16, 64, seed))).is_above_chance
