"""Findings about the residual stream are silent where they do not hold."""

from __future__ import annotations

import pandas as pd
import pytest

from pages.residual.pictures import norm_notes, when_ahead, when_decided, who_adds


def frame(last: list[float], right: list[list[bool]]) -> pd.DataFrame:
    """A lens of two steps over some positions: the final probabilities, and what is right at each step."""
    return pd.DataFrame(
        [
            {"depth": d, "point": "ab"[d], "position": p, "token": f"t{p}{ok}", "probability": last[p], "right": ok}
            for d, row in enumerate(right)
            for p, ok in enumerate(row)
        ]
    )


def test_outputs_that_end_right_and_sure_are_decided() -> None:
    note = when_decided(frame([0.9, 0.8, 0.9, 0.2], [[True, False, False, False], [True, True, False, True]]), 20, "")
    assert note.startswith("Of 4 outputs, these are permanently correct: 1 after **a**, 1 after **b**")
    assert "; 1 more, but with less than 50% in the end; 1 ends wrong." in note


@pytest.mark.parametrize("judged", [True, False])
def test_a_model_that_guesses_decides_nothing(judged: bool) -> None:
    note = when_decided(frame([0.06, 0.08], [[False, False], [True, False]]), 20, "", judged=judged)
    right = "right " if judged else ""
    assert (
        note == f"No output ends {right}with 50% or more, so none is decided: the likeliest token gets 7% on average."
    )


def test_of_two_tokens_a_half_is_a_guess() -> None:
    coin = frame([0.52], [[True], [True]])
    assert "is permanently correct" not in when_decided(coin, 3, "")
    assert "is permanently correct after **a**" in when_decided(frame([0.97], [[True], [True]]), 3, "")


def parts(*values: tuple[str, str, int, float]) -> pd.DataFrame:
    rows = [dict(zip(("part", "kind", "head", "contribution"), row, strict=True)) for row in values]
    return pd.DataFrame(rows)


def test_only_parts_that_can_be_ablated_are_offered() -> None:
    token, head = ("token", "embedding", 0, 2.0), ("layer 1 · head 2", "attention", 2, 1.0)
    assert "**token** adds the most (+2.00)" in who_adds(parts(token, head), 3)[0]
    assert "takes away" not in who_adds(parts(token, head), 3)[0]
    assert len(who_adds(parts(token, head), 3)) == 1
    assert "Ablate that head" in who_adds(parts(("token", "embedding", 0, -2.0), head), 3)[1]
    assert who_adds(parts(("token", "embedding", 0, -2.0)), 3) == [
        "At position 3, **token** takes away the most (−2.00)."
    ]
    assert len(who_adds(parts(("token", "embedding", 0, 0.0)), 3)) == 1


def test_lengths_are_news_only_where_they_change() -> None:
    def lengths(*values: float) -> pd.DataFrame:
        return pd.DataFrame(
            [
                {"what": w, "depth": d, "point": "abc"[d], "position": 0, "length": v}
                for w in ("stream", "added")
                for d, v in enumerate(values)
            ]
        )

    assert norm_notes(lengths(1, 1, 1.1), "stream", "pre") == []
    assert norm_notes(lengths(1, 1, 9), "stream", "post") == []
    assert "grows from 1.0 to 9.0" in norm_notes(lengths(1, 1, 9), "stream", "pre")[0]
    assert "shrinks" in norm_notes(lengths(9, 1, 1), "stream", "none")[0]
    assert norm_notes(lengths(9, 1, 1.1), "added", "pre") == []
    assert "**c** adds the most (9.0)" in norm_notes(lengths(1, 1, 9), "added", "pre")[0]


def path(*steps: tuple[int, float]) -> pd.DataFrame:
    """An answer followed through steps a, b, c with its rank and probability."""
    return pd.DataFrame(
        [
            {"point": "abc"[at], "answer": "12", "rank": rank, "answer_probability": p}
            for at, (rank, p) in enumerate(steps)
        ]
    )


def test_headline_says_where_an_answer_leads_and_is_silent_where_it_never_does() -> None:
    assert when_ahead(path((1, 0.3), (2, 0.2), (1, 0.95)), 3, 20) == (
        "Position 3’s answer **12** is ahead for good and certain (≥ 90%) after **c**."
    )
    assert "for good after **b**, certain (≥ 90%) after **c**" in when_ahead(path((2, 0.3), (1, 0.6), (1, 0.95)), 3, 20)
    assert "after **a**, and ends with 60%" in when_ahead(path((1, 0.3), (1, 0.4), (1, 0.6)), 3, 20)
    assert when_ahead(path((1, 0.9), (1, 0.9), (2, 0.4)), 3, 20) == ""
    assert when_ahead(path((1, 0.1), (1, 0.1), (1, 0.1)), 3, 20) == ""  # hardly more than a guess
    assert when_ahead(path((1, 0.5), (1, 0.5), (1, 0.55)), 3, 2) == ""
