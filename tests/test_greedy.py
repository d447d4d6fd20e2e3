"""Decoding many prompts at once says what decoding one says; and who reads the answer ahead is found out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.crib import Crib
from tests.training.tiny import random_model, tiny_model, tiny_preset, tiny_task
from xformer import edits
from xformer.decoding import decode
from xformer.errors import InputError
from xformer.greedy import greedy, greedy_answers, questions, reads_ahead
from xformer.model import Transformer
from xformer.tasks import score
from xformer.tasks.batch import IGNORED
from xformer.training.evaluate import evaluate
from xformer.training.loop import Run

PAIRS = ("decoder", "encoder-decoder")
PROMPTS = torch.tensor([[3, 7, 1], [2, 2, 9], [5, 1, 4]])


@pytest.mark.parametrize("architecture", PAIRS)
@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "norm": "pre"}, {"positions": "alibi"}])
def test_many_prompts_are_answered_as_each_alone(float64: None, architecture: str, changes: dict[str, Any]) -> None:
    model = random_model(architecture, **changes)
    said = greedy(model, PROMPTS, 5)
    alone = [[step.token for step in decode(model, row.tolist(), max_steps=5)] for row in PROMPTS]
    assert said.tolist() == alone
    assert len({tuple(row) for row in alone}) > 1
    changed = [edits.scale("decoder.1.ffn.out", -3.0)]
    edited = greedy(model, PROMPTS, 5, edits=changed)
    assert edited.tolist() == [
        [step.token for step in decode(model, row.tolist(), max_steps=5, edits=changed)] for row in PROMPTS
    ]
    assert edited.tolist() != alone


@pytest.mark.parametrize("architecture", PAIRS)
def test_the_questions_of_a_batch_are_its_prompts_without_the_answers(architecture: str) -> None:
    task = tiny_task(architecture)
    batch = task.sample(40, seed=3)
    seen = torch.zeros(40, dtype=torch.long)
    for question in questions(batch):
        for row, prompt, answer in zip(question.rows, question.prompt.tolist(), question.answer.tolist(), strict=True):
            symbols = [token for token in prompt if 1 <= token <= 7]
            assert prompt[-1] == (9 if architecture == "decoder" else 8)  # start, or end
            assert answer == [*reversed(symbols), 8]
            seen[row] += 1
    assert seen.tolist() == [1] * 40
    with pytest.raises(InputError, match="packed=False"):
        list(questions(task.sample(4, seed=3, packed=True)))


@pytest.mark.parametrize("architecture", PAIRS)
def test_whoever_copies_the_answer_is_right_only_while_it_is_given(architecture: str) -> None:
    task = tiny_task(architecture)
    crib = Crib(tiny_model(task)).eval()
    batch = task.sample(50, seed=2)
    assert score(batch.logits(crib), batch).exact_match == 1.0
    assert reads_ahead(crib, batch)
    said = greedy_answers(crib, batch)
    assert ((said == IGNORED) == (batch.labels == IGNORED)).all()
    assert not (said == batch.labels).all(dim=1).any()
    found = evaluate(crib, task, samples=50, seed=2)
    assert (found.exact_match, found.token_accuracy, found.samples) == (0.0, 1.0, 50)


@pytest.mark.parametrize("architecture", ["encoder", *PAIRS])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_a_sound_model_does_not_read_ahead(architecture: str, positions: str) -> None:
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task, positions=positions), torch.Generator().manual_seed(0)).eval()
    assert not reads_ahead(model, task.sample(6, seed=1))


@pytest.mark.parametrize("places", [1, 2, 4, 100])
def test_a_few_places_are_enough_to_see_that_the_answer_is_copied(places: int) -> None:
    task = tiny_task("decoder")
    batch = task.sample(4, seed=0)
    assert reads_ahead(Crib(tiny_model(task)).eval(), batch, places=places)
    assert not reads_ahead(Transformer(tiny_model(task)).eval(), batch, places=places)


@pytest.mark.parametrize("architecture", PAIRS)
def test_a_training_report_is_not_taken_in(architecture: str) -> None:
    preset = tiny_preset(architecture)
    run = Run(preset, tiny_task(architecture), torch.device("cpu"), None)
    crib = Crib(preset.model)
    crib.load_state_dict(run.model.state_dict())
    run.model = crib
    run.probe_scores = dict  # its attention leaves no trace
    report = run.report()
    assert (report.held_out.exact_match, report.held_out.token_accuracy) == (0.0, 1.0)
    assert report.held_out.samples == preset.train.held_out


def test_an_encoder_has_nothing_to_decode() -> None:
    with pytest.raises(InputError, match="take a decoder"):
        greedy(random_model("encoder"), PROMPTS, 2)
