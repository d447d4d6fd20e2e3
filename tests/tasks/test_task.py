"""Tasks and models: which fit each other, and how typed inputs are laid out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.slow import slow_frame
from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from xformer.errors import ConfigError, InputError


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("encoder", {"architecture": "decoder", "causal": True}, "architecture='encoder', got a model with 'decoder'"),
        ("encoder", {"vocab_size": 9}, "The task has 8 tokens, got a model with vocab_size=9; use vocab_size=8."),
        ("decoder", {"start_token": 8}, "end_token=8, start_token=9, got 0, 8, 8."),
        ("encoder", {"max_len": 4}, "up to 5 tokens, got a model with max_len=4; use max_len=5."),
    ],
)
def test_a_model_that_does_not_fit_is_refused(architecture: str, changes: dict[str, Any], words: str) -> None:
    task = tiny_task(architecture)
    task.check_fits(tiny_model(task))
    with pytest.raises(ConfigError) as caught:
        task.check_fits(tiny_model(task).replace(**changes))
    assert words in str(caught.value)


@pytest.mark.parametrize("end_token", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_example_is_laid_out_like_a_batch(architecture: str, end_token: bool) -> None:
    task = tiny_task(architecture, end_token=end_token)
    for symbols in ([3], [2, 7], [1, 6, 1, 4, 5, 2, 3]):
        example = task.example(symbols)
        source, target = slow_frame(task.config, symbols)
        assert example.source == tuple(symbols)
        assert example.answer == tuple(symbols[::-1])
        assert example.input_ids.tolist() == [source.tokens]
        n_prompt = len(symbols) + 1 if architecture == "decoder" else len(source.tokens)
        assert example.tokens.tolist() == [source.tokens[:n_prompt]]
        assert (None if example.target is None else example.target.tolist()) == (target and [target.tokens])
        assert example.labels.tolist() == [(target or source).labels]


@pytest.mark.parametrize(("architecture", "most"), [("encoder", 11), ("encoder-decoder", 10), ("decoder", 5)])
def test_an_example_longer_than_the_model_reads_is_refused(architecture: str, most: int) -> None:
    task = tiny_task(architecture)
    with pytest.raises(InputError, match="at least one"):
        task.example([])
    task.example([1] * most, max_len=11)
    with pytest.raises(InputError, match=rf"at most 11 tokens, and these {most + 1} numbers need .*; take some away\."):
        task.example([1] * (most + 1), max_len=11)
    with pytest.raises(InputError, match="take some away"):
        task.example(task.vocabulary.read("1 " * 5000), max_len=11)


TASK = tiny_task(symbols=19, end_token=True)


def test_numbers_are_read() -> None:
    for text, tokens in (
        ("3 7 12 9", [3, 7, 12, 9]),
        ("[4,5;6]", [4, 5, 6]),
        ("  (7)\t8\n09  ", [7, 8, 9]),
        ("5\u00a06\u30007", [5, 6, 7]),  # spaces from copied text
        ("1 " * 5000, [1] * 5000),
    ):
        assert TASK.vocabulary.read(text) == tokens


BAD = [
    "", "3 0 5", "20", "1_0", "9" * 10_000, "٣ ٤", "3 \ud800 4", "3 \x1b[31m 4", "3 \u202e4", "<script>alert(1)</script>",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:30]))
def test_anything_else_gets_one_plain_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        TASK.vocabulary.read(text)
    message = str(caught.value)
    assert "from 1 to 19" in message
    assert message.endswith("3 8 13 18.")
    assert len(message) < 160
    assert message.isprintable()
    message.encode()  # a lone surrogate would raise an error
