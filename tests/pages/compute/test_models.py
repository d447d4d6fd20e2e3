"""Runs as models in the sidebar: a link opens a step of a run, and a missing or damaged model shows one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages.compute import models
from tests.pages.conftest import Open, complaints, with_weights
from tests.pages.runs.test_page import add
from xformer.files import snapshot_file
from xformer.formatting import percent
from xformer.training.card import to_file
from xformer.training.run_store import RunStore

ATTENTION = "pages/attention/page.py"


def test_a_run_without_a_step_means_its_latest_and_is_listed_by_name(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run, twin = with_weights(store, "mine"), with_weights(store, "mine")
    app = open_page(ATTENTION, model=run)
    assert app.sidebar.select_slider(key="model_step").value == 12
    assert app.query_params["model"] == f"{run}@12"
    options = app.sidebar.selectbox(key="model").options
    assert options[-2:] == [f"▸ mine · {twin[:4]}", f"▸ mine · {run[:4]}"]
    assert options[0] == "reverse-small"


def test_home_shows_the_scores_reported_at_the_chosen_step(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "mine")
    row = next(row for row in store.rows(run) if row["step"] == 5)
    app = open_page(model=f"{run}@8", more="training")
    tiles = {element.label: element.value for element in app.metric}
    assert tiles["Exact match at step 5"] == percent(row["held_out_exact_match"])
    assert tiles["Training steps"] == "8"
    store.change(run, figures='{"loss": 1, "token_accuracy": 1, "exact_match": 0.125, "samples": 7, "seed": 3}')
    store.rename(run, "yours")
    app = open_page(model=f"{run}@12", more="training")
    tiles = {element.label: element.value for element in app.metric}
    assert (tiles["Exact match"], tiles["Unseen inputs"]) == ("12.50%", "7")
    assert any("Step 12 of the run “yours”." in element.value for element in app.text)
    app = open_page(model=f"{run}@0", more="training")
    assert any("The model had not been scored" in element.value for element in app.caption)


def test_a_model_that_cannot_be_opened_shows_one_message(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run, empty = with_weights(store, "mine"), add(store, "too early", state="stopped")
    store.delete(evil := with_weights(store, "![x](evil)"))
    for link, words in (
        ("deadbeef@4", "There is no run 'deadbeef'; it may have been deleted. The default model is shown."),
        (f"{empty}@4", "The run “too early” is stopped and has no weights yet. The default model is shown."),
        (evil, "The run “![x](evil)” was deleted. The default model is shown."),
        (f"{run}@7", "The run “mine” has no weights of step 7; it has those of 4 others, up to step 12. The"),
        (f"{run}@999999999999", "The link asks for a model that does not exist here"),
    ):
        app = open_page(ATTENTION, model=link)
        [shown_text] = complaints(app)
        assert words in shown_text
        assert "![x](" not in app.warning[0].value
        assert app.sidebar.selectbox(key="model").value == "reverse-small"
        assert models.resolved(link) is None


def test_a_model_is_found_by_a_guessed_name(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("SmolLM2-135M-Instruct", "distilgpt2", "distilbert")
    monkeypatch.setattr(models, "external_titles", lambda: {f"hf:{title}": title for title in there})
    for name in ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "hf:smollm2-135m-instruct"):
        assert models.resolved(name) == "hf:SmolLM2-135M-Instruct"
    assert models.resolved("reverse_small") == "reverse-small"
    assert [models.resolved(name) for name in ("distil", "", "-")] == [None] * 3  # ambiguous: two start like this


def test_a_link_with_part_of_a_name_suggests_models(open_page: Open) -> None:
    for name, suggested in (("rev", "reverse-small, reverse, reverse-decoder"), ("adition", "addition?")):
        [shown_text] = complaints(open_page(ATTENTION, model=name))
        assert shown_text.startswith(f"There is no model “{name}”; did you mean {suggested}"), shown_text
        assert shown_text.endswith("? The default model is shown.")


def test_a_damaged_snapshot_shows_one_message_and_others_can_be_chosen(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "mine")
    for step, damaged in ((8, b"nonsense" * 40), (12, None)):
        file = snapshot_file(store.folder_of(run), step)
        file.write_bytes(damaged or file.read_bytes()[:-100])
        app = open_page(ATTENTION, model=f"{run}@{step}")
        [shown_text] = complaints(app)
        assert shown_text.startswith(f"The model mine, step {step} cannot be opened. The file")
    app.sidebar.select_slider(key="model_step").set_value(4).run()
    assert complaints(app) == []


def test_a_deleted_run_is_replaced_on_screen_with_a_warning(open_page: Open, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "mine")
    app = open_page(ATTENTION, model=run)
    store.delete(run)
    app.run()
    assert complaints(app) == ["The run “mine” was deleted. The default model is shown."]
    app.run()
    assert complaints(app) == []


def test_a_file_opened_in_the_sidebar_becomes_the_model(open_page: Open, runs: Path, tmp_path: Path) -> None:
    elsewhere = RunStore(tmp_path / "elsewhere")
    content = to_file(elsewhere, with_weights(elsewhere, "a gift"), 8)
    app = open_page(ATTENTION)
    box = app.sidebar.get("file_uploader")[0]
    box.upload("gift.safetensors", content, "application/octet-stream").run()
    assert not app.exception
    [entry] = RunStore(runs).entries()
    assert app.query_params["model"] == f"{entry.id}@8"
    assert [element.value.replace("\\", "") for element in app.success] == ["“a gift”, step 8, is now among your runs."]


def test_home_shows_the_score_on_edge_cases_if_any(open_page: Open) -> None:
    shown_text = {
        model: " ".join(element.value for element in open_page(model=model, more="training").caption)
        for model in ("addition", "reverse-small")
    }
    assert "random inputs hardly ever contain, it gets all 101,926 completely right." in shown_text["addition"]
    assert "edge cases" not in shown_text["reverse-small"]
