"""The counts against one play after another, the figures against `evaluate`, the interval against numbers by hand."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch

from tests.analysis.duel import SHIPPED, random_player, shipped
from tests.training.crib import Crib
from tests.training.tiny import ARCHITECTURES, tiny_model, tiny_task
from xformer import edits
from xformer.analysis import agreement as module
from xformer.analysis import answers as answering
from xformer.analysis.agreement import Agreement, agreement, wilson
from xformer.analysis.players import Play, Player, play
from xformer.edits import AnyEdit
from xformer.errors import InputError
from xformer.training.evaluate import evaluate


def final(*players: Player, samples: int = 23, seed: int = 3) -> Agreement:
    *_, last = agreement(players, samples=samples, seed=seed)
    assert last.is_final
    return last


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [  # by hand from the formula with z = 1.96, to four places
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (1, 1, 0.2065, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_wilson_by_hand(hits: int, trials: int, low: float, high: float) -> None:
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("hits", "trials"), [(1, 7), (3, 11), (97, 101), (4999, 5003)])
def test_wilsons_ends_are_where_the_score_test_just_rejects(hits: int, trials: int) -> None:
    for p in wilson(hits, trials):
        assert abs(hits / trials - p) == pytest.approx(1.959963984540054 * (p * (1 - p) / trials) ** 0.5, rel=1e-9)


def test_wilson_refuses_what_cannot_be() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="4"):
        wilson(4, 3)


def sources_of(player: Player, samples: int, seed: int) -> list[list[int]]:
    """The sampled inputs, read off an encoder's batch of the same task."""
    batch = player.task.for_architecture("encoder").sample(samples, seed=seed)
    return [[token for token in row if token] for row in batch.tokens.tolist()]


def table(frame, *columns: str) -> dict[tuple, tuple[int, int]]:  # pyright: ignore
    return {tuple(row[c] for c in columns): (row["hits"], row["trials"]) for row in frame.to_dict("records")}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_counts_are_those_of_one_play_after_another(architecture: str) -> None:
    stack = "encoder" if architecture == "encoder" else "decoder"
    one = random_player("one", architecture, seed=1)
    muted = Player("muted", one.model, one.task, (edits.scale(f"{stack}.1.ffn.out", 0.0),))
    other = random_player("other", "encoder", seed=2)
    players = (one, muted, other)
    result = final(*players)
    hits: Counter = Counter()
    trials: Counter = Counter()
    said: Counter = Counter()

    def count(key: tuple, right: bool) -> None:
        hits[key] += right
        trials[key] += 1

    for source in sources_of(one, 23, 3):
        plays: list[Play] = [play(player, player.task.example(source), forced=True) for player in players]
        for this in plays:
            name = this.player.name
            for place, right in enumerate(this.right):
                count(("position", name, "token", place), right)
                count(("position", name, "exact", place), all(this.right[: place + 1]))
                count(("length", name, "token", len(source)), right)
                count(("all", name, "token"), right)
                said[name, this.labels[this.answer[place]], this.labels[this.said[place]]] += 1
            count(("length", name, "exact", len(source)), this.is_exact)
            count(("all", name, "exact"), this.is_exact)
        for a, b in ((0, 1), (0, 2), (1, 2)):
            pair = (plays[a].player.name, plays[b].player.name)
            same = [
                plays[a].labels[x] == plays[b].labels[y] for x, y in zip(plays[a].said, plays[b].said, strict=False)
            ]
            for is_same in same:
                count(("pair", *pair, "token"), is_same)
            count(("pair", *pair, "exact"), all(same))

    def expected(kind: str) -> dict[tuple, tuple[int, int]]:
        return {key[1:]: (hits[key], trials[key]) for key in trials if key[0] == kind}

    assert table(result.figures(), "player", "measure") == expected("all")
    assert table(result.by_position(), "player", "measure", "position") == expected("position")
    assert table(result.by_length(), "player", "measure", "length") == expected("length")
    assert table(result.pairs(), "one", "other", "measure") == expected("pair")
    confusion = {
        (row["player"], row["right"], row["said"]): row["count"] for row in result.confusion().to_dict("records")
    }
    assert confusion == dict(said)
    assert 0 < hits["all", "one", "token"] < trials["all", "one", "token"]
    shares = result.confusion().groupby(["player", "right"])["share"].sum()
    assert shares.tolist() == pytest.approx([1.0] * len(shares))
    for frame in (result.figures(), result.by_position(), result.by_length(), result.pairs()):
        for row in frame.to_dict("records"):
            assert row["share"] == row["hits"] / row["trials"]
            assert (row["low"], row["high"]) == wilson(row["hits"], row["trials"])


