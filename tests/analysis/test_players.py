"""What a player says, against a plain loop over the bare model, and what belongs to whom."""

from __future__ import annotations

import math

import pytest
import torch

from tests.analysis.duel import LAST, SHIPPED, SOURCE, example_for, greedy, random_player, shipped
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis import players
from xformer.analysis.players import EdgesSoFar, Player, joint_labels, play, to_joint
from xformer.decoding import Sampling
from xformer.errors import EditError, InputError
from xformer.trace import record

# Cached and whole passes add up the same < 100 products a number in another order, in float32 (6e-8 each).
ROUNDING = 2e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(5))
def test_a_play_is_argmax_after_argmax(architecture: str, seed: int) -> None:
    player = random_player("random", architecture, seed=seed)
    example = example_for(player)
    for answer in (None, [token for token in example.labels[0].tolist() if token >= 0]):
        said, beliefs = greedy(player, SOURCE, answer)
        result = play(player, example, forced=answer is not None)
        assert list(result.said) == said
        assert list(result.read) == (said if answer is None else answer)
        torch.testing.assert_close(result.probabilities, torch.stack(beliefs), rtol=0, atol=ROUNDING)
        assert result.drawn_from.argmax(-1).tolist() == said
        assert result.probability(0) == result.probabilities[0, said[0]].item()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_trained_model_is_right_and_says_how_it_ended(name: str) -> None:
    player = shipped(name)
    for source in ([1, 2, 3], [5, 5, 5, 5], list(range(1, 16))):
        for forced in (False, True):
            result = play(player, player.task.example(source), forced=forced)
            expected = source[::-1] + ([] if player.task.vocabulary.special.end is None else [20])
            assert list(result.said) == expected == list(result.answer)
            assert result.right == (True,) * len(expected)
            assert result.is_exact
            stops = not forced and player.model.config.architecture != "encoder"
            assert result.ended == ("end token" if stops else "length of the right answer")


