"""How a step was decided: the rows and differences are those of the runs, and what cannot be compared says so."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from tests.analysis.duel import LAST, SHIPPED, SOURCE, example_for, random_player, shipped
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis.deciding import MEAN, Moment, cells, lens_at, lens_parting, look, look_difference, moment, unlike
from xformer.analysis.parting import first_parting
from xformer.analysis.players import Player, play
from xformer.errors import EditError, InputError
from xformer.names import layer_title


def moments(architecture: str, step: int = 2) -> tuple[Moment, Moment]:
    players = [random_player(f"seed {seed}", architecture, seed=seed) for seed in (0, 1)]
    one, other = (moment(play(player, example_for(player), forced=True), step) for player in players)
    return one, other


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_look_is_the_row_of_the_deciding_position(architecture: str) -> None:
    at, _ = moments(architecture)
    frame = look(at)
    stack = "encoder" if architecture == "encoder" else "decoder"
    kinds = ("self_attn", "cross_attn") if architecture == "encoder-decoder" else ("attn",)
    expected = [f"{stack}.{layer}.{kind}" for layer in range(2) for kind in kinds]
    assert list(dict.fromkeys(frame["layer"])) == expected
    for path in expected:
        pattern, mask = at.trace[f"{path}.pattern"][0], at.trace[f"{path}.mask"][0]
        for head in range(3):
            rows = frame[(frame["layer"] == path) & (frame["head"] == head)]
            assert rows["weight"].tolist() == pattern[head, at.position].tolist()
            assert rows["allowed"].tolist() == mask[head, at.position].tolist()
            tokens = at.trace.tokens if architecture != "encoder-decoder" or "cross" in path else at.trace.target
            assert tokens is not None
            assert rows["token"].tolist() == [at.play.labels[token] for token in tokens[0].tolist()]
            assert rows["weight"].sum() == pytest.approx(1, abs=1e-6)
        mean = frame[(frame["layer"] == path) & (frame["head"] == MEAN)]
        by_hand = [sum(pattern[head, at.position, key].item() for head in range(3)) / 3 for key in range(len(mean))]
        assert mean["weight"].tolist() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_differences_are_second_less_first(architecture: str) -> None:
    one, other = moments(architecture)
    both = look_difference(one, other)
    assert both["one"].tolist() == look(one)["weight"].tolist()
    assert both["other"].tolist() == look(other)["weight"].tolist()
    assert both["difference"].tolist() == (look(other)["weight"] - look(one)["weight"]).tolist()
    assert both["difference"].abs().max() > 0.05
    for path in one.attention_layers():
        for head in (0, 2, MEAN):
            frame = cells(one, other, path, head)
            a, b = one.pattern(path, head), other.pattern(path, head)
            assert len(frame) == a.numel()
            for row in frame.to_dict("records"):
                cell = row["query"], row["key"]
                assert row["one"] == pytest.approx(a[cell].item(), abs=1e-9)
                assert row["difference"] == pytest.approx((b[cell] - a[cell]).item(), abs=1e-6)
                assert row["decides"] == (row["query"] == one.position)
                assert row["one_allowed"] == bool(one.trace[f"{path}.mask"][0, 0][cell])
                assert row["key_token"] == one.keys(path)[row["key"]]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_against_itself_nothing_differs(architecture: str) -> None:
    one, _ = moments(architecture)
    twin = Player("twin", one.play.player.model, one.play.player.task)
    other = moment(play(twin, example_for(twin), forced=True), one.step)
    assert look_difference(one, other)["difference"].tolist() == [0.0] * len(look(one))
    assert cells(one, other, one.attention_layers()[0])["difference"].abs().max() == 0.0
    assert lens_parting(lens_at(one), lens_at(other)) is None


def test_tokens_that_differ_are_both_named() -> None:
    player = random_player("one", "encoder")
    other = Player("other", player.model, player.task)
    a = moment(play(player, player.task.example([1, 2, 3])), 0)
    b = moment(play(other, player.task.example([1, 7, 3])), 0)
    assert look_difference(a, b)["token"].tolist()[:3] == ["1", "2 / 7", "3"]


def test_what_cannot_be_laid_side_by_side_says_why() -> None:
    encoder, other = moments("encoder")
    decoder, _ = moments("decoder")
    heads = random_player("five heads", "encoder", model={"n_heads": 5})
    wide = moment(play(heads, example_for(heads)), 2)
    longer = moment(play(encoder.play.player, encoder.play.player.task.example([1, 2, 3, 4, 5, 6])), 2)
    later = moment(encoder.play, 3)
    assert unlike(encoder, other) is None
    for one, two, why in (
        (
            encoder,
            decoder,
            r"decides in encoder\.0\.attn, encoder\.1\.attn .* compare two models of the same architecture",
        ),
        (encoder, wide, r"3 heads of 5 × 5 and five heads 5 heads of 5 × 5"),
        (encoder, longer, r"3 heads of 5 × 5 and seed 0 3 heads of 6 × 6"),
        (encoder, later, r"at position 2 and seed 0 at 3"),
    ):
        assert unlike(one, two)
        with pytest.raises(InputError, match=why):
            look_difference(one, two)
        with pytest.raises(InputError, match=why):
            cells(one, two, "encoder.0.attn")
    with pytest.raises(EditError, match="has heads 0 to 2 and -1 for their mean, got 3"):
        cells(encoder, other, "encoder.0.attn", 3)


def frame_of(*tokens: str) -> pd.DataFrame:
    return pd.DataFrame({"depth": range(len(tokens)), "point": [f"p{i}" for i in range(len(tokens))], "token": tokens})


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("abc", "abc", None), ("abc", "abd", (2, "p2")), ("abc", "dbe", (2, "p2")), ("abc", "def", (0, "p0")),
     ("abc", "axd", (1, "p1")), ("abc", "dec", None)],
)  # fmt: skip
def test_lenses_part_where_they_differ_for_good(one: str, other: str, expected: tuple[int, str] | None) -> None:
    assert lens_parting(frame_of(*one), frame_of(*other)) == expected


def test_lenses_of_other_depths_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="pass 2 and 3 points"):
        lens_parting(frame_of("a", "b"), frame_of("a", "b", "c"))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_lens_ends_in_what_was_said_and_parts_at_the_silenced_layer(name: str) -> None:
    whole, cut = shipped(name), shipped(name, "cut", edits=(edits.ablate_head(LAST[name], 0),))
    plays = [play(player, example_for(whole, [3, 7, 12, 9, 1, 5])) for player in (whole, cut)]
    step = first_parting(plays)
    assert step is not None
    frames = []
    for one in plays:
        at = moment(one, step)
        frames.append(frame := lens_at(at))
        assert frame["token"].iloc[-1] == one.labels[one.said[step]]
        assert frame["probability"].iloc[-1] == pytest.approx(one.probability(step), abs=1e-5)
        assert set(frame["position"]) == {at.position}
        assert frame["right"].iloc[-1] == one.right[step]
    parted = lens_parting(frames[0], frames[1])
    assert parted is not None
    is_pair = "seq2seq" in name
    point = layer_title(LAST[name], is_pair=is_pair) + ("" if is_pair else " · attention")
    earliest = frames[0]["point"].tolist().index(point)
    assert parted[0] >= earliest  # before the silenced head the two are the same
    assert frames[0]["token"][:earliest].tolist() == frames[1]["token"][:earliest].tolist()


def test_a_moment_is_one_run() -> None:
    at, _ = moments("decoder", 3)
    assert at.position == len(SOURCE) + 3
    assert torch.equal(at.logits, at.trace.logits[0, -1])
