"""What a contender says, against a plain loop over the bare model, and what belongs to whom."""

from __future__ import annotations

import math

import pytest
import torch

import xformer
from tests.analysis.duel import (
    CHECKPOINTS,
    LAST,
    SHIPPED,
    SOURCE,
    contender_of,
    greedy,
    random_contender,
    shipped,
)
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis import generation
from xformer.analysis.comparison import Contender, EdgesSoFar, joint_labels, looks_back_only, to_joint
from xformer.analysis.generation import CONTINUATION_LENGTH, roll_out
from xformer.decoding import Sampling
from xformer.errors import EditError, InputError
from xformer.trace import record

# Cached and whole passes add up the same < 100 products a number in another order, in float32 (6e-8 each).
ROUNDING = 2e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(5))
def test_a_play_is_argmax_after_argmax(architecture: str, seed: int) -> None:
    contender = random_contender("random", architecture, seed=seed)
    example = contender.frame(SOURCE)
    for answer in (None, [token for token in example.labels[0].tolist() if token >= 0]):
        said, beliefs = greedy(contender, SOURCE, answer)
        result = roll_out(contender, SOURCE, forced=answer is not None)
        assert list(result.predicted) == said
        assert list(result.read) == (said if answer is None else answer)
        torch.testing.assert_close(result.probabilities, torch.stack(beliefs), rtol=0, atol=ROUNDING)
        assert result.drawn_from.argmax(-1).tolist() == said
        assert result.probability(0) == result.probabilities[0, said[0]].item()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_trained_model_is_right_and_says_how_it_ended(name: str) -> None:
    contender = shipped(name)
    for source in ([1, 2, 3], [5, 5, 5, 5], list(range(1, 16))):
        for forced in (False, True):
            result = roll_out(contender, source, forced=forced)
            expected = source[::-1] + ([] if contender.task.vocabulary.special.end is None else [20])
            assert list(result.predicted) == expected == list(result.answer)
            assert result.right == (True,) * len(expected)
            assert result.is_exact
            stops = not forced and contender.model.config.architecture != "encoder"
            assert result.ended == ("end token" if stops else "length of the right answer")


