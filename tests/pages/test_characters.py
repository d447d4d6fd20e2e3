"""Screens with a character model: odd characters in the link, continuations, and bits instead of exact match."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest

from tests.pages.conftest import Open, complaints, text
from xformer import Checkpoint, Transformer, save
from xformer.presets import preset
from xformer.tasks import Task, texts
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

FIGURES = {"loss": 2.0, "token_accuracy": 0.5, "exact_match": 0.0, "samples": 70, "seed": 1}
ODD = "*b* `c` [x](y) <i> a_b #1\n  $2$"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small untrained models of both kinds, with scores on their cards."""
    folder = tmp_path_factory.mktemp("fresh")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XFORMER_DATA", str(folder / "data"))
        own = texts.keep((ODD + "\n" + texts.read("python")[:3000]).encode())
        alphabet = texts.alphabet_of(texts.read(own))
        for name in ("characters", "tutorial-seq2seq"):
            chosen = preset(name)
            task = Task(chosen.task.replace(text=own, alphabet=alphabet, symbols=len(alphabet)))
            start, n_tokens = task.vocabulary.special.start, len(task.vocabulary)
            config = chosen.model.replace(vocab_size=n_tokens, start_token=start, n_layers=2)
            card = {"seed": 0, "step": 5, "seconds": 1.0, "device": "cpu", "figures": FIGURES}
            card["train"] = chosen.train.to_json()
            model = Transformer(config, torch.Generator().manual_seed(3))
            save(Checkpoint(model, task, card), folder / "models" / name)
    chosen = preset("reverse-small")
    save(Checkpoint(Transformer(chosen.model), Task(chosen.task)), folder / "models" / "reverse-small")
    return folder


@pytest.fixture
def untrained(fresh: Path, ship: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the shipped models with the untrained ones."""
    monkeypatch.setenv("XFORMER_DATA", str(fresh / "data"))
    ship(fresh / "models")


@pytest.mark.usefixtures("untrained")
def test_a_text_with_odd_characters_is_shown_and_kept_in_the_link(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="characters", input=ODD)  # with a real line break
    assert complaints(app) == []
    assert app.query_params["input"] == ODD.replace("\n", "↵")
    assert app.sidebar.text_input(key="input").value == ODD
    assert len(app.dataframe[0].value) == 2 * 4
    assert "averaged over the characters of this input" in text(app)
    app.sidebar.text_input(key="input").set_value("<script>Ж</script>").run()
    [problem] = complaints(app)
    assert problem.startswith("This model knows ")
    assert app.query_params["input"] == ODD.replace("\n", "↵")


@pytest.mark.usefixtures("untrained")
def test_a_text_is_neither_right_nor_wrong(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="tutorial-seq2seq", input="def f(x):", edits="positions:off")
    assert "Actual next character" in text(app)
    assert not re.search(r"\d+ of \d+ (are )?right", text(app))


@pytest.mark.usefixtures("untrained")
def test_home_continues_the_text_and_shows_bits(open_page: Open) -> None:
    app = open_page(model="characters", input="def f(x):", more="training")
    tiles = {element.label: element.value for element in app.metric}
    assert tiles["Bits per character"] == "2.885"  # 2 / ln 2
    assert "There is no right answer" in text(app)
    story = app.code[0].value
    assert story.startswith("def f(x):")
    # Untrained weights sometimes predict padding, which is not a character.
    assert 70 < len(story) <= len("def f(x):") + 100
    app.button(key="story_again").click().run()
    assert app.code[0].value != story
    assert app.code[0].value.startswith("def f(x):")


@pytest.mark.usefixtures("untrained")
def test_random_input_is_held_out_text_and_switching_to_a_text_model_resets_the_input(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="reverse-small", input="3 5 2")
    app.sidebar.selectbox(key="model").set_value("characters").run()
    assert not app.exception
    assert app.sidebar.text_input(key="input").value == Task(preset("characters").task).rule.default
    app.sidebar.button(key="random_input").click().run()
    assert not app.exception
    typed = app.sidebar.text_input(key="input").value
    [file] = texts.folder().iterdir()
    whole = file.read_text()
    assert typed.replace("↵", "\n") in whole[len(whole) - round(0.1 * len(whole)) :]


def text_choice_page() -> None:
    """A page with only the choice of a text; the resulting preset is in the session state."""
    import streamlit as st

    from pages.train.form import text_choice
    from xformer.presets import preset

    def then(made: object) -> None:
        st.session_state["made"] = made

    text_choice(st.session_state.get("made", preset("characters")), then)


def test_choosing_a_text_adapts_the_model_to_its_alphabet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path))
    texts.read.cache_clear()
    app = AppTest.from_function(text_choice_page).run()
    app.selectbox(key="text").set_value("shakespeare").run()
    assert "is not on this machine; download it" in app.error[0].value.replace("\\", "")
    assert "made" not in app.session_state
    monkeypatch.setattr(texts, "SHAKESPEARE_URL", "http://127.0.0.1:9/none")
    app.button(key="text_download").click().run()
    assert "could not be downloaded" in app.error[0].value.replace("\\", "")
    (tmp_path / "tinyshakespeare.txt").write_text("To be, or not to be. " * 100)
    app.run()
    app.selectbox(key="text").set_value("shakespeare").run()
    made = app.session_state["made"]
    assert (made.task.text, made.task.alphabet, made.model.vocab_size) == ("shakespeare", " ,.Tbenort", 1 + 10)
    assert app.selectbox(key="text").value == "shakespeare"
    assert not app.error


def test_a_run_on_a_text_shows_bits_and_a_continuation(open_page: Open, runs: Path) -> None:
    chosen, store = preset("characters"), RunStore(runs)
    model = chosen.model.replace(n_layers=1, d_model=16, n_heads=2, d_head=0, d_value=0, d_ff=8)
    recipe = chosen.train.replace(steps=6, log_every=3, snapshot_every=3, held_out=4, batch_size=3)
    own = replace(chosen, name="own", model=model, train=recipe)
    run = store.add(own, owner="here", state="finished")
    reports = iter_train(own, out=store.folder_of(run), device="cpu")
    store.put_rows(run, [report.row() for report in reports])
    store.change(run, step=6, figures=json.dumps(FIGURES))
    app = open_page("pages/train/page.py", run=run)
    assert complaints(app) == []
    assert "The continuation at step 6" in text(app)
    assert "2.885 bits per character" in app.get("progress")[0].proto.text.replace("\\", "")  # 2 / ln 2
    assert "Bits per character on held-out text" in text(app)
    assert "Accuracy on held-out examples" not in text(app)


@pytest.mark.usefixtures("untrained")
def test_a_text_longer_than_the_model_reads_is_windowed_but_stays_in_the_field(open_page: Open) -> None:
    long = "def f(x): return x + 1 " * 40
    app = open_page("pages/attention/page.py", model="tutorial-seq2seq")
    app.sidebar.text_input(key="input").set_value(long).run()
    assert not app.exception
    assert not app.error
    shown = "".join(app.query_params["input"])
    assert long.endswith(shown)
    assert len(shown) < len(long)
    first = len(long) - len(shown) + 1
    assert f"Characters {first:,} to {len(long):,} of your {len(long):,} are shown" in text(app)
    assert app.sidebar.text_input(key="input").value == long
    app.sidebar.text_input(key="input").set_value(shown).run()
    assert "are shown" not in text(app)
    assert "".join(app.query_params["input"]) == shown
