"""A task and a model: which fit each other, and how a typed input is put before one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.slow import slow_frame
from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from xformer.errors import ConfigError, InputError
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_task_with_a_rule_has_a_right_answer(architecture: str) -> None:
    assert tiny_task(architecture).has_right_answer([1, 2, 3])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_made_for_the_task_fits(architecture: str) -> None:
    task = tiny_task(architecture)
    task.check_fits(tiny_model(task))


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        (
            "encoder",
            {"architecture": "decoder", "causal": True},
            "laid out for architecture='encoder', got a model with 'decoder'",
        ),
        ("encoder", {"vocab_size": 9}, "The task has 8 tokens, got a model with vocab_size=9; use vocab_size=8."),
        ("encoder", {"pad_token": 3}, "pad_token=0, end_token=None, start_token=None, got 3, None, None."),
        ("encoder", {"end_token": 7}, "got 0, 7, None."),
        ("decoder", {"start_token": 8}, "end_token=8, start_token=9, got 0, 8, 8."),
        ("encoder-decoder", {"end_token": None}, "got 0, None, 9."),
        ("encoder", {"max_len": 4}, "up to 5 tokens, got a model with max_len=4; use max_len=5."),
        ("encoder-decoder", {"max_len": 5}, "up to 6 tokens, got a model with max_len=5; use max_len=6."),
        ("decoder", {"max_len": 10}, "up to 11 tokens, got a model with max_len=10; use max_len=11."),
    ],
)
def test_a_model_that_does_not_fit_is_refused(architecture: str, changes: dict[str, Any], words: str) -> None:
    task = tiny_task(architecture)
    with pytest.raises(ConfigError) as caught:
        task.check_fits(tiny_model(task).replace(**changes))
    assert words in str(caught.value)


def test_the_length_that_the_refusal_names_fits() -> None:
    for architecture, max_len in (("encoder", 5), ("encoder-decoder", 6), ("decoder", 11)):
        task = tiny_task(architecture)
        task.check_fits(tiny_model(task, max_len=max_len))
    task = tiny_task(end_token=True)
    task.check_fits(tiny_model(task, max_len=6))
    with pytest.raises(ConfigError, match="use max_len=6"):
        task.check_fits(tiny_model(task, max_len=5))


@pytest.mark.parametrize("end_token", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_example_is_framed_like_the_batches(architecture: str, end_token: bool) -> None:
    task = tiny_task(architecture, end_token=end_token)
    for symbols in ([3], [2, 7], [1, 6, 1, 4, 5, 2, 3]):
        example = task.example(symbols)
        source, target = slow_frame(task.config, symbols)
        assert example.source == tuple(symbols)
        assert example.answer == tuple(symbols[::-1])
        assert example.stream.tolist() == [source.tokens]
        n_prompt = len(symbols) + 1 if architecture == "decoder" else len(source.tokens)
        assert example.tokens.tolist() == [source.tokens[:n_prompt]]
        assert (None if example.target is None else example.target.tolist()) == (target and [target.tokens])
        assert example.labels.tolist() == [(target or source).labels]


def test_the_prompt_of_a_decoder_ends_with_the_start_token() -> None:
    example = tiny_task("decoder").example([3, 1, 2])
    assert example.tokens.tolist() == [[3, 1, 2, 9]]
    assert example.stream.tolist() == [[3, 1, 2, 9, 2, 1, 3]]
    assert example.labels.tolist() == [[IGNORED] * 3 + [2, 1, 3, 8]]


@pytest.mark.parametrize(("architecture", "most"), [("encoder", 11), ("encoder-decoder", 10), ("decoder", 5)])
def test_an_example_longer_than_the_model_reads_is_refused(architecture: str, most: int) -> None:
    task = tiny_task(architecture)
    assert isinstance(task.example([1] * most, max_len=11), Example)
    with pytest.raises(
        InputError, match=rf"reads at most 11 tokens, and these {most + 1} numbers need .*; take some away\."
    ):
        task.example([1] * (most + 1), max_len=11)
    with pytest.raises(InputError, match="take some away"):
        task.example(task.vocabulary.read("1 " * 5000), max_len=11)


@pytest.mark.parametrize("name", ["reverse", "sort", "copy"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_empty_example_is_refused(architecture: str, name: str) -> None:
    with pytest.raises(InputError, match="at least one"):
        tiny_task(architecture, name=name).example([])


def test_the_same_task_for_another_architecture() -> None:
    task = tiny_task("encoder", name="sort", symbols=5)
    other = task.for_architecture("decoder")
    assert other.config == task.config.replace(architecture="decoder")
    assert other.vocabulary.labels[-2:] == ("end", "start")
    assert task.for_architecture("encoder", end_token=True).vocabulary.labels[-1] == "end"
