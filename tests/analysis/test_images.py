"""What is said about a model of images, against loops over single images and patches."""

from __future__ import annotations

import pytest
import torch

from tests.layers.reference import randomise
from xformer import edits
from xformer.analysis.heads import head_scores
from xformer.analysis.images import (
    filter_components,
    mistakes,
    patch_filters,
    read_test_images,
)
from xformer.analysis.nearness import places_side_by_side
from xformer.analysis.neuron_survey import survey
from xformer.diagnosis.diagnose import diagnose
from xformer.diagnosis.model import examination, examine
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.presets import preset
from xformer.reading import from_trace
from xformer.subjects import TaskModel
from xformer.tasks import Task
from xformer.tasks.digit_images import N_TEST, digit_images
from xformer.trace import record


@pytest.fixture(scope="module")
def model() -> Transformer:
    return randomise(Transformer(preset("digits").model)).eval()


def test_every_test_image_is_read_as_it_is_alone(model: Transformer) -> None:
    read = read_test_images(model)
    assert len(read) == N_TEST
    test = digit_images()[1]
    for row in read.iloc[::53].itertuples():
        p = record(model, test.pixels[row.image][None]).logits[0, 0].softmax(dim=-1)
        assert (row.digit, row.said) == (int(test.digits[row.image]), int(p.argmax()))
        assert row.probability == pytest.approx(p.max().item(), abs=1e-5)
        assert row.of_digit == pytest.approx(p[row.digit].item(), abs=1e-5)


def test_mistakes_are_the_wrong_ones_the_surest_first(model: Transformer) -> None:
    read = read_test_images(model)
    wrong = mistakes(read)
    assert set(wrong["image"]) == {row.image for row in read.itertuples() if row.said != row.digit}
    assert wrong["probability"].is_monotonic_decreasing


def test_filters_are_the_weights_and_their_components_rebuild_them(model: Transformer) -> None:
    filters = patch_filters(model)
    assert filters.shape == (64, 2, 2)
    assert filters[5, 1, 0] == model.embedding.weight[5, 2]
    axes, explained = filter_components(filters)
    assert axes.shape == (4, 2, 2)
    assert explained.sum().item() == pytest.approx(1.0)
    flat, basis = filters.flatten(1).double(), axes.flatten(1)
    centred = flat - flat.mean(dim=0)
    torch.testing.assert_close(centred @ basis.T @ basis, centred)
    with pytest.raises(InputError, match="reads tokens"):
        patch_filters(Transformer(preset("reverse").model))


def test_the_share_of_neighbours_counts_places_side_by_side() -> None:
    row, column = torch.arange(9) // 3, torch.arange(9) % 3
    apart = (row[:, None] - row).abs() + (column[:, None] - column).abs()
    assert places_side_by_side(-apart.double()).share == 1.0
    assert places_side_by_side(apart.double()).share == 0.0


def test_a_survey_counts_blank_pixels_too_and_each_test_image_once(model: Transformer) -> None:
    found = survey(TaskModel(model, Task(preset("digits").task)), 2000, seed=1)
    assert found.n_inputs == N_TEST
    assert found.n_positions == {"encoder.0.ffn": 17 * N_TEST, "encoder.1.ffn": 17 * N_TEST}
    assert {len(image) for image in found.inputs} == {64}
    assert {*found.inputs} == {tuple(image) for image in digit_images()[1].pixels.tolist()}


def test_patches_have_no_induction(model: Transformer) -> None:
    table = head_scores(from_trace(model, record(model, digit_images()[1].pixels[:1])), positions=range(1, 17))
    assert table["induction"].isna().all()


@pytest.mark.parametrize("known", [True, False])
def test_an_examination_finds_a_healthy_model_healthy_and_a_silent_layer_silent(known: bool) -> None:
    chosen = preset("digits")
    task = Task(chosen.task) if known else None
    fresh = Transformer(chosen.model, torch.Generator().manual_seed(0)).eval()
    assert [finding.kind for finding in examine(fresh, task)] == []
    inputs = examination(chosen.model, task)
    assert inputs.valid.shape == (24, 17)
    broken = record(fresh, inputs.tokens, edits=[edits.scale("encoder.1.attn.out", 0.0)])
    assert "adds-nothing" in [finding.kind for finding in diagnose(broken).findings]
