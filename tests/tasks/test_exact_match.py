"""Exact match under teacher forcing is exact match of greedy decoding: counted both ways on models that are half trained."""

from __future__ import annotations

import pytest
import torch

from tests.training.tiny import tiny_preset, trained
from xformer.decoding import decode
from xformer.tasks import score
from xformer.tasks.batch import right_examples

N = 60


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_teacher_forcing_finds_what_greedy_decoding_finds(architecture: str) -> None:
    sizes = {"task": {"symbols": 5, "min_len": 1, "max_len": 3}, "model": {"d_model": 16}}
    run = trained(tiny_preset(architecture, **sizes, steps=60, batch_size=32, peak_lr=1e-2, log_every=1000))
    run.model.eval()
    task = run.task
    batch = task.sample(N, seed=11)
    with torch.no_grad():
        logits = batch.logits(run.model)
    forced = right_examples(logits.argmax(dim=-1), batch).tolist()
    decoded, longer = [], 0
    for row in range(N):
        symbols = [t for t in batch.tokens[row].tolist() if 1 <= t <= task.config.symbols]
        if architecture == "decoder":
            symbols = symbols[: len(symbols) // 2]
        example = task.example(symbols)
        wanted = [label for label in example.labels[0].tolist() if label >= 0]
        decoded_tokens = [step.token for step in decode(run.model, example.tokens)]
        longer += len(decoded_tokens) != len(wanted)
        decoded.append(decoded_tokens == wanted)
    assert decoded == forced
    assert score(logits, batch).exact_match == pytest.approx(sum(decoded) / N)
    assert 0.05 < sum(decoded) / N < 0.95, "the model must be imperfect for this to say anything"
    assert longer, "and sometimes stop too early or too late"
