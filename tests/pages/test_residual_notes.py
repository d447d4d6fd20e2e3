"""Notes on the residual stream appear only where they hold."""

from __future__ import annotations

import pandas as pd
import pytest

from pages.residual.pictures import largest_contributions, lead_sentence, norm_notes, when_decided


def frame(last: list[float], right: list[list[bool]]) -> pd.DataFrame:
    """Build a lens of two steps: the final probability of each position, and whether each is right at each step."""
    return pd.DataFrame(
        [
            {"depth": d, "point": "ab"[d], "position": p, "token": f"t{p}{ok}", "probability": last[p], "right": ok}
            for d, row in enumerate(right)
            for p, ok in enumerate(row)
        ]
    )


def test_outputs_that_end_correct_and_likely_are_decided() -> None:
    note = when_decided(frame([0.9, 0.8, 0.9, 0.2], [[True, False, False, False], [True, True, False, True]]), 20, "")
    assert note.startswith("Of 4 outputs, these stay correct: 1 after **a**, 1 after **b**")
    assert "; 1 more, ending below 50%; 1 ends wrong." in note


@pytest.mark.parametrize("judged", [True, False])
def test_a_model_that_guesses_decides_nothing(judged: bool) -> None:
    note = when_decided(frame([0.06, 0.08], [[False, False], [True, False]]), 20, "", judged=judged)
    found = "is correct with" if judged else "has"
    assert note.startswith(f"No final prediction {found} a probability of 50% or more, so none is decided: ")
    assert note.endswith(": the top token gets 7% on average.")


def test_a_probability_near_chance_is_not_decided() -> None:
    coin = frame([0.52], [[True], [True]])
    assert "stays correct" not in when_decided(coin, 3, "")
    assert "stays correct after **a**" in when_decided(frame([0.97], [[True], [True]]), 3, "")


def parts(*values: tuple[str, str, int, float]) -> pd.DataFrame:
    rows = [dict(zip(("part", "kind", "head", "contribution"), row, strict=True)) for row in values]
    return pd.DataFrame(rows)


def test_ablation_is_suggested_only_for_heads_and_layers() -> None:
    token, head = ("token", "embedding", 0, 2.0), ("layer 1 · head 2", "attention", 2, 1.0)
    assert "**token** adds the most (+2.00)" in largest_contributions(parts(token, head), 3)[0]
    assert "subtracts" not in largest_contributions(parts(token, head), 3)[0]
    assert len(largest_contributions(parts(token, head), 3)) == 1
    assert "Ablate that head" in largest_contributions(parts(("token", "embedding", 0, -2.0), head), 3)[1]
    [note] = largest_contributions(parts(("token", "embedding", 0, -2.0)), 3)
    assert note == "At position 3, **token** subtracts the most (−2.00)."
    assert len(largest_contributions(parts(("token", "embedding", 0, 0.0)), 3)) == 1


def test_norms_are_noted_only_where_they_change() -> None:
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
    assert "**c** adds the longest vectors (9.0)" in norm_notes(lengths(1, 1, 9), "added", "pre")[0]


def path(*steps: tuple[int, float]) -> pd.DataFrame:
    """Build the path of an answer through steps a, b, c: its rank and probability."""
    found = pd.DataFrame(steps, columns=["rank", "answer_probability"])
    return found.assign(point=list("abc")[: len(steps)], answer="12")


def test_the_headline_states_where_an_answer_takes_the_lead_or_is_empty() -> None:
    assert lead_sentence(path((1, 0.3), (2, 0.2), (1, 0.95)), 3, 20) == (
        "At position 3, **12** stays ahead and certain (≥ 90%) after **c**."
    )
    note = lead_sentence(path((2, 0.3), (1, 0.6), (1, 0.95)), 3, 20)
    assert "stays ahead after **b** and certain (≥ 90%) after **c**" in note
    assert "after **a**, ending at 60%" in lead_sentence(path((1, 0.3), (1, 0.4), (1, 0.6)), 3, 20)
    assert lead_sentence(path((1, 0.9), (1, 0.9), (2, 0.4)), 3, 20) == ""
    assert lead_sentence(path((1, 0.1), (1, 0.1), (1, 0.1)), 3, 20) == ""  # hardly above chance
    assert lead_sentence(path((1, 0.5), (1, 0.5), (1, 0.55)), 3, 2) == ""
