"""The task digits: split, samples, texts, head score, and the shipped model's scores."""

from __future__ import annotations

import hashlib

import pytest
import torch

from xformer.checkpoints import load
from xformer.config import TaskConfig
from xformer.errors import ConfigError, InputError
from xformer.presets import preset
from xformer.tasks import Task
from xformer.tasks.batch import IGNORED
from xformer.tasks.images import N_TEST, digit_images
from xformer.tasks.rules.digits import UNKNOWN
from xformer.training.evaluate import evaluate


def task(patch: int = 2) -> Task:
    return Task(TaskConfig(name="digits", architecture="encoder", symbols=10, min_len=8, max_len=8, patch=patch))


def rows(sources: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in sources.tolist()}


def test_every_image_is_in_exactly_one_part() -> None:
    """The scores on model cards depend on the order and the split, so both are pinned."""
    train, test = digit_images()
    assert (len(train), len(test)) == (1437, N_TEST)
    assert not rows(train.pixels) & rows(test.pixels)
    digest = hashlib.sha256(torch.cat((train.sources, test.sources)).numpy().tobytes()).hexdigest()
    assert digest.startswith("8fefdf560ef2f091")


def test_training_uses_training_images_and_testing_each_test_image_once() -> None:
    train, test = digit_images()
    batch = task().sample(500, seed=3, purpose="train", packed=True)
    assert rows(torch.cat((batch.tokens, batch.labels[:, :1]), dim=1)) <= rows(train.sources)
    for purpose in ("test", "held-out"):
        batch = task().sample(N_TEST, seed=5, purpose=purpose)
        assert rows(torch.cat((batch.tokens, batch.labels[:, :1]), dim=1)) == rows(test.sources)


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_only_the_class_token_has_a_label(patch: int) -> None:
    n = (8 // patch) ** 2
    batch = task(patch).sample(5, seed=0)
    assert (batch.tokens.shape, batch.labels.shape) == ((5, 64), (5, 1 + n))
    assert bool((batch.labels[:, 1:] == IGNORED).all())
    assert bool((batch.labels[:, 0] >= 0).all())
    assert batch.layout.positions.tolist() == batch.layout.mirrored.flip(1).tolist() == [list(range(1 + n))] * 5
    assert batch.rows(2, 4).tokens.equal(batch.tokens[2:4])
    assert batch.valid is None
    assert task(patch).longest == (1 + n, 0)


def test_written_images_can_be_read() -> None:
    vocabulary, draw = task().vocabulary, torch.Generator().manual_seed(1)
    test = digit_images()[1]
    shifted = [0, 0, 5, *[0] * 60, 1, UNKNOWN]
    drawn = [[*torch.randint(0, 17, (64,), generator=draw).tolist(), UNKNOWN] for _ in range(5)]
    for source in (test.sources[17].tolist(), shifted, *drawn):
        text = vocabulary.text(source)
        assert len(text) <= 70
        assert vocabulary.read(text) == source
    assert vocabulary.text(test.sources[17].tolist()) == "test 17"
    assert vocabulary.text(shifted) == "drawn 005" + "0" * 60 + "1"
    assert vocabulary.text([0] * 64 + [3]) == "drawn"
    assert vocabulary.read("3-") == vocabulary.read("drawn") == vocabulary.read("drawn ") == [0] * 64 + [UNKNOWN]
    assert vocabulary.text([7]) == "7"  # an answer
    for text in task().rule.examples().values():
        task().example(vocabulary.read(text), max_len=17)


def test_only_a_test_image_has_a_right_answer() -> None:
    """A drawn image has no label; drawn identically to a test image, it is that test image."""
    test = digit_images()[1].sources[17].tolist()
    assert task().has_right_answer(test)
    ink = "".join("0123456789abcdefg"[pixel] for pixel in test[:-1])
    wrong_label = (test[-1] + 1) % 10
    assert task().vocabulary.read(f"{wrong_label}-{ink}") == test
    for typed in ("drawn", "drawn " + "g" * 64, "1-00g", f"drawn {'1' if ink[0] == '0' else '0'}{ink[1:]}"):
        assert not task().has_right_answer(task().vocabulary.read(typed))


@pytest.mark.parametrize("text", ["", "3 7 12", "test 360", "7-" + "0" * 65, "drawn h", "77-0", "7-０", "test ١"])
def test_text_that_is_not_an_image_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        task().vocabulary.read(text)


@pytest.mark.parametrize("typed", ["test 0", "test 3", "drawn 1"])
def test_the_head_score_is_the_class_tokens_weight_on_patches_with_ink(typed: str) -> None:
    """A patch has ink if any of its pixels has."""
    source = task().vocabulary.read(typed)
    pattern = torch.rand(3, 17, 17, generator=torch.Generator().manual_seed(2)).softmax(dim=-1)
    wanted = [0.0] * 3
    for patch in range(16):
        row, column = divmod(patch, 4)
        has_ink = any(source[(2 * row + y) * 8 + 2 * column + x] for y in range(2) for x in range(2))
        for head in range(3):
            wanted[head] += pattern[head, 0, 1 + patch].item() * has_ink
    assert task().rule.head_score(pattern, source, [0]).tolist() == pytest.approx(wanted, abs=1e-6)


def test_model_and_task_must_agree_on_the_patches() -> None:
    model = preset("digits").model
    task().check_fits(model)
    for wrong, words in (
        (lambda: task(4).check_fits(model), "patches of 4"),
        (lambda: task().check_fits(model.replace(image=0, patch=0)), "image=0"),
        (lambda: preset("reverse").task.replace(patch=2), "patch is only for images"),
        (lambda: task(3), "patch=3"),
    ):
        with pytest.raises(ConfigError, match=words):
            wrong()


def test_the_shipped_model_has_the_accuracy_on_its_card() -> None:
    checkpoint = load("checkpoints/digits")
    assert checkpoint.task == task()
    found = evaluate(checkpoint.model, task(), samples=N_TEST, seed=4)
    assert found.exact_match >= 0.97
    figures = checkpoint.card["figures"]
    assert figures["samples"] == N_TEST
    assert figures["exact_match"] == pytest.approx(found.exact_match, abs=1 / N_TEST + 1e-9)