def test_it_ends_early_at_its_own_end_token_but_never_runs_past_the_right_answer() -> None:
    lengths, endings = set(), set()
    for seed in range(40):
        result = play(player := random_player("random", "decoder", seed=seed), example_for(player))
        lengths.add(len(result))
        endings.add(result.ended)
        assert (result.ended == "end token") == (result.said[-1] == player.model.config.end_token)
        assert player.model.config.end_token not in result.said[:-1]
        assert not result.is_exact
    assert max(lengths) == len(SOURCE) + 1
    assert min(lengths) < len(SOURCE)
    assert endings == {"end token", "length of the right answer"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_trace_of_a_step_ends_in_what_was_believed(architecture: str) -> None:
    player = random_player("random", architecture, edits=(edits.zero_positions(),))
    for forced in (False, True):
        result = play(player, example_for(player), forced=forced)
        for step in range(len(result)):
            trace = result.trace(step)
            p = trace.logits[0, result.positions[step]].softmax(-1)
            torch.testing.assert_close(p, result.probabilities[step], rtol=0, atol=ROUNDING)
            if architecture != "encoder":
                read = trace.tokens if architecture == "decoder" else trace.target
                assert read is not None
                assert read[0, len(read[0]) - step :].tolist() == list(result.read[:step])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_entropy_is_that_of_torch(architecture: str) -> None:
    player = random_player("random", architecture)
    result = play(player, example_for(player))
    expected = torch.distributions.Categorical(result.probabilities.double()).entropy() / math.log(2)
    # Categorical normalises the float32 probabilities first: their sum is off by less than 1e-6
    torch.testing.assert_close(result.entropy(), expected, rtol=0, atol=1e-5)


def test_certainty_has_no_entropy_and_no_idea_has_the_most() -> None:
    player = random_player("random", "encoder")
    with torch.no_grad():
        player.model.unembedding.weight.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        player.model.unembedding.bias.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        flat = play(player, example_for(player)).entropy()
        torch.testing.assert_close(flat, torch.full((5,), 3.0, dtype=torch.float64))  # log₂ of 8 tokens
        player.model.unembedding.bias[3] = 1000.0  # pyright: ignore[reportOptionalSubscript]
    assert play(player, example_for(player)).entropy().tolist() == [0.0] * 5


def test_the_same_seed_draws_the_same_tokens_whoever_draws_beside_it() -> None:
    hot = Sampling(temperature=2.0)
    plays = {}
    for seed in range(20):
        player = random_player("random", "encoder-decoder", sampling=hot, seed=0)
        player = Player("random", player.model, player.task, sampling=hot, seed=seed)
        before = torch.get_rng_state()
        first, second = (play(player, example_for(player)) for _ in range(2))
        assert torch.equal(before, torch.get_rng_state())
        assert first.said == second.said
        assert all(first.drawn_from[step, token] > 0 for step, token in enumerate(first.said))
        plays[first.said] = seed
    assert len(plays) > 5


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_an_edge_of_a_position_that_is_still_to_come_waits_for_it(architecture: str) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    late = 9 if architecture == "decoder" else 4
    player = random_player(
        "random", architecture, edits=(edits.mask_edges(layer, [(late, key) for key in range(2, late + 1)]),)
    )
    example = example_for(player)
    whole = record(player.model, example.stream, example.target, edits=player.edits)
    plain = record(player.model, example.stream, example.target)
    result = play(player, example, forced=True)
    for step, position in enumerate(result.positions):
        p = whole.logits[0, position].softmax(-1)
        torch.testing.assert_close(result.probabilities[step], p, rtol=0, atol=ROUNDING)
    assert not torch.allclose(whole.logits[0, late], plain.logits[0, late], atol=1e-2), "the edge should matter"
    assert play(player, example).said  # free-running too
    beyond = Player("beyond", player.model, player.task, (edits.mask_edges(layer, [(16, 0)]),))
    with pytest.raises(EditError, match="no edge"):
        play(beyond, example)


def test_edges_that_are_there_are_cut_as_ever() -> None:
    mask = torch.ones(1, 3, 5, 5, dtype=torch.bool)
    growing = EdgesSoFar("x", ((1, 2), (4, 4), (7, 0)), False, (2,))
    fixed = edits.SetEdges("x", ((1, 2), (4, 4)), False, (2,))
    assert torch.equal(growing.apply("x", mask), fixed.apply("x", mask))


def test_the_likeliest_tokens_come_first() -> None:
    player = random_player("random", "encoder")
    result = play(player, example_for(player))
    top = result.top(2, 3)
    assert [token for token, _ in top] == result.probabilities[2].argsort(descending=True)[:3].tolist()
    assert [p for _, p in top] == result.probabilities[2].sort(descending=True).values[:3].tolist()
    assert len(result.top(2, 99)) == 8


def test_one_example_serves_players_of_every_architecture() -> None:
    example = example_for(random_player("x", "decoder"))
    for architecture in ARCHITECTURES:
        player = random_player("x", architecture)
        assert play(player, example).said == play(player, example_for(player)).said
    players = [random_player(a, a) for a in ARCHITECTURES]
    labels = joint_labels(players)
    assert sorted(labels) == sorted({"pad", "end", "start", *"1234567"})
    for player in players:
        assert tuple(labels[i] for i in to_joint(player, labels)) == player.task.vocabulary.labels


def test_an_ablated_player_is_not_the_original() -> None:
    whole = shipped("reverse-decoder")
    cut = shipped("reverse-decoder", "cut", edits=(edits.ablate_head(LAST["reverse-decoder"], 0),))
    example = example_for(whole, [3, 7, 12, 9, 1, 5])
    assert play(whole, example).is_exact
    assert not play(cut, example).is_exact


def test_what_cannot_play_is_told_why() -> None:
    player = random_player("random", "encoder")
    with pytest.raises(InputError, match="needs a name"):
        Player("", player.model, player.task)
    with pytest.raises(InputError, match="reads at most 17"):
        play(player, player.task.example([1] * 18))
    with pytest.raises(InputError, match="takes the steps 0 to 4, got 5"):
        play(player, example_for(player)).trace(5)
    with pytest.raises(InputError, match="takes the steps 0 to 4, got -1"):
        play(player, example_for(player)).top(-1)
    with pytest.raises(InputError, match="being trained"):
        Player("busy", player.model.train(), player.task)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_forced_under_changes_one_run_says_what_step_by_step_does(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    changes = (edits.ablate_head(layer, 0), edits.zero_positions(), edits.mask_edges(layer, [(3, 1)]))
    player = random_player("changed", architecture, edits=changes)
    at_once = play(player, example_for(player), forced=True)
    monkeypatch.setattr(players, "looks_back_only", lambda player: False)
    step_by_step = play(player, example_for(player), forced=True)
    torch.testing.assert_close(at_once.probabilities, step_by_step.probabilities, rtol=0, atol=ROUNDING)
    assert at_once.read == step_by_step.read
    for one, other in zip(at_once.steps, step_by_step.steps, strict=True):
        assert torch.equal(one.trace().logits, other.trace().logits)


def test_a_lifted_mask_is_played_step_by_step() -> None:
    """One run over the whole answer would show each position the answer that it has to say."""
    assert not players.looks_back_only(random_player("open", "decoder", edits=(edits.set_causal(False),)))
    assert not players.looks_back_only(random_player("edge", "decoder", edits=(edits.unmask_edges("*", [(0, 1)]),)))
    assert players.looks_back_only(random_player("own", "decoder", edits=(edits.set_causal(True),)))


def test_a_text_is_gone_on_with_and_neither_right_nor_wrong() -> None:
    player = shipped("characters")
    example = player.task.example(player.task.vocabulary.read("The list of "))
    after, along = play(player, example), play(player, example, forced=True)
    assert (len(after), after.answer, after.right, after.ended) == (
        players.GOES_ON,
        (),
        (),
        "tokens that were asked for",
    )
    assert after.positions[:2] == (11, 12)
    assert (len(along), len(along.answer), along.right) == (11, 11, ())
    assert not along.is_exact
    assert not any(one.has_right_answer for one in (after, along))
    torch.testing.assert_close(after.trace(3).logits[0, -1].softmax(-1), after.probabilities[3], rtol=0, atol=ROUNDING)
