"""Step-by-step decoding: greedy against plain forward passes, sampling against distributions computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.crib import Crib
from tests.training.tiny import random_model, tiny_model, tiny_task
from xformer import edits
from xformer.decoding import Sampling, Step, decode, greedy, is_right, questions, reads_ahead
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.tasks import score
from xformer.trace import record
from xformer.training.evaluate import evaluate

PROMPT = [3, 7, 1, 4]
MAX_LEN = 12
# A forward pass of these models sums fewer than 100 products per number, in 2 layers (float64: 1.1e-16 each), and the cached
# and the recorded path sum in different orders.
ROUNDING = 1e-11


def uncached(model: Transformer, prompt: Sequence[int], read: Sequence[int]) -> Tensor:
    """Return the next token's logits from one full forward pass; `read` is the decoder's input."""
    with torch.no_grad():
        if model.config.architecture == "encoder-decoder":
            return model(torch.tensor([list(prompt)]), torch.tensor([list(read)]))[0, -1]
        return model(torch.tensor([list(read)]))[0, -1]


def first_input(model: Transformer, prompt: Sequence[int]) -> list[int]:
    start = model.config.start_token
    return [start] if model.config.architecture == "encoder-decoder" and start is not None else list(prompt)


def greedy_by_hand(model: Transformer, prompt: Sequence[int]) -> list[int]:
    """Repeat argmax of a full forward pass until the end token or the context length."""
    read, generated = first_input(model, prompt), []
    while len(read) <= model.config.max_len:
        generated.append(int(uncached(model, prompt, read).argmax()))
        if generated[-1] == model.config.end_token:
            break
        read.append(generated[-1])
    return generated


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [step.token for step in steps]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("decoder", {"positions": "sinusoidal"}),
        ("decoder", {"positions": "rotary", "see_self": False, "norm": "pre"}),
        ("encoder-decoder", {"positions": "learned", "tied_output": True}),
        ("encoder-decoder", {"positions": "alibi", "see_self": False}),
    ],
)
def test_greedy_decoding_is_argmax_of_whole_passes(float64: None, architecture: str, changes: dict[str, Any]) -> None:
    model = random_model(architecture, **changes)
    steps = list(decode(model, PROMPT))
    assert tokens_of(steps) == greedy_by_hand(model, PROMPT)
    read = first_input(model, PROMPT)
    for position, step in enumerate(steps):
        expected = uncached(model, PROMPT, read).softmax(dim=-1)
        torch.testing.assert_close(step.probabilities, expected, rtol=0, atol=ROUNDING)
        assert (step.position, step.predicted) == (position, step.token)
        assert step.drawn_from.tolist() == [float(token == step.token) for token in range(11)]
        read.append(step.token)
    # constant predictions would prove little
    assert not torch.allclose(steps[0].probabilities, steps[-1].probabilities, atol=1e-3)


# --- where it stops


def test_decoding_stops_at_the_end_token() -> None:
    endless = tokens_of(list(decode(random_model("encoder-decoder"), PROMPT)))
    for end in set(endless):
        model = random_model("encoder-decoder", end_token=end)
        assert tokens_of(list(decode(model, PROMPT))) == endless[: endless.index(end) + 1]


def test_without_an_end_token_decoding_stops_at_max_len() -> None:
    for n in (1, 4, MAX_LEN - 1, MAX_LEN):
        steps = list(decode(random_model("decoder"), [3] * n))
        assert len(steps) == MAX_LEN - n + 1  # the last predicted token is not read
    assert len(list(decode(random_model("encoder-decoder"), PROMPT))) == MAX_LEN


# --- forced mode


@pytest.mark.parametrize(("architecture", "positions"), [("decoder", "rotary"), ("encoder-decoder", "sinusoidal")])
def test_forced_decoding_follows_the_given_answer(float64: None, architecture: str, positions: str) -> None:
    answer = [5, 2, 2, 9, 1]
    model = random_model(architecture, positions=positions, end_token=2)
    steps = list(decode(model, PROMPT, forced=answer))
    assert tokens_of(steps) == answer  # a forced end token does not stop decoding
    read = first_input(model, PROMPT)
    for step in steps:
        logits = uncached(model, PROMPT, read)
        assert step.predicted == int(logits.argmax())
        torch.testing.assert_close(step.probabilities, logits.softmax(dim=-1), rtol=0, atol=ROUNDING)
        read.append(step.token)
    assert [step.predicted for step in steps] != answer
    assert tokens_of(list(decode(model, PROMPT, forced=answer, max_steps=2))) == answer[:2]
    assert tokens_of(list(decode(model, PROMPT, forced=[]))) == []


def test_forced_decoding_stops_at_the_context_length() -> None:
    assert tokens_of(list(decode(random_model("decoder"), PROMPT, forced=[5] * 99))) == [5] * (MAX_LEN - 4 + 1)
    assert tokens_of(list(decode(random_model("encoder"), PROMPT, forced=[5] * 99))) == [5] * 4
    assert tokens_of(list(decode(random_model("encoder"), PROMPT, forced=[5, 6]))) == [5, 6]


# --- the sampling distribution

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 0, 0, 0]),
        ({"temperature": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        # T = 1/2 squares: 0.25, 0.09, 0.0225, 0.0025, total 0.365
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"temperature": 1.0, "top_k": 2}, [5 / 8, 3 / 8, 0, 0]),
        ({"temperature": 1.0, "top_k": 99}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 1.0, "top_p": 0.01}, [1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.51}, [5 / 8, 3 / 8, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.79}, [5 / 8, 3 / 8, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.96}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.6}, [5 / 8, 3 / 8, 0, 0]),
        # after the temperature, the first token has 0.685
        ({"temperature": 0.5, "top_p": 0.65}, [1, 0, 0, 0]),
    ],
)
def test_sampling_distributions_equal_those_computed_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):  # sorted by probability, and not
        q = Sampling(**settings).distribution(LOGITS[order])
        assert q.tolist() == pytest.approx([expected[token] for token in order], abs=1e-12)
        assert q.sum() == pytest.approx(1.0)


# --- edits and traces

EDITS = {
    "encoder": [edits.ablate_head("encoder.0.attn", 1)],
    "decoder": [edits.ablate_head("decoder.0.attn", 1), edits.scale("decoder.1.ffn.out", 0.5)],
    "encoder-decoder": [edits.ablate_head("encoder.1.attn", 0), edits.ablate_head("decoder.0.cross_attn", 2)],
}


@pytest.mark.parametrize(("architecture", "is_edited"), [*((name, True) for name in EDITS), ("decoder", False)])
def test_each_step_equals_a_recorded_run(float64: None, architecture: str, is_edited: bool) -> None:
    model, chosen = random_model(architecture, positions="rotary"), EDITS[architecture] if is_edited else []
    steps = list(decode(model, PROMPT, edits=chosen))  # exhausted before the first trace: each step keeps its own input
    read = first_input(model, PROMPT)
    for position, step in enumerate(steps):
        inputs = [torch.tensor([PROMPT])] if architecture != "decoder" else []
        if architecture != "encoder":
            inputs.append(torch.tensor([read]))
        trace = record(model, *inputs, edits=chosen)
        logits = trace.logits[0, position if architecture == "encoder" else -1]
        torch.testing.assert_close(step.probabilities, logits.softmax(-1), rtol=0, atol=0 if is_edited else ROUNDING)
        assert step.token == int(logits.argmax())
        assert step.trace().edits == tuple(chosen)
        assert torch.equal(step.trace().logits, trace.logits)
        read.append(step.token)
    plain = list(decode(model, PROMPT))
    has_effect = not torch.allclose(steps[0].probabilities, plain[0].probabilities, atol=1e-3)
    assert has_effect == is_edited


# --- invalid arguments


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "not empty"),
        ([3] * (MAX_LEN + 1), f"reads at most {MAX_LEN} tokens, got {MAX_LEN + 1}."),
        ([3, -1], "tokens are 0 to 10, got -1."),
        (torch.tensor([[1, 2], [3, 4]]), "one prompt at a time, shaped [1, pos], got [2, 2]"),
        (torch.tensor([[1.0, 2.0]]), "Tokens must be integers"),
    ],
)
def test_an_invalid_prompt_is_refused(unchecked: None, architecture: str, prompt: Any, words: str) -> None:
    for chosen in ([], [edits.scale("*.ffn.out", 2.0)]):
        with pytest.raises(InputError) as caught:
            list(decode(random_model(architecture), prompt, edits=chosen))
        assert words in str(caught.value)


def test_a_model_of_another_library_is_refused(unchecked: None) -> None:
    with pytest.raises(InputError, match=r"takes an xformer\.Transformer, .* got a Linear; any other model generates"):
        decode(torch.nn.Linear(2, 2), [3, 4])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"temperature": value}, f"got {value}; for example 1.0.") for value in (1e-40, 101.0, math.nan)),
        *(
            ({"top_k": value}, f"top_k must be 0 (all tokens) or more, got {value}; for example 5.")
            for value in (-1, 1.5)
        ),
        *(({"top_p": value}, f"got {value}; for example 0.9.") for value in (0.0, 1.5)),
    ],
)
def test_invalid_sampling_settings_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(InputError) as caught:
        Sampling(**settings)  # pyright: ignore[reportArgumentType]
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("decoder", {"forced": [3, 11]}, "tokens are 0 to 10, got 11 in forced"),
        ("decoder", {"max_steps": -1}, "max_steps must be 0 or more, got -1"),
        ("encoder-decoder", {}, "has no start token"),
    ],
)
def test_invalid_decoding_options_are_refused(architecture: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(decode(random_model(architecture, start_token=None), PROMPT, **options))


def test_decoding_refuses_nan_and_infinite_logits() -> None:
    too_far = [edits.scale("decoder.1.ffn.out", 1e38), edits.scale("final_norm", 1e38)]
    with pytest.raises(InputError, match="NaN or infinity"):
        list(decode(random_model("decoder", norm="pre"), PROMPT, edits=too_far))


PAIRS = ("decoder", "encoder-decoder")

PROMPTS = torch.tensor([[3, 7, 1], [2, 2, 9], [5, 1, 4]])


@pytest.mark.parametrize(("architecture", "positions"), [("decoder", "rotary"), ("encoder-decoder", "alibi")])
def test_batched_greedy_decoding_equals_each_prompt_alone(float64: None, architecture: str, positions: str) -> None:
    model = random_model(architecture, positions=positions)
    found = []
    for chosen in ([], [edits.scale("decoder.1.ffn.out", -3.0)]):
        alone = [tokens_of(list(decode(model, row.tolist(), max_steps=5, edits=chosen))) for row in PROMPTS]
        assert greedy(model, PROMPTS, 5, edits=chosen).tolist() == alone
        assert len({tuple(row) for row in alone}) > 1
        found.append(alone)
    assert found[0] != found[1]


@pytest.mark.parametrize("architecture", PAIRS)
def test_questions_split_a_batch_into_prompts_and_answers(architecture: str) -> None:
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
def test_a_model_that_copies_the_answer_fails_in_free_decoding(architecture: str) -> None:
    task = tiny_task(architecture)
    crib = Crib(tiny_model(task)).eval()  # copies the answer from its input
    batch = task.sample(50, seed=2)
    assert score(batch.logits(crib), batch).exact_match == 1.0
    assert reads_ahead(crib, batch)
    assert reads_ahead(crib, batch, places=1)  # one output of each answer is enough to detect it
    assert not any(is_right(crib, question).any() for question in questions(batch))
    found = evaluate(crib, task, samples=50, seed=2)
    assert (found.exact_match, found.token_accuracy, found.samples) == (0.0, 1.0, 50)


@pytest.mark.parametrize("architecture", ["encoder", *PAIRS])
def test_a_causal_model_does_not_read_ahead(architecture: str) -> None:
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task, positions="alibi"), torch.Generator().manual_seed(0)).eval()
    for options in ({}, {"places": 2}):
        assert not reads_ahead(model, task.sample(6, seed=1), **options)
