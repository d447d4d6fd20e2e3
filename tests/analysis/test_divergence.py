"""Where rollouts part, and how far apart they are: against torch.distributions, a plain loop, and numbers by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests.analysis.duel import LAST, SHIPPED, SOURCE, contender_of, greedy, random_contender, shipped
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis.generation import (
    Rollout,
    divergence_by_step,
    first_divergence,
    kl,
    likeliest_tokens,
    predictions_by_step,
    roll_out,
    same_context,
    total_variation,
)
from xformer.decoding import Sampling
from xformer.errors import InputError
from xformer.viz.generation import pack_rollouts


def two_of(architecture: str, *, forced: bool = False, seeds: tuple[int, int] = (0, 1)) -> list[Rollout]:
    contenders = [random_contender(f"seed {seed}", architecture, seed=seed) for seed in seeds]
    return [roll_out(contender, SOURCE, forced=forced) for contender in contenders]


def test_divergences_are_those_of_torch() -> None:
    draw = torch.Generator().manual_seed(2)
    p, q = (torch.randn(13, 11, generator=draw, dtype=torch.float64).mul(3).softmax(-1) for _ in range(2))
    # double precision, sums of 11 terms below 20 each
    torch.testing.assert_close(kl(p, q), kl_divergence(Categorical(p), Categorical(q)), rtol=1e-12, atol=1e-13)
    brute = torch.tensor([max(sum(r[i] for i in range(11) if r[i] > 0) for r in [row]) for row in (p - q).tolist()])
    torch.testing.assert_close(total_variation(p, q), brute.double(), rtol=0, atol=1e-6)
    assert (kl(p, q) != kl(q, p)).all()
    torch.testing.assert_close(total_variation(p, q), total_variation(q, p), rtol=0, atol=0)


def test_divergences_worked_out_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    assert kl(p, q).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-15)
    assert total_variation(p, q).item() == 0.25
    assert kl(p, torch.tensor([1.0, 0.0, 0.0])).item() == math.inf
    assert kl(torch.tensor([1.0, 0.0, 0.0]), p).item() == pytest.approx(math.log(2), abs=1e-15)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("forced", [False, True])
def test_a_player_never_parts_from_itself(architecture: str, forced: bool) -> None:
    contender = random_contender("one", architecture)
    twin = contender_of("other", contender.model, contender.task)
    rollouts = [roll_out(one, SOURCE, forced=forced) for one in (contender, twin)]
    assert first_divergence(rollouts) is None
    frame = divergence_by_step(rollouts)
    assert len(frame) == len(rollouts[0])
    for column in ("kl", "kl_back", "total_variation"):
        assert frame[column].tolist() == [0.0] * len(frame)  # exactly
    assert frame["same_token"].all()
    assert frame["same_context"].all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("forced", [False, True])
def test_the_first_parting_is_that_of_two_plain_loops(architecture: str, forced: bool) -> None:
    partings = set()
    for seeds in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        rollouts = two_of(architecture, forced=forced, seeds=seeds)
        answer = list(rollouts[0].answer) if forced else None
        one, other = (greedy(one.contender, SOURCE, answer)[0] for one in rollouts)
        expected = next((step for step, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert first_divergence(rollouts) == expected
        partings.add(expected)
    assert partings != {None}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_without_its_head_parts_where_the_loop_says(name: str) -> None:
    whole = shipped(name)
    cut = shipped(name, "cut", edits=(edits.ablate_head(LAST[name], 0),))
    source = [3, 7, 12, 9, 1, 5]
    rollouts = [roll_out(contender, source) for contender in (whole, cut)]
    right, _ = greedy(whole, source)
    step = first_divergence(rollouts)
    assert step is not None
    assert list(rollouts[0].predicted) == right
    assert list(rollouts[1].predicted[:step]) == right[:step]
    assert rollouts[1].predicted[step] != right[step]
    row = predictions_by_step(rollouts).query("step == @step and player == 'cut'").iloc[0]
    assert (row["token"], bool(row["right"])) == (rollouts[1].labels[rollouts[1].predicted[step]], False)
    assert divergence_by_step(rollouts).query("step == @step")["kl"].item() > 0


def test_the_first_parting_may_be_late_and_three_may_play() -> None:
    a, b = two_of("encoder")
    *before, last = a.steps
    late = replace(a, steps=(*before, replace(last, predicted=(last.predicted + 1) % 8)))
    assert first_divergence([a, late]) == len(a) - 1
    assert first_divergence([a, a, late]) == len(a) - 1
    assert first_divergence([a]) is None
    assert first_divergence([a, late, b]) == first_divergence([a, b])


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_after_the_parting_free_players_have_read_different_tokens_and_forced_ones_have_not(architecture: str) -> None:
    free, forced = two_of(architecture, seeds=(2, 3)), two_of(architecture, forced=True, seeds=(2, 3))
    step = first_divergence(free)
    assert step is not None
    frame = divergence_by_step(free)
    assert frame["same_context"].tolist() == [at <= step for at in frame["step"]]
    assert divergence_by_step(forced)["same_context"].all()
    steps = predictions_by_step(free)
    both = steps[steps["step"] < min(map(len, free))]
    assert both["same_context"].tolist() == [at <= step for at in both["step"]]


def test_encoders_share_their_context_while_they_read_one_input() -> None:
    one, other = two_of("encoder")
    assert all(same_context(one, other, step) for step in range(5))
    elsewhere = roll_out(other.contender, [1, 2, 3, 4, 5])
    assert not same_context(one, elsewhere, 0)


def test_vocabularies_meet_by_their_labels() -> None:
    encoder, decoder = random_contender("encoder", "encoder"), random_contender("decoder", "decoder")
    rollouts = [roll_out(contender, SOURCE, forced=True) for contender in (encoder, decoder)]
    assert len(rollouts[0]) == 5  # no end token
    assert len(rollouts[1]) == 6
    frame = divergence_by_step(rollouts)
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    for step, row in frame.iterrows():
        p, q = rollouts[0].probabilities[step].double(), rollouts[1].probabilities[step].double()  # pyright: ignore
        p, q = p / p.sum(), q / q.sum()
        assert row["total_variation"] == pytest.approx(((p - q[:8]).abs().sum() + q[8:].sum()).item() / 2, abs=1e-12)
        assert row["kl"] == pytest.approx((p * (p / q[:8]).log()).sum().item(), abs=1e-10)
        assert row["kl_back"] == math.inf  # the decoder may say "end", the encoder never
    assert all(pair["kl_back"] == [None] * 5 for pair in pack_rollouts(rollouts)["pairs"])
    json.dumps(pack_rollouts(rollouts), allow_nan=False)


def test_the_frames_hold_what_the_plays_do() -> None:
    rollouts = two_of("encoder-decoder")
    frame = predictions_by_step(rollouts)
    assert len(frame) == sum(map(len, rollouts))
    assert frame["step"].is_monotonic_increasing
    for row in frame.to_dict("records"):
        one = next(one for one in rollouts if one.name == row["player"])
        step = row["step"]
        assert row["token"] == one.labels[one.predicted[step]]
        assert row["answer"] == one.labels[one.answer[step]]
        assert row["right"] == (one.predicted[step] == one.answer[step])
        assert row["probability"] == one.probabilities[step, one.predicted[step]].item()
        assert row["answer_probability"] == one.probabilities[step, one.answer[step]].item()
        assert row["drawn"] == 1.0  # greedy
        assert row["entropy"] == one.entropy()[step].item()


def test_the_top_has_every_players_likeliest_tokens_and_the_right_one() -> None:
    rollouts = two_of("decoder", forced=True)
    for step in range(6):
        at = likeliest_tokens(rollouts, step, 2)
        expected = {rollouts[0].labels[rollouts[0].answer[step]]}
        for one in rollouts:
            expected |= {one.labels[token] for token, _ in one.top(step, 2)}
        assert set(at["token"]) == expected
        assert len(at) == 2 * len(expected)
        assert set(at["step"]) == {step}
        assert max(at["probability"].iloc[:2]) == max(at["probability"])  # the likeliest token comes first
        assert set(at[at["right"]]["token"]) == {rollouts[0].labels[rollouts[0].answer[step]]}
        for one in rollouts:
            own = at[at["player"] == one.name]
            assert own[own["predicted"]]["token"].tolist() == [one.labels[one.predicted[step]]]
    with pytest.raises(InputError, match="take the steps 0 to 5, got 6"):
        likeliest_tokens(rollouts, 6, 2)


def test_players_need_different_names() -> None:
    one, _ = two_of("encoder")
    for frame in (predictions_by_step, divergence_by_step, pack_rollouts, partial(likeliest_tokens, step=0)):
        with pytest.raises(InputError, match="different names"):
            frame([one, one])


def test_four_players_of_thirty_two_steps_are_one_small_message() -> None:
    sizes = {"max_len": 80}
    contenders = [
        random_contender(f"player {seed}", "decoder", seed=seed, model=sizes, sampling=Sampling(temperature=1.0))
        for seed in range(4)
    ]
    source = [1 + step % 7 for step in range(31)]
    rollouts = [roll_out(contender, source, forced=True) for contender in contenders]
    assert [len(one) for one in rollouts] == [32] * 4
    message = pack_rollouts(rollouts)
    assert len(json.dumps(message, allow_nan=False, separators=(",", ":"))) < 1_000_000
    assert [len(player["predicted"]) for player in message["players"]] == [32] * 4
    assert len(message["pairs"]) == 6
    for one, sent in zip(rollouts, message["players"], strict=True):
        assert [message["labels"][token] for token in sent["predicted"]] == [
            one.labels[token] for token in one.predicted
        ]
        assert sent["top_probability"][7][0] == pytest.approx(one.probabilities[7].max().item(), abs=1e-6)