def test_it_ends_early_at_its_own_end_token_but_never_runs_past_the_right_answer() -> None:
    lengths, endings = set(), set()
    for seed in range(40):
        result = roll_out(contender := random_contender("random", "decoder", seed=seed), SOURCE)
        lengths.add(len(result))
        endings.add(result.ended)
        assert (result.ended == "end token") == (result.predicted[-1] == contender.model.config.end_token)
        assert contender.model.config.end_token not in result.predicted[:-1]
        assert not result.is_exact
    assert max(lengths) == len(SOURCE) + 1
    assert min(lengths) < len(SOURCE)
    assert endings == {"end token", "length of the right answer"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_trace_of_a_step_ends_in_what_was_believed(architecture: str) -> None:
    contender = random_contender("random", architecture, edits=(edits.zero_positions(),))
    for forced in (False, True):
        result = roll_out(contender, SOURCE, forced=forced)
        for step in range(len(result)):
            reading = result[step]
            [p] = reading.probabilities
            torch.testing.assert_close(p, result.probabilities[step], rtol=0, atol=ROUNDING)
            assert reading.predicted == result.predicted[step : step + 1]
            assert reading.answer == result.answer[step : step + 1]
            trace = reading.trace
            if architecture != "encoder":
                read = trace.tokens if architecture == "decoder" else trace.target
                assert read is not None
                assert read[0, len(read[0]) - step :].tolist() == list(result.read[:step])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_entropy_is_that_of_torch(architecture: str) -> None:
    contender = random_contender("random", architecture)
    result = roll_out(contender, SOURCE)
    expected = torch.distributions.Categorical(result.probabilities.double()).entropy() / math.log(2)
    # Categorical normalises the float32 probabilities first: their sum is off by less than 1e-6
    torch.testing.assert_close(result.entropy(), expected, rtol=0, atol=1e-5)


def test_certainty_has_no_entropy_and_no_idea_has_the_most() -> None:
    contender = random_contender("random", "encoder")
    with torch.no_grad():
        contender.model.unembedding.weight.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        contender.model.unembedding.bias.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        flat = roll_out(contender, SOURCE).entropy()
        torch.testing.assert_close(flat, torch.full((5,), 3.0, dtype=torch.float64))  # log₂ of 8 tokens
        contender.model.unembedding.bias[3] = 1000.0  # pyright: ignore[reportOptionalSubscript]
    assert roll_out(contender, SOURCE).entropy().tolist() == [0.0] * 5


def test_the_same_seed_draws_the_same_tokens_whoever_draws_beside_it() -> None:
    hot = Sampling(temperature=2.0)
    rollouts = {}
    for seed in range(20):
        contender = random_contender("random", "encoder-decoder", sampling=hot, seed=0)
        contender = contender_of("random", contender.model, contender.task, sampling=hot, seed=seed)
        before = torch.get_rng_state()
        first, second = (roll_out(contender, SOURCE) for _ in range(2))
        assert torch.equal(before, torch.get_rng_state())
        assert first.predicted == second.predicted
        assert all(first.drawn_from[step, token] > 0 for step, token in enumerate(first.predicted))
        rollouts[first.predicted] = seed
    assert len(rollouts) > 5


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_an_edge_of_a_position_that_is_still_to_come_waits_for_it(architecture: str) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    late = 9 if architecture == "decoder" else 4
    contender = random_contender(
        "random", architecture, edits=(edits.mask_edges(layer, [(late, key) for key in range(2, late + 1)]),)
    )
    example = contender.frame(SOURCE)
    whole = record(contender.model, example.stream, example.target, edits=contender.edits)
    plain = record(contender.model, example.stream, example.target)
    result = roll_out(contender, SOURCE, forced=True)
    first = example.tokens.shape[1] - 1 if example.target is None else 0
    for step in range(len(result)):
        p = whole.logits[0, first + step].softmax(-1)
        torch.testing.assert_close(result.probabilities[step], p, rtol=0, atol=ROUNDING)
    assert not torch.allclose(whole.logits[0, late], plain.logits[0, late], atol=1e-2), "the edge should matter"
    assert roll_out(contender, SOURCE).predicted  # free-running too
    beyond = contender_of("beyond", contender.model, contender.task, (edits.mask_edges(layer, [(16, 0)]),))
    with pytest.raises(EditError, match="no edge"):
        roll_out(beyond, SOURCE)


def test_edges_that_are_there_are_cut_as_ever() -> None:
    mask = torch.ones(1, 3, 5, 5, dtype=torch.bool)
    growing = EdgesSoFar("x", ((1, 2), (4, 4), (7, 0)), False, (2,))
    fixed = edits.SetEdges("x", ((1, 2), (4, 4)), False, (2,))
    assert torch.equal(growing.apply("x", mask), fixed.apply("x", mask))


def test_the_likeliest_tokens_come_first() -> None:
    contender = random_contender("random", "encoder")
    result = roll_out(contender, SOURCE)
    top = result.top(2, 3)
    assert [token for token, _ in top] == result.probabilities[2].argsort(descending=True)[:3].tolist()
    assert [p for _, p in top] == result.probabilities[2].sort(descending=True).values[:3].tolist()
    assert len(result.top(2, 99)) == 8


def test_contenders_of_every_architecture_meet_by_their_labels() -> None:
    contenders = [random_contender(a, a) for a in ARCHITECTURES]
    labels = joint_labels(contenders)
    assert sorted(labels) == sorted({"pad", "end", "start", *"1234567"})
    for contender in contenders:
        assert tuple(labels[i] for i in to_joint(contender, labels)) == contender.task.vocabulary.labels


def test_a_contender_is_loaded_with_its_changes_and_says_how() -> None:
    where = str(CHECKPOINTS / "reverse-decoder")
    sampling = Sampling(temperature=2.0, top_k=5)
    changes = "silence:decoder.1.attn.0,token:1.9"
    loaded = Contender.load(where, "cut", causal=False, changes=changes, sampling=sampling, seed=3)
    assert loaded.edits == (edits.set_causal(False), edits.ablate_head("decoder.1.attn", 0))
    assert (loaded.name, loaded.sampling, loaded.seed) == ("cut", sampling, 3)
    assert loaded.frame([3, 7, 12]).source == (3, 9, 12)
    rollout = roll_out(loaded, [3, 7, 12], forced=True)
    again = eval(rollout[2].recipe, {"xformer": xformer})
    assert torch.equal(again.logits, rollout[2].logits)
    assert (again.asked, again.answer, again.subject.name) == (rollout[2].asked, rollout[2].answer, "cut")
    assert Contender.load(where, "own").recipe == f"xformer.analysis.Contender.load({where!r}, 'own')"
    assert roll_out(random_contender("nowhere", "encoder"), SOURCE)[0].recipe is None


def test_an_ablated_player_is_not_the_original() -> None:
    whole = shipped("reverse-decoder")
    cut = shipped("reverse-decoder", "cut", edits=(edits.ablate_head(LAST["reverse-decoder"], 0),))
    assert roll_out(whole, [3, 7, 12, 9, 1, 5]).is_exact
    assert not roll_out(cut, [3, 7, 12, 9, 1, 5]).is_exact


def test_what_cannot_play_is_told_why() -> None:
    contender = random_contender("random", "encoder")
    with pytest.raises(InputError, match="needs a name"):
        contender_of("", contender.model, contender.task)
    with pytest.raises(InputError, match="reads at most 17"):
        roll_out(contender, [1] * 18)
    with pytest.raises(InputError, match="takes the steps 0 to 4, got 5"):
        roll_out(contender, SOURCE)[5]
    with pytest.raises(InputError, match="takes the steps 0 to 4, got -1"):
        roll_out(contender, SOURCE).top(-1)
    with pytest.raises(InputError, match="being trained"):
        contender_of("busy", contender.model.train(), contender.task)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_forced_under_changes_one_run_says_what_step_by_step_does(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    changes = (edits.ablate_head(layer, 0), edits.zero_positions(), edits.mask_edges(layer, [(3, 1)]))
    contender = random_contender("changed", architecture, edits=changes)
    at_once = roll_out(contender, SOURCE, forced=True)
    monkeypatch.setattr(generation, "looks_back_only", lambda contender: False)
    step_by_step = roll_out(contender, SOURCE, forced=True)
    torch.testing.assert_close(at_once.probabilities, step_by_step.probabilities, rtol=0, atol=ROUNDING)
    assert at_once.read == step_by_step.read
    for one, other in zip(at_once.steps, step_by_step.steps, strict=True):
        assert torch.equal(one.trace().logits, other.trace().logits)


def test_a_lifted_mask_is_played_step_by_step() -> None:
    """One run over the whole answer would show each position the answer that it has to say."""
    assert not looks_back_only(random_contender("open", "decoder", edits=(edits.set_causal(False),)))
    assert not looks_back_only(random_contender("edge", "decoder", edits=(edits.unmask_edges("*", [(0, 1)]),)))
    assert looks_back_only(random_contender("own", "decoder", edits=(edits.set_causal(True),)))


def test_a_text_is_gone_on_with_and_neither_right_nor_wrong() -> None:
    contender = shipped("characters")
    text = contender.task.vocabulary.read("The list of ")
    after, along = roll_out(contender, text), roll_out(contender, text, forced=True)
    assert (len(after), after.answer, after.right, after.ended) == (
        CONTINUATION_LENGTH,
        (),
        (),
        "tokens that were asked for",
    )
    assert [after[step].asked for step in (0, 1)] == [(11,), (12,)]
    assert (len(along), len(along.answer), along.right) == (11, 11, ())
    assert not along.is_exact
    assert not any(one.has_right_answer for one in (after, along))
    torch.testing.assert_close(after[3].probabilities[0], after.probabilities[3], rtol=0, atol=ROUNDING)
