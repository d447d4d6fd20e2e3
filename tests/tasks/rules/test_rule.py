"""Each task's answers against plain Python, its head scores, the properties of its sources, and validation of its sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tasks.slow import right_answer
from tests.training.tiny import tiny_model, tiny_task
from xformer.config import TaskConfig
from xformer.errors import ConfigError, InputError
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task
from xformer.tasks.framing import generator
from xformer.tasks.rules import RULES
from xformer.tasks.rules.modular import pairs

SIZES: dict[str, dict[str, Any]] = {
    "reverse": {"architecture": "encoder", "symbols": 7, "min_len": 1, "max_len": 13},
    "sort": {"architecture": "encoder", "symbols": 7, "min_len": 1, "max_len": 13},
    "copy": {"architecture": "encoder", "symbols": 7, "min_len": 1, "max_len": 13},
    "copy-twice": {"architecture": "decoder", "symbols": 17, "min_len": 2, "max_len": 13},
    "induction": {"architecture": "decoder", "symbols": 17, "min_len": 2, "max_len": 13},
    "addition": {"architecture": "decoder", "symbols": 11, "min_len": 1, "max_len": 18},
    "parity": {"architecture": "decoder", "symbols": 2, "min_len": 1, "max_len": 13},
    "brackets": {"architecture": "encoder", "symbols": 2, "min_len": 1, "max_len": 13},
    "modular": {"architecture": "decoder", "symbols": 13, "min_len": 2, "max_len": 2},
}


def of(name: str, **options: Any) -> Task:
    return tiny_task(name=name, **(SIZES[name] | options))


def drawn(task: Task, n: int, purpose: Any = "train", *, paired: bool = False) -> list[list[int]]:
    cells, lengths = task.rule.sources(n, paired=paired, draw=generator(3, purpose, 0, "cpu"), purpose=purpose)
    return [row[:length] for row, length in zip(cells.tolist(), lengths.tolist(), strict=True)]


def test_every_task_is_compared() -> None:
    with_data = {"digits", "characters"}  # these have their own test files
    assert set(SIZES) | with_data == set(RULES) == set(TASK_LIMITS)


@pytest.mark.parametrize("name", SIZES)
def test_batched_answers_equal_those_of_plain_python(name: str) -> None:
    task = of(name)
    sources = drawn(task, 200)
    width = max(map(len, sources))
    filler = torch.randint(0, 9, (200, width), generator=torch.Generator().manual_seed(1)).tolist()
    tokens = torch.tensor([source + more[len(source) :] for source, more in zip(sources, filler, strict=True)])
    before = tokens.clone()
    answers, lengths = task.rule.answer(tokens, torch.tensor([len(source) for source in sources]))
    for source, row, length in zip(sources, answers.tolist(), lengths.tolist(), strict=True):
        assert row[:length] == right_answer(task.config, source)
        assert length == task.rule.answer_length(len(source))
    assert torch.equal(tokens, before)


BY_HAND = {
    "sort": {"4 1 3 1": "1 1 3 4"},
    "copy-twice": {"4 11 3": "4 11 3 4 11 3"},
    "addition": {"347+586": "3390", "999+001": "0001", f"{10**18 - 1}+{10**18 - 1}": f"8{'9' * 17}1"},
    "parity": {"1011": "1101"},
    "brackets": {"(()())": "1 2 1 2 1 0", "())(": "1 0 ✗ ✗", "(" * 13: "1 2 3 4 5 6 7 8 9 10 11 12 13"},
    "modular": {"12 12": "11", "6 7": "0"},
}


def test_answers_equal_those_worked_out_by_hand() -> None:
    for name, answers in BY_HAND.items():
        task = of(name)
        assert {typed: task.vocabulary.text(task.answer(task.vocabulary.read(typed))) for typed in answers} == answers


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_sources_have_the_requested_sizes(name: str, paired: bool) -> None:
    task = of(name) if name == "modular" else of(name, min_len=3, max_len=7)
    found = drawn(task, 300, paired=paired)
    low, high = task.config.min_len, task.config.max_len
    sizes = [task.rule.size(source) for source in found]
    assert set(sizes) == set(range(low, high + 1))
    assert [len(source) for source in found] == [task.rule.source_length(size) for size in sizes]
    for source in found:
        assert all(1 <= token <= task.config.symbols for token in source)
        assert task.vocabulary.read(task.vocabulary.text(source)) == source
        task.rule.check(source)
    if paired:
        sums = {len(a) + len(b) for a, b in zip(found[::2], found[1::2], strict=True)}
        answers = {len(task.answer(a)) + len(task.answer(b)) for a, b in zip(found[::2], found[1::2], strict=True)}
        assert len(sums) == len(answers) == 1  # otherwise packed rows would not be full


def test_edge_cases_of_addition_are_valid_sums_and_include_common_inputs() -> None:
    task = of("addition", min_len=2, max_len=3)
    batch = task.edge_cases()
    assert batch is not None
    typed = set()
    for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        written = task.vocabulary.text(tokens[: tokens.index(13)])
        a, b = written.split("+")
        digits = [label - 1 for label in labels if label >= 0][:-1]
        assert sum(digit * 10**place for place, digit in enumerate(digits)) == int(a) + int(b)
        typed.add(written)
    assert len(typed) == len(batch.tokens)
    assert {"500+500", "999+001", "001+999", "99+01", "042+000", "000+042", "637+363", "200+080", "99+99"} <= typed
    assert of("reverse").edge_cases() is None


def test_the_split_of_modular_pairs_is_disjoint_and_complete() -> None:
    for p in (5, 13, 47):
        train, rest = (set(map(tuple, pairs(p, for_training=side).tolist())) for side in (True, False))
        assert not train & rest
        assert train | rest == {(a, b) for a in range(p) for b in range(p)}
        assert rest
        for side in (train, rest):  # b + a is on the same side as a + b
            assert {(b, a) for a, b in side} == side
        assert set(map(tuple, pairs(p, share=0.3, for_training=True).tolist())) < train


def test_scoring_draws_each_unseen_pair_once_before_repeating() -> None:
    task = of("modular", symbols=7)
    seen = {purpose: set(map(tuple, drawn(task, 3000, purpose))) for purpose in ("train", "held-out", "test")}
    side = {side: {(1 + a, 1 + b) for a, b in pairs(7, for_training=side).tolist()} for side in (True, False)}
    assert seen == {"train": side[True], "held-out": side[False], "test": side[False]}
    n = task.rule.n_held_out
    assert n == len(side[False])
    twice = [tuple(source) for source in drawn(task, 2 * n, "test")]
    assert len(set(twice[:n])) == len(set(twice[n:])) == n


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "induction", "symbols": 12}, "max_len, got symbols=12 and max_len=13; for example symbols=13."),
        ({"name": "induction", "architecture": "encoder"}, "architecture='decoder', got 'encoder'; for example"),
        ({"name": "addition", "max_len": 19}, "1 ≤ min_len ≤ max_len ≤ 18, got min_len=1 and max_len=19; for example"),
        ({"name": "parity", "symbols": 3}, "symbols must be 2 for the task parity, got 3; for example symbols=2."),
        ({"name": "modular", "symbols": 4}, "symbols must be from 5 to 1,000, got 4; for example symbols=19."),
    ],
)
def test_invalid_task_sizes_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TaskConfig(**({"name": changes["name"]} | SIZES[changes["name"]] | changes))
    assert words in str(caught.value)


def test_brackets_require_a_causal_model() -> None:
    task = of("brackets")
    with pytest.raises(ConfigError, match=r"must be causal, got causal=False; use causal=True\."):
        task.check_fits(tiny_model(task, causal=False))
    task.check_fits(tiny_model(task, causal=True))


@pytest.mark.parametrize("name", SIZES)
def test_default_and_example_inputs_can_be_read_and_answered(name: str) -> None:
    has_symbols = name in ("reverse", "sort", "copy", "copy-twice", "induction")
    task = of(name, min_len=3, max_len=13, symbols=19) if has_symbols else of(name)
    for text in (task.rule.default, task.rule.typed_example, *task.rule.examples().values()):
        example = task.example(task.vocabulary.read(text))
        assert list(example.answer) == right_answer(task.config, list(example.source))
    assert task.rule.remark(task.vocabulary.read(task.rule.default)) == "" or name == "modular"


TYPED = {
    "addition": {" 347 + 586 = ": "347+586", "47+586": "047+586"},
    "parity": {"1 0, 11": "1011"},
    "brackets": {"( () )\t)": "(()))"},
    "modular": {"3+11": "3 11", "3, 11": "3 11", "3 + 11 =": "3 11"},
}


def test_typed_sources_are_normalised() -> None:
    for name, ways in TYPED.items():
        vocabulary = of(name).vocabulary
        assert {typed: vocabulary.text(vocabulary.read(typed)) for typed in ways} == ways


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("addition", "٣+٤", "“٣+٤” is not one"),
        ("addition", "1" * 19 + "+1", "at most 18 digits, got 19; take some away."),
        ("parity", "102", "reads bits, 0 or 1, and “2” is not one; try 1 0 1 1."),
        ("parity", "1\x001", "“\N{REPLACEMENT CHARACTER}” is not one"),
        ("brackets", "(" * 14, "depths up to 13, and these brackets go down to 14; close some earlier."),
        ("modular", "3 13", "numbers from 0 to 12, and “13” is not one; try 6 8."),
        ("induction", "3 18", "numbers from 1 to 17, and “18” is not one"),
    ],
)
def test_anything_else_gets_one_plain_sentence(name: str, typed: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        of(name).vocabulary.read(typed)
    message = str(caught.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 160


def test_remarks_describe_differences_from_the_training_data() -> None:
    induction, modular = of("induction"), of("modular")
    assert "trained on 2 to 13" in induction.rule.remark([1])
    assert "occurs twice" in induction.rule.remark([1, 2, 1])
    assert induction.rule.remark([1, 2, 3]) == ""
    long_sum = of("addition", max_len=4).rule.remark([1] * 11)
    assert long_sum == "5 digits: it was trained on 1 to 4, so expect mistakes."
    for side, words in ((True, "was used in training"), (False, "was not used in training")):
        assert all(words in modular.rule.remark([1 + a, 1 + b]) for a, b in pairs(13, for_training=side).tolist())


@pytest.mark.parametrize(
    ("name", "typed", "size", "edges", "value"),
    [
        ("reverse", "4 1 3", (3, 3), {(0, 2): 1.0, (1, 1): 0.5, (2, 0): 0.3, (2, 2): 0.7}, 0.6),
        ("copy", "4 1 3", (3, 3), {(0, 0): 1.0, (1, 1): 0.5, (2, 0): 0.7, (2, 2): 0.3}, 0.6),
        # sorted: 1 1 4; the ones are at 1 and 2
        ("sort", "4 1 1", (3, 3), {(0, 1): 0.5, (0, 2): 0.5, (1, 2): 0.4, (1, 0): 0.6, (2, 0): 0.1}, 0.5),
        # stream 4 1 3 start 4 1 3: after 4 (at 4) attend to 1, after 1 to 3; the start token does not count
        ("induction", "4 1 3", (7, 7), {(3, 0): 1.0, (4, 1): 0.8, (5, 2): 0.2, (5, 3): 0.8, (6, 3): 1.0}, 0.5),
        # stream 4 1 4 2 start …: after the second answer (1) attend to position 2; after 4 (at 5, 7) to what followed both 4s
        ("induction", "4 1 4 2", (9, 9), {(5, 1): 0.3, (5, 3): 0.7, (6, 2): 0.5, (7, 1): 0.0, (7, 3): 0.9}, 0.8),
        # 4 1 at 0 1, start at 2: output i is at 2 + i and attends to 0 1 0 1; the end (6) does not count
        ("copy-twice", "4 1", (7, 7), {(2, 0): 1.0, (3, 1): 0.5, (4, 0): 0.25, (5, 1): 0.25, (6, 0): 1.0}, 0.5),
        # bits 1 0 1 at 0 1 2, start at 3: output i is at 3 + i
        ("parity", "101", (6, 6), {(3, 0): 1.0, (4, 1): 0.2, (5, 2): 0.3, (0, 0): 1.0}, 0.5),
        # 12+34 at 0 … 4, start at 5: the last digits are at 1 and 4, the first at 0 and 3; the carry has no column
        ("addition", "12+34", (8, 8), {(5, 1): 0.5, (5, 4): 0.3, (6, 0): 0.1, (6, 3): 0.1, (7, 0): 1.0}, 0.5),
        # 3 11 at 0 and 1, start at 2
        ("modular", "3 11", (4, 4), {(2, 0): 0.3, (2, 1): 0.4, (2, 2): 0.3, (3, 0): 1.0}, 0.7),
        # the second and third bracket: an even look back would be ½ ½ and ⅓ ⅓ ⅓
        ("brackets", "(()", (3, 3), {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 0.5, (2, 2): 1.0}, 1 - 1 / 3),
    ],
)
def test_head_scores_equal_those_worked_out_by_hand(
    name: str, typed: str, size: tuple[int, int], edges: dict[tuple[int, int], float], value: float
) -> None:
    # one head [1, query, key] with these weights, and nothing elsewhere
    task, pattern = of(name), torch.zeros(1, *size)
    for (query, key), weight in edges.items():
        pattern[0, query, key] = weight
    source = task.vocabulary.read(typed)
    found = task.rule.head_score(pattern, source, task.answer_queries(len(source)))
    assert found.tolist() == pytest.approx([value], abs=1e-6)
