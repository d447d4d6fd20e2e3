"""Where plays part, and how far apart they are: against torch.distributions, a plain loop, and numbers worked out by hand."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests.analysis.duel import LAST, SHIPPED, SOURCE, example_for, greedy, random_player, shipped
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis.parting import (
    first_parting,
    kl,
    pair_frame,
    payload,
    same_context,
    step_frame,
    top_frame,
    total_variation,
)
from xformer.analysis.players import Play, Player, play
from xformer.decoding import Sampling
from xformer.errors import InputError


def two_of(architecture: str, *, forced: bool = False, seeds: tuple[int, int] = (0, 1)) -> list[Play]:
    players = [random_player(f"seed {seed}", architecture, seed=seed) for seed in seeds]
    return [play(player, example_for(player), forced=forced) for player in players]


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
    player = random_player("one", architecture)
    twin = Player("other", player.model, player.task)
    plays = [play(one, example_for(player), forced=forced) for one in (player, twin)]
    assert first_parting(plays) is None
    frame = pair_frame(plays)
    assert len(frame) == len(plays[0])
    for column in ("kl", "kl_back", "total_variation"):
        assert frame[column].tolist() == [0.0] * len(frame)  # exactly
    assert frame["same_token"].all()
    assert frame["same_context"].all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("forced", [False, True])
def test_the_first_parting_is_that_of_two_plain_loops(architecture: str, forced: bool) -> None:
    partings = set()
    for seeds in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        plays = two_of(architecture, forced=forced, seeds=seeds)
        answer = list(plays[0].answer) if forced else None
        one, other = (greedy(one.player, SOURCE, answer)[0] for one in plays)
        expected = next((step for step, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert first_parting(plays) == expected
        partings.add(expected)
    assert partings != {None}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_without_its_head_parts_where_the_loop_says(name: str) -> None:
    whole = shipped(name)
    cut = shipped(name, "cut", edits=(edits.ablate_head(LAST[name], 0),))
    source = [3, 7, 12, 9, 1, 5]
    plays = [play(player, example_for(whole, source)) for player in (whole, cut)]
    right, _ = greedy(whole, source)
    step = first_parting(plays)
    assert step is not None
    assert list(plays[0].said) == right
    assert list(plays[1].said[:step]) == right[:step]
    assert plays[1].said[step] != right[step]
    row = step_frame(plays).query("step == @step and player == 'cut'").iloc[0]
    assert (row["token"], bool(row["right"])) == (plays[1].labels[plays[1].said[step]], False)
    assert pair_frame(plays).query("step == @step")["kl"].item() > 0


def test_the_first_parting_may_be_late_and_three_may_play() -> None:
    a, b = two_of("encoder")
    late = Play(**{**a.__dict__, "said": (*a.said[:-1], (a.said[-1] + 1) % 8)})
    assert first_parting([a, late]) == len(a) - 1
    assert first_parting([a, a, late]) == len(a) - 1
    assert first_parting([a]) is None
    assert first_parting([a, late, b]) == first_parting([a, b])


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_after_the_parting_free_players_have_read_different_tokens_and_forced_ones_have_not(architecture: str) -> None:
    free, forced = two_of(architecture, seeds=(2, 3)), two_of(architecture, forced=True, seeds=(2, 3))
    step = first_parting(free)
    assert step is not None
    frame = pair_frame(free)
    assert frame["same_context"].tolist() == [at <= step for at in frame["step"]]
    assert pair_frame(forced)["same_context"].all()
    steps = step_frame(free)
    both = steps[steps["step"] < min(map(len, free))]
    assert both["same_context"].tolist() == [at <= step for at in both["step"]]


def test_encoders_share_their_context_while_they_read_one_input() -> None:
    one, other = two_of("encoder")
    assert all(same_context(one, other, step) for step in range(5))
    elsewhere = play(other.player, other.player.task.example([1, 2, 3, 4, 5]))
    assert not same_context(one, elsewhere, 0)


def test_vocabularies_meet_by_their_labels() -> None:
    encoder, decoder = random_player("encoder", "encoder"), random_player("decoder", "decoder")
    plays = [play(player, example_for(player), forced=True) for player in (encoder, decoder)]
    assert len(plays[0]) == 5  # no end token
    assert len(plays[1]) == 6
    frame = pair_frame(plays)
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    for step, row in frame.iterrows():
        p, q = plays[0].probabilities[step].double(), plays[1].probabilities[step].double()  # pyright: ignore
        p, q = p / p.sum(), q / q.sum()
        assert row["total_variation"] == pytest.approx(((p - q[:8]).abs().sum() + q[8:].sum()).item() / 2, abs=1e-12)
        assert row["kl"] == pytest.approx((p * (p / q[:8]).log()).sum().item(), abs=1e-10)
        assert row["kl_back"] == math.inf  # the decoder may say "end", the encoder never
    assert all(pair["kl_back"] == [None] * 5 for pair in payload(plays)["pairs"])
    json.dumps(payload(plays), allow_nan=False)


def test_the_frames_hold_what_the_plays_do() -> None:
    plays = two_of("encoder-decoder")
    frame = step_frame(plays)
    assert len(frame) == sum(map(len, plays))
    assert frame["step"].is_monotonic_increasing
    for row in frame.to_dict("records"):
        one = next(one for one in plays if one.player.name == row["player"])
        step = row["step"]
        assert row["token"] == one.labels[one.said[step]]
        assert row["answer"] == one.labels[one.answer[step]]
        assert row["right"] == (one.said[step] == one.answer[step])
        assert row["probability"] == one.probabilities[step, one.said[step]].item()
        assert row["answer_probability"] == one.probabilities[step, one.answer[step]].item()
        assert row["drawn"] == 1.0  # greedy
        assert row["entropy"] == one.entropy()[step].item()


def test_the_top_has_every_players_likeliest_tokens_and_the_right_one() -> None:
    plays = two_of("decoder", forced=True)
    frame = top_frame(plays, 2)
    for step in range(6):
        at = frame[frame["step"] == step]
        expected = {plays[0].labels[plays[0].answer[step]]}
        for one in plays:
            expected |= {one.labels[token] for token, _ in one.top(step, 2)}
        assert set(at["token"]) == expected
        assert len(at) == 2 * len(expected)
        assert max(at["probability"].iloc[:2]) == max(at["probability"])  # the likeliest token comes first
        assert set(at[at["right"]]["token"]) == {plays[0].labels[plays[0].answer[step]]}
        for one in plays:
            own = at[at["player"] == one.player.name]
            assert own[own["said"]]["token"].tolist() == [one.labels[one.said[step]]]
    assert frame[frame["step"] == 3].reset_index(drop=True).equals(top_frame(plays, 2, [3]))
    with pytest.raises(InputError, match="take the steps 0 to 5, got 6"):
        top_frame(plays, 2, [6])


def test_players_need_different_names() -> None:
    one, _ = two_of("encoder")
    for frame in (step_frame, pair_frame, payload, top_frame):
        with pytest.raises(InputError, match="different names"):
            frame([one, one])


def test_four_players_of_thirty_two_steps_are_one_small_message() -> None:
    sizes = {"max_len": 80}
    players = [
        random_player(f"player {seed}", "decoder", seed=seed, model=sizes, sampling=Sampling(temperature=1.0))
        for seed in range(4)
    ]
    source = [1 + step % 7 for step in range(31)]
    plays = [play(player, example_for(player, source), forced=True) for player in players]
    assert [len(one) for one in plays] == [32] * 4
    message = payload(plays)
    assert len(json.dumps(message, allow_nan=False, separators=(",", ":"))) < 1_000_000
    assert [len(player["said"]) for player in message["players"]] == [32] * 4
    assert len(message["pairs"]) == 6
    for one, sent in zip(plays, message["players"], strict=True):
        assert [message["labels"][token] for token in sent["said"]] == [one.labels[token] for token in one.said]
        assert sent["top_probability"][7][0] == pytest.approx(one.probabilities[7].max().item(), abs=1e-6)
