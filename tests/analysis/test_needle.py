"""The needle in a long text: which sentence is returned, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis.needle import ANSWER, FILLER, FOUND, QUESTION, needle_finding, needle_keys, needle_text
from xformer.long_inputs import AttentionSummary, attention_summary

TEXT = needle_text(1, 2)


@pytest.fixture(scope="module")
def summary() -> AttentionSummary:
    return attention_summary(HuggingFaceModel.open(FAMILIES["Llama"].make(), tokenizer(), "tiny"), TEXT)


def with_weight(summary: AttentionSummary, key: int, weight: float) -> AttentionSummary:
    """The summary with the last query's attention of one head on a key, and none of any other head."""
    last = summary.layer(0).n_query - 1
    sums = {path: replace(one, rows={last: torch.zeros_like(one.rows[last])}) for path, one in summary.sums.items()}
    sums["decoder.1.attn"].rows[last][4, key] = weight
    return AttentionSummary(summary.adapter, summary.example, sums, None, 0)


def test_the_head_with_the_most_attention_on_the_answer_is_named(summary: AttentionSummary) -> None:
    (key, *_), n = needle_keys(summary, TEXT), summary.layer(0).n_query
    finding = needle_finding(with_weight(summary, key, 0.8), TEXT)
    assert finding.startswith("layer 2 · head 5 finds the needle: 80%")
    assert f"it would be {100 * len(needle_keys(summary, TEXT)) / n:.1f}%" in finding
    assert "other heads" not in finding


def test_nothing_is_said_below_the_threshold_or_without_a_needle(summary: AttentionSummary) -> None:
    key, *_ = needle_keys(summary, TEXT)
    assert needle_finding(with_weight(summary, key, FOUND - 0.01), TEXT) == ""
    assert needle_finding(with_weight(summary, key - 1, 0.8), TEXT) == ""
    assert needle_finding(with_weight(summary, key, 0.8), f"{TEXT} the") == ""


def test_the_answer_is_looked_for_only_where_the_text_asks_for_it(summary: AttentionSummary) -> None:
    text = TEXT
    assert text.count(FILLER) == 3
    assert needle_keys(summary, text)
    assert not needle_keys(summary, f"{text} the")  # the last token is not the question
    assert not needle_keys(summary, text.replace(ANSWER, ""))
    assert not needle_keys(summary, f"{QUESTION}{ANSWER}. {text}")  # two answers
    assert not needle_keys(summary, "the cat sat")
