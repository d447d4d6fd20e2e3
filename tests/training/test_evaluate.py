"""Scoring a model on thousands of examples, batch by batch."""

from __future__ import annotations

import pytest
import torch

from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from xformer.model import Transformer
from xformer.tasks import score
from xformer.training import evaluate as module
from xformer.training.evaluate import evaluate


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_score_is_independent_of_batch_size(float64: None, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """Score the same 23 examples in batches of 7, 7, 7 and 2, and in one batch."""
    monkeypatch.setattr(module, "BATCH", 7)
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task), torch.Generator().manual_seed(1)).eval()
    with torch.no_grad():
        model.unembedding.bias[1] += 2.0  # pyright: ignore[reportOptionalSubscript]
    result = evaluate(model, task, samples=23, seed=5)
    batches = [task.sample(n, seed=5, step=step) for step, n in enumerate((7, 7, 7, 2))]
    assert result.samples == 23
    with torch.no_grad():
        logits = torch.cat([batch.logits(model).flatten(0, 1) for batch in batches])
    labels = torch.cat([batch.labels.flatten() for batch in batches])
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100).item()
    assert result.loss == pytest.approx(loss, rel=1e-12)
    right = (logits.argmax(dim=-1) == labels)[labels >= 0]
    assert result.token_accuracy == pytest.approx(right.double().mean().item(), rel=1e-12)
    with torch.no_grad():
        exact = sum(score(batch.logits(model), batch).exact_match * len(batch.tokens) for batch in batches)
    assert result.exact_match == pytest.approx(exact / 23)


def test_evaluate_disables_dropout_and_restores_the_mode_of_the_model() -> None:
    task = tiny_task()
    model = Transformer(tiny_model(task, dropout=0.5))
    scores = []
    for mode in (True, False):
        model.train(mode)
        scores.append(evaluate(model, task, samples=20, seed=1))
        assert model.training is mode
    assert scores[0] == scores[1]


def test_each_unseen_input_is_scored_once_if_there_are_few() -> None:
    task = tiny_task("decoder", name="modular", symbols=59, min_len=2, max_len=2)
    model = Transformer(tiny_model(task), torch.Generator().manual_seed(1)).eval()
    found = evaluate(model, task, samples=10_000, seed=1)
    assert found.samples == task.rule.n_held_out == 873
    assert found == evaluate(model, task, samples=873, seed=1)