@pytest.mark.parametrize(
    ("architecture", "lifted"),
    [
        ("decoder", edits.set_causal(False)),
        ("encoder-decoder", edits.set_causal(False)),
        ("decoder", edits.unmask_edges("decoder.*", [(2, 4)])),
    ],
)
def test_a_leak_of_the_answer_is_not_counted_as_knowing_it(architecture: str, lifted: AnyEdit) -> None:
    """Under changes that let a decoder see ahead, what is counted is what it says step by step."""
    player = random_player("lifted", architecture, seed=3, edits=(lifted,))
    result = final(player, random_player("untouched", architecture, seed=3))
    right = exact = 0
    for source in sources_of(player, 23, 3):
        one = play(player, player.task.example(source), forced=True)
        right, exact = right + sum(one.right), exact + one.is_exact
    figures = result.figures().query("player == 'lifted'").set_index("measure")["hits"]
    assert (figures["token"], figures["exact"]) == (right, exact)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_whoever_copies_the_answer_gets_nothing_right(architecture: str) -> None:
    task = tiny_task(architecture)
    result = final(Player("crib", Crib(tiny_model(task)).eval(), task), samples=50)
    figures = result.figures().set_index("measure")
    assert figures.loc["exact", "hits"] == 0
    assert figures.loc["token", "share"] < 0.5


@pytest.mark.parametrize("name", SHIPPED)
def test_the_figures_are_those_of_evaluate(name: str) -> None:
    """A shipped model with noise in its weights, so that it is wrong now and then: 700 inputs, in chunks of 500 and 200."""
    player = shipped(name)
    noisy = copy.deepcopy(player.model)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.add_(parameter.std() * 0.25 * torch.randn(parameter.shape, generator=draw))
    noisy_player = Player("noisy", noisy, player.task)
    result = final(noisy_player, samples=700, seed=9).figures().set_index("measure")["share"]
    expected = evaluate(noisy, player.task, samples=700, seed=9)
    assert 0 < expected.token_accuracy < 1
    assert result["exact"] == expected.exact_match
    assert result["token"] == pytest.approx(expected.token_accuracy, rel=1e-12)  # a weighted mean of chunks there


def test_reports_come_chunk_by_chunk_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    player = random_player("one", "encoder")
    reports = list(agreement([player], samples=23))
    assert [report.done for report in reports] == [7, 14, 21, 23]
    assert [report.is_final for report in reports] == [False, False, False, True]
    assert [report.trials["all", "one", "exact", 0] for report in reports] == [
        7,
        14,
        21,
        23,
    ]  # each is its own snapshot


def test_it_can_be_closed() -> None:
    reports = agreement([random_player("one", "encoder")], samples=10**9)
    assert next(reports).done == 500
    reports.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert list(reports) == []


def test_a_player_agrees_with_itself() -> None:
    one = random_player("one", "decoder")
    twin = Player("twin", one.model, one.task)
    result = final(one, twin)
    assert result.pairs()["share"].tolist() == [1.0, 1.0]
    ours, theirs = (result.figures().query("player == @name")["hits"].tolist() for name in ("one", "twin"))
    assert ours == theirs


def test_players_of_other_tokens_or_no_names_are_refused() -> None:
    one = random_player("one", "encoder")
    with pytest.raises(InputError, match="different names"):
        next(agreement([one, one]))
    with pytest.raises(InputError, match="At least one input"):
        next(agreement([one], samples=0))
    with pytest.raises(InputError, match="compare players of one task"):
        next(agreement([one, shipped("reverse-small")]))


def test_long_inputs_are_counted_in_portions_and_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    players = [random_player("a", "encoder"), random_player("b", "encoder", seed=1)]
    whole = final(*players)
    monkeypatch.setattr(answering, "CELLS", 100)
    reports = list(agreement(players, samples=23, seed=3))
    assert len(reports) > 3
    assert [report.done for report in reports] == sorted({report.done for report in reports})
    assert reports[-1].is_final
    assert reports[-1].hits == whole.hits
    assert reports[-1].trials == whole.trials
    assert reports[-1].said == whole.said
