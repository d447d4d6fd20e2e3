"""The Residual screen: its pictures and link, its numbers against the library, and notes only where they hold."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

import xformer
from pages.residual.page import largest_contributions, lead_sentence, norm_notes, when_decided
from tests.pages.conftest import ROOT, Open, complaints, text

PAGE = "pages/residual/page.py"


def specs(app: object) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]  # pyright: ignore


@pytest.mark.parametrize("model", ["characters", "digits"])
def test_the_lens_and_the_norms_open_on_models_with_and_without_right_answers(open_page: Open, model: str) -> None:
    app = open_page(PAGE, model=model)
    assert complaints(app) == []
    assert len(specs(app)) == 2  # the lens, and the path of one answer
    words = {"digits": "The output stays correct", "characters": "these no longer change"}
    assert words[model] in text(app)
    assert ("✓" in text(app)) == (model != "characters")
    assert ("actual next token" in text(app)) == (model == "characters")
    app.segmented_control(key="residual_picture").set_value("norms").run()
    assert complaints(app) == []
    assert len(specs(app)) == 1
    assert "‖x‖, the norm of" in text(app)


def test_a_drawing_has_no_right_answer(open_page: Open) -> None:
    app = open_page(PAGE, model="digits", input="drawn")
    assert "✓" not in text(app)
    assert "no right answer is known here" in text(app)
    assert "stays correct" not in text(app)
    app.segmented_control(key="residual_picture").set_value("parts").run()
    assert not app.exception
    assert "right" not in app.segmented_control(key="residual_goal").label


def test_at_the_last_position_the_top_prediction_is_explained(open_page: Open) -> None:
    app = open_page(PAGE, model="characters", input="the list", picture="parts", pos="7")
    assert complaints(app) == []
    assert "should predict" not in str(app.selectbox(key="residual_pos").options)
    best = xformer.read(ROOT / "checkpoints/characters", "the list").logits[0, -1].max().item()
    assert f"= {best:.4f} in the model" in text(app)


def test_many_positions_are_shown_in_a_window_kept_in_the_link(open_page: Open) -> None:
    numbers = " ".join(str(1 + index % 19) for index in range(60))
    app = open_page(PAGE, model="reverse", input=numbers, picture="norms", **{"from": "24"})
    assert "24 of 60 positions are shown, 24 to 47" in text(app)
    app.select_slider(key="residual_from").set_value(48).run()
    assert not app.exception
    assert "12 of 60 positions are shown, 48 to 59" in text(app)
    assert app.query_params["from"] in ("48", ["48"])


def test_the_parts_on_screen_sum_to_the_models_logit(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse", input="4 9 2 11 5", pos="3", picture="parts")
    logit = xformer.read(ROOT / "checkpoints/reverse", "4 9 2 11 5").logits[0, 3, 9].item()
    found = re.search(r"logit of 9 = ([\d.]+) in the model; the parts sum to ([\d.]+)", text(app))
    assert found is not None
    assert [float(number) for number in found.groups()] == pytest.approx([logit, logit], abs=1e-3)


def test_a_changed_run_is_drawn_next_to_the_original(open_page: Open) -> None:
    app = open_page(PAGE, model="reverse-seq2seq", edits="token:0.5")
    assert len(specs(app)) == 2
    app.segmented_control(key="residual_picture").set_value("norms").run()
    assert len(specs(app)) == 2
    app.segmented_control(key="residual_picture").set_value("parts").run()
    assert complaints(app) == []
    assert len(specs(app)) == 1
    assert "Outlined, the original: " in text(app)


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
