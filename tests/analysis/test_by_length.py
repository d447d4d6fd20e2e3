"""How long a model can go: right answers by length, beyond those of its training too."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import xformer
from xformer.analysis.comparison import Contender
from xformer.analysis.scoring import (
    accuracy_by_length,
    asking_lengths,
    has_mastered_its_training,
    how_far,
    lengths_compared,
    lengths_of_all,
    wilson,
)
from xformer.errors import InputError, UnavailableError
from xformer.tasks import Task
from xformer.training.by_length import lengths_of
from xformer.training.evaluate import evaluate

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def reading(name: str, text: str = "3 7 12 9") -> xformer.Reading:
    return xformer.read(CHECKPOINTS / name, text)


def test_a_row_is_the_score_of_that_length_alone() -> None:
    checkpoint = xformer.load(CHECKPOINTS / "reverse-mirror")
    assert checkpoint.task is not None
    table = accuracy_by_length(reading("reverse-mirror"), lengths=[15, 16, 20], samples=60, seed=3)
    for row in table.to_dict("records"):
        config = checkpoint.task.config.replace(min_len=int(row["length"]), max_len=int(row["length"]))
        found = evaluate(checkpoint.model, Task(config), samples=60, seed=3)
        assert row["exact_match"] == found.exact_match
        assert (row["low"], row["high"]) == wilson(round(found.exact_match * 60), 60)
    assert table["trained"].tolist() == [True, False, False]
    assert table["exact_match"][0] > 0.95 > 0.5 > table["exact_match"][2]


def test_the_shipped_one_goes_on_and_the_others_do_not() -> None:
    table = accuracy_by_length(reading("reverse-long"), lengths=[15, 16, 30, 45, 60], samples=100)
    assert (table["exact_match"] >= 0.95).all()
    table = accuracy_by_length(reading("reverse-small"), lengths=[15, 20], samples=100)
    assert table["exact_match"].tolist() == [1.0, 0.0]


def test_all_lengths_are_asked_one_after_the_other() -> None:
    made = list(asking_lengths(reading("addition", "12+34"), samples=3))
    assert [len(one.rows) for one in made] == list(range(1, 19))
    assert [one.is_final for one in made] == [False] * 17 + [True]


@pytest.mark.parametrize(("name", "text"), [("modular", "3+5"), ("digits", "test 3"), ("characters", "the ")])
def test_a_task_of_one_length_has_none_to_go_beyond(name: str, text: str) -> None:
    run = reading(name, text)
    assert lengths_of(run.subject.model.config, run.subject.task) == ()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UnavailableError, match="one length"):
        accuracy_by_length(run)


def test_a_length_out_of_reach_is_said() -> None:
    with pytest.raises(InputError, match="from 1 to 40, got 41"):
        accuracy_by_length(reading("reverse-mirror"), lengths=[41])


def rows(trained: list[float], beyond: list[float]) -> pd.DataFrame:
    shares = trained + beyond
    flags = [True] * len(trained) + [False] * len(beyond)
    return pd.DataFrame({"length": range(3, 3 + len(shares)), "exact_match": shares, "trained": flags})


def test_how_far_it_goes_is_where_the_first_length_fails() -> None:
    assert how_far(rows([1.0, 1.0], [1.0, 0.99, 0.98, 1.0])) == 6
    assert how_far(rows([1.0, 1.0], [0.5, 1.0])) is None
    assert how_far(rows([1.0, 1.0], [])) is None
    assert has_mastered_its_training(rows([1.0, 0.99], [0.0]))
    assert not has_mastered_its_training(rows([1.0, 0.98], [1.0]))
    assert not has_mastered_its_training(rows([], [1.0]))


def contender(name: str, called: str, **options: str) -> Contender:
    return Contender.load(str(CHECKPOINTS / name), called, **options)


def test_players_compared_by_length_have_the_shares_of_inputs_of_that_length_alone() -> None:
    players = [contender("reverse-small", "A"), contender("reverse-mirror", "B")]
    players.append(contender("reverse-small", "C", changes="silence:encoder.0.attn.0"))
    table = lengths_compared(players, lengths=[5, 16], samples=40, seed=3).set_index(["player", "length"])
    for one in players[:2]:
        for length in (5, 16):
            task = Task(one.task.config.replace(min_len=length, max_len=length))
            found = evaluate(one.model, task, samples=40, seed=3)
            row = table.loc[(one.name, length)]
            assert row["exact_match"] == found.exact_match
            assert row["token_accuracy"] == pytest.approx(found.token_accuracy, abs=1e-12)
            assert (row["low"], row["high"]) == wilson(round(found.exact_match * 40), 40)
    assert table.loc[("A", 5), "exact_match"] == 1.0
    assert table.loc[("C", 5), "exact_match"] < 0.5  # its own change counts
    assert table["trained"].tolist() == [True, True, True, False, False, False]


def test_players_are_compared_at_the_lengths_that_all_of_them_read() -> None:
    both = [contender("reverse-mirror", "A"), contender("reverse-long", "B")]
    assert lengths_of_all(both) == tuple(range(1, 41))
    assert max(lengths_of_all(both[1:])) == 64
    with pytest.raises(InputError, match="from 1 to 40, got 41"):
        lengths_compared(both, lengths=[41])


def test_players_of_other_tasks_or_of_one_length_are_refused() -> None:
    with pytest.raises(InputError, match="one task"):
        lengths_compared([contender("reverse-small", "A"), contender("addition", "B")], samples=2)
    with pytest.raises(UnavailableError, match="one length"):
        lengths_compared([contender("modular", "A"), contender("modular", "B")], samples=2)
