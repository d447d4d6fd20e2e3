"""Tables of an image model, compared with loops over single images and patches."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_attachment import Written
from tests.layers.reference import randomise
from xformer.adapters import TaskModel
from xformer.analysis.images import (
    classes,
    filter_components,
    mistakes,
    patch_filters,
    patch_weights,
    predict_test_images,
)
from xformer.analysis.neuron_survey import survey
from xformer.errors import InputError, UnavailableError
from xformer.model import Transformer
from xformer.presets import preset
from xformer.tasks import Task
from xformer.tasks.images import N_TEST, digit_images
from xformer.trace import record


@pytest.fixture(scope="module")
def model() -> Transformer:
    return randomise(Transformer(preset("digits").model)).eval()


def test_batched_predictions_match_single_images(model: Transformer) -> None:
    read = predict_test_images(model)
    assert len(read) == N_TEST
    test = digit_images()[1]
    for image, digit, predicted, *shares in read.iloc[::53].itertuples(index=False):
        p = record(model, test.pixels[image][None]).logits[0, 0].softmax(dim=-1)
        assert (digit, predicted) == (int(test.digits[image]), int(p.argmax()))
        assert shares == pytest.approx([p.max().item(), p[digit].item()], abs=1e-5)


@pytest.fixture(scope="module")
def adapter(model: Transformer) -> TaskModel:
    return TaskModel(model, Task(preset("digits").task))


def test_mistakes_are_sorted_by_confidence(model: Transformer, adapter: TaskModel) -> None:
    read, wrong = predict_test_images(model), mistakes(xformer.read(adapter, "test 3"))
    assert set(wrong["image"]) == {row.image for row in read.itertuples() if row.predicted != row.digit}
    assert wrong["probability"].is_monotonic_decreasing


def test_filters_are_the_weights_and_components_reconstruct_them(model: Transformer, adapter: TaskModel) -> None:
    filters = patch_weights(model)
    assert filters.shape == (64, 2, 2)
    assert filters[5, 1, 0] == model.embedding.weight[5, 2]
    reading = xformer.read(adapter, "test 3")
    components = filter_components(reading)
    basis = torch.tensor(components["weight"].to_numpy()).view(4, 4)  # [axis, pixel]
    centred = filters.flatten(1).double() - filters.flatten(1).double().mean(dim=0)
    torch.testing.assert_close(centred @ basis.T @ basis, centred)
    explained = (centred @ basis.T).square().sum(dim=0) / centred.square().sum()
    table = patch_filters(reading)
    for row in table.iloc[::7].to_dict("records"):
        number = int(row["filter"].removeprefix("dimension "))
        assert row["weight"] == filters[number, row["pixel_y"], row["pixel_x"]].item()
    lengths = table.groupby("filter", sort=False)["weight"].apply(lambda weights: (weights**2).sum())
    assert len(lengths) == 64
    assert lengths.is_monotonic_decreasing
    names = [f"component {n}: {p:.0%}" for n, p in enumerate(explained.tolist(), 1)]
    assert components["filter"].tolist()[::4] == names
    with pytest.raises(InputError, match="reads tokens"):
        patch_filters(xformer.read(Transformer(preset("reverse").model), "3 7"))


def test_classes_have_the_probabilities_of_the_digits(model: Transformer, adapter: TaskModel) -> None:
    p = record(model, digit_images()[1].pixels[3][None]).logits[0, 0].softmax(dim=-1)
    table = classes(xformer.read(adapter, "test 3"))
    assert table["digit"].tolist() == list("0123456789")
    assert table["probability"].tolist() == pytest.approx(p.tolist(), abs=1e-7)
    assert table.loc[table["right"], "digit"].tolist() == [str(digit_images()[1].digits[3].item())]
    assert not classes(xformer.read(adapter, "drawn 00g"))["right"].any()  # no right answer is known


def test_a_survey_counts_blank_pixels_and_each_test_image_once(adapter: TaskModel) -> None:
    found = survey(adapter, 2000, 1)
    assert found.n_inputs == N_TEST
    assert [layer.n_positions for layer in found.layers.values()] == [17 * N_TEST] * 2
    assert {len(image) for image in found.inputs} == {64}
    assert {*found.inputs} == {tuple(image) for image in digit_images()[1].pixels.tolist()}


def test_classes_need_a_model_that_classifies_its_whole_input() -> None:
    text = FAMILIES["GPT-2"].make()
    for reading in (xformer.read(Written(), torch.tensor([[5, 6]])), xformer.read(text, [5, 6, 7])):
        with pytest.raises(UnavailableError, match="does not classify its input as a whole"):
            classes(reading)
