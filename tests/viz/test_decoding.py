"""The charts of a comparison show the numbers of their frames, on fixed scales, told apart by more than colour."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.analysis.duel import example_for, random_player
from tests.viz.test_theme import SEEN, as_seen, nearest
from xformer import edits
from xformer.analysis.agreement import agreement
from xformer.analysis.deciding import cells, lens_at, lens_parting, look, look_difference, moment
from xformer.analysis.parting import first_parting, pair_frame, step_frame, top_frame
from xformer.analysis.patching import patching, patching_both_ways
from xformer.analysis.players import Player, play
from xformer.decoding import Sampling
from xformer.edits import zero_positions
from xformer.viz import theme
from xformer.viz.agreement import confusion_chart, share_chart
from xformer.viz.deciding import DECIDES, difference_map, lens_lanes, look_chart, weight_map
from xformer.viz.decoding import SAYS, pairs_chart, steps_chart, top_chart
from xformer.viz.patching import patching_chart

DARK = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
PLAYERS = [random_player(f"seed {seed}", "decoder", seed=seed) for seed in (2, 3)]
PLAYERS.append(Player('hot "one"', PLAYERS[0].model, PLAYERS[0].task, sampling=Sampling(temperature=3.0)))
PLAYS = [play(player, example_for(player)) for player in PLAYERS]
STEP, LEAST = first_parting(PLAYS[:2]), 0.15
assert STEP is not None
MOMENTS = [moment(one, STEP) for one in PLAYS[:2]]
CHANGED = Player("changed", PLAYERS[0].model, PLAYERS[0].task, (zero_positions(),))
TWINS = [PLAYS[0], play(CHANGED, example_for(CHANGED))]
CHANGES_AT = first_parting(TWINS)
assert CHANGES_AT is not None
PATCHED = [moment(one, CHANGES_AT) for one in TWINS]
*_, COUNTED = agreement(PLAYERS[:2], samples=50)


def rows(chart: Any) -> list[dict[str, Any]]:
    """Every row of every data set of a chart, as the browser gets it."""
    return [row for data in chart.to_dict()["datasets"].values() for row in data]


def found(value: Any, key: str) -> list[Any]:
    """Every value of a key, wherever it stands in a specification."""
    if isinstance(value, dict):
        return ([value[key]] if key in value else []) + [hit for inner in value.values() for hit in found(inner, key)]
    return [hit for inner in value for hit in found(inner, key)] if isinstance(value, list) else []


def every_chart(dark: bool) -> list[Any]:
    cut, both = cells(*MOMENTS, "decoder.1.attn", 2), look_difference(*MOMENTS)
    lenses = {at.name: lens_at(at) for at in MOMENTS}
    return [
        top_chart(top_frame(PLAYS, 4, [STEP]), dark=dark),
        top_chart(top_frame(PLAYS, 4, [STEP]), dark=dark, drawn=True),
        *(steps_chart(step_frame(PLAYS), what, STEP, dark=dark) for what in ("probability", "entropy", "drawn")),
        *(pairs_chart(pair_frame(PLAYS), what, STEP, dark=dark) for what in ("kl", "total_variation")),
        weight_map(cut, "one", dark=dark),
        difference_map(cut, dark=dark),
        look_chart(look(MOMENTS[0]), dark=dark),
        look_chart(both, field="difference", dark=dark),
        lens_lanes(lenses, lens_parting(*lenses.values()), dark=dark),
        patching_chart(patching(*PATCHED), dark=dark),
        share_chart(COUNTED.by_position(), "position", "token", dark=dark),
        share_chart(COUNTED.by_length(), "length", "exact", dark=dark),
        confusion_chart(COUNTED.confusion(), "seed 2", COUNTED.labels, dark=dark),
    ]


@DARK
def test_every_chart_names_its_axes_and_tells_its_numbers(dark: bool) -> None:
    for chart in every_chart(dark):
        spec = chart.to_dict()  # validated against Vega-Lite's schema
        for axis in ("x", "y"):
            titles = [channel.get("title") for channel in found(spec, axis) if isinstance(channel, dict)]
            assert any(titles), f"{axis} has no title"
        assert found(spec, "tooltip")
        assert len(str(spec)) < 400_000


@DARK
def test_bars_are_the_probabilities_of_all_players_on_one_scale(dark: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.viz.decoding.LEAST", LEAST)  # so high that a token of these players is left out
    frame = top_frame(PLAYS, 4, [STEP])
    chart = top_chart(frame, dark=dark)
    shown = {(row["player"], row["token"]): row for row in rows(chart)}
    assert 0 < len({token for _, token in shown}) < frame["token"].nunique()
    for row in frame.to_dict("records"):
        others = frame[frame["token"] == row["token"]]
        if not (others["said"].any() or others["right"].any() or others["probability"].max() >= LEAST):
            assert (row["player"], row["token"]) not in shown
            continue
        bar = shown[row["player"], row["token"]]
        assert bar["probability"] == row["probability"]
        assert (SAYS in bar["shown"]) == row["said"]
        assert bar["place"].endswith(theme.RIGHT.mark) == row["right"]
    assert [row["player"] for row in shown.values() if SAYS in row["shown"]]
    spec = chart.to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale == {"domain": [p.name for p in PLAYERS], "range": theme.player_hues(3, dark)}
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"][0] == 0
    with pytest.raises(ValueError, match="show one step"):
        top_chart(top_frame(PLAYS, 4), dark=dark)


@DARK
@pytest.mark.parametrize("what", ["probability", "answer_probability", "drawn", "entropy"])
def test_lines_are_the_frame_with_the_parting_marked(dark: bool, what: Any) -> None:
    frame = step_frame(PLAYS)
    chart = steps_chart(frame, what, STEP, dark=dark)
    shown = {(row["player"], row["step"]): row for row in rows(chart) if "player" in row}
    assert len(shown) == len(frame)
    for row in frame.to_dict("records"):
        point = shown[row["player"], row["step"]]
        assert point[what] == row[what]
        assert point["place"] == f"{row['step']} · {row['answer']}"
        assert point["verdict"] == ("right" if row["right"] else "wrong")
    notes = [row for row in rows(chart) if row.get("note") == "they part here"]
    assert [note["place"] for note in notes] == [shown["seed 2", STEP]["place"]]
    grey = {row["place"] for row in rows(chart) if row.get("note") == "they have read different tokens"}
    assert grey == {row["place"] for row in shown.values() if not row["same_context"]}
    assert grey
    spec = chart.to_dict()
    if what != "entropy":
        assert [scale["domain"] for scale in found(spec, "scale") if scale and scale.get("domain") == [0, 1]]
    widths = list(dict.fromkeys((row["player"], row["width"]) for row in shown.values()))
    assert [name for name, _ in widths] == [player.name for player in PLAYERS]  # drawn in this order, …
    assert [width for _, width in widths] == [9.0, 5.5, 3.0]  # … so that equal lines do not hide one another
    assert not [row for row in rows(steps_chart(frame, what, None, dark=dark)) if row.get("note") == "they part here"]


def test_an_infinite_divergence_is_a_gap() -> None:
    frame = pair_frame(PLAYS[:2])
    frame.loc[1, "kl"] = float("inf")
    shown = {row["step"]: row["shown"] for row in rows(pairs_chart(frame, "kl", STEP, dark=False)) if "pair" in row}
    assert shown[1] is None
    assert shown[0] == frame["kl"][0]
    assert "Infinity" not in pairs_chart(frame, "kl", STEP, dark=False).to_json()


@DARK
def test_maps_have_fixed_scales_and_masked_cells_are_grey(dark: bool) -> None:
    frame = cells(*MOMENTS, "decoder.0.attn", 1)
    for chart, domain in (
        (weight_map(frame, "one", dark=dark), (0, 1)),
        (weight_map(frame, "other", dark=dark), (0, 1)),
        (difference_map(frame, dark=dark), (-1, 1)),
        (difference_map(frame, dark=dark, limit=0.25), (-0.25, 0.25)),
    ):
        seen, hidden = chart.to_dict()["layer"]
        scale = seen["encoding"]["color"]["scale"]
        assert (scale["domain"][0], scale["domain"][-1]) == domain
        assert scale["domain"][len(scale["domain"]) // 2] == pytest.approx(sum(domain) / 2)
        assert hidden["mark"]["color"] == theme.pick(theme.MASKED, dark)
    cut = [row for row in rows(difference_map(frame, dark=dark)) if row["query"].startswith(DECIDES)]
    assert [row["difference"] for row in cut] == frame[frame["decides"]]["difference"].tolist()
    assert len({row["query"] for row in cut}) == 1


def test_looks_of_other_tokens_are_not_mixed() -> None:
    pair = random_player("pair", "encoder-decoder")
    frame = look(moment(play(pair, example_for(pair), forced=True), 2))
    with pytest.raises(ValueError, match="one by one"):
        look_chart(frame, dark=False)
    cross = frame[frame["layer"].str.endswith("cross_attn")]
    shown = rows(look_chart(cross, dark=False))
    assert [row["weight"] for row in shown] == cross["weight"].tolist()
    assert {row["row"] for row in shown} >= {"decoder 1 · cross · head 1", "decoder 2 · cross · mean"}


@DARK
def test_lanes_say_the_likeliest_tokens_and_where_they_part(dark: bool) -> None:
    frames = {at.name: lens_at(at) for at in MOMENTS}
    parted = lens_parting(*frames.values())
    assert parted is not None
    chart = lens_lanes(frames, parted, dark=dark)
    shown = {(row["player"], row["depth"]): row for row in rows(chart) if "player" in row}
    for name, frame in frames.items():
        for row in frame.to_dict("records"):
            says = f"{row['token']} ✓" if row["right"] else row["token"]
            assert shown[name, row["depth"]]["says"] == says
            assert shown[name, row["depth"]]["probability"] == row["probability"]
    assert [row["point"] for row in rows(chart) if "note" in row] == [parted[1]]
    assert not [row for row in rows(lens_lanes(frames, None, dark=dark)) if "note" in row]


@DARK
def test_patches_are_sorted_bars_in_the_hues_of_their_heads(dark: bool) -> None:
    frame = patching(*PATCHED)
    shown = [row for row in rows(patching_chart(frame, dark=dark, most=7)) if "part" in row]
    assert [row["restored"] for row in shown] == frame["restored"].head(7).tolist()
    for row in shown:
        if row["head"]:
            assert row["hue"] == theme.head_hue(row["head"] - 1, dark)
        assert ("⇒" in row["text"]) == row["turns"]
    assert any(row["turns"] for row in shown)
    with pytest.raises(ValueError, match="show one direction"):
        patching_chart(patching_both_ways(*PATCHED), dark=dark)


@DARK
def test_shares_carry_their_intervals(dark: bool) -> None:
    table = COUNTED.by_position()
    shown = rows(share_chart(table, "position", "exact", dark=dark))
    expected = table[table["measure"] == "exact"]
    assert [(row["low"], row["share"], row["high"]) for row in shown] == list(
        zip(expected["low"], expected["share"], expected["high"], strict=True)
    )
    band = share_chart(table, "position", "exact", dark=dark).to_dict()["layer"][0]
    assert (band["mark"]["type"], band["encoding"]["y"]["field"], band["encoding"]["y2"]["field"]) == (
        "area",
        "low",
        "high",
    )
    assert band["encoding"]["y"]["scale"]["domain"] == [0, 1]


def test_confusions_are_those_of_one_player_in_the_order_of_the_tokens() -> None:
    table = COUNTED.confusion()
    chart = confusion_chart(table, "seed 3", COUNTED.labels, dark=False)
    shown = [row for row in rows(chart) if "count" in row]
    expected = table[table["player"] == "seed 3"]
    assert [row["count"] for row in shown] == expected["count"].tolist()
    order = chart.to_dict()["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert order == [label for label in COUNTED.labels if label in set(expected["right"]) | set(expected["said"])]


def test_right_tokens_that_differ_between_players_are_left_out_of_the_axis() -> None:
    frame = step_frame([PLAYS[0]])
    twice = pd.concat([frame, frame.assign(player="other", answer="6")])
    shown = {
        row["step"]: row["place"] for row in rows(steps_chart(twice, "entropy", None, dark=False)) if "step" in row
    }
    assert shown[0] == "0"


def test_edited_players_are_drawn_like_any_other() -> None:
    cut = Player("cut", PLAYERS[0].model, PLAYERS[0].task, (edits.ablate_head("decoder.0.attn", 1),))
    plays = [PLAYS[0], play(cut, example_for(cut))]
    assert {row["player"] for row in rows(steps_chart(step_frame(plays), "entropy", 0, dark=True)) if "player" in row} == {
        "seed 2", "cut"
    }  # fmt: skip


@DARK
@pytest.mark.parametrize("how", list(SEEN))
def test_players_are_told_apart_from_each_other_and_from_the_first_heads(dark: bool, how: str) -> None:
    players, heads = theme.player_hues(4, dark), theme.head_hues(4, dark)
    assert nearest(players, how) >= 0.12
    apart = [as_seen(player, how) - as_seen(head, how) for player in players for head in heads]
    assert min((difference @ difference) ** 0.5 for difference in apart) >= 0.075
    assert all(theme.contrast(player, theme.pick(theme.BACKGROUND, dark)) >= 3 for player in players)


def test_players_start_over_after_four() -> None:
    assert theme.player_hues(5, True)[4] == theme.player_hues(1, True)[0] == theme.PLAYER_HUES[0][1]
