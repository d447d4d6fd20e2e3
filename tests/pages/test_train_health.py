"""The Train and Runs screens show a training of another program that was recorded."""

from __future__ import annotations

from pathlib import Path

import torch
from streamlit.testing.v1 import AppTest

from benchmarks.health import GPT
from tests.pages.conftest import Open
from xformer.integrations import AttentionHealth
from xformer.integrations.health_archive import to_archive
from xformer.training.run_store import RunStore


def words_of(app: AppTest) -> str:
    """All texts of a screen."""
    shown = (*app.markdown, *app.caption, *app.text, *app.success)
    return " ".join(str(one.value) for one in shown).replace("\\", "")


def recorded(runs: Path, *, close: bool = True) -> AttentionHealth:
    """A model with a leaking mask, recorded at three steps."""
    torch.manual_seed(0)
    model = GPT(19, d_model=12, n_heads=3, max_len=11, fault="leaking mask")
    health = AttentionHealth(torch.arange(14).reshape(2, 7), every=5, out=runs, causal=True, steps=10, name="theirs")
    for step in (0, 5, 10):
        health.step(model, step, loss=3.0 - step / 10)
    if close:
        health.close()
    return health


def test_train_shows_the_film_the_alarms_and_any_measure(open_page: Open, runs: Path) -> None:
    health = recorded(runs)
    app = open_page("pages/train/page.py", run=health.run)
    assert not app.exception
    words = words_of(app)
    assert "Finished after" in words
    assert "leak" in words
    assert "of its attention is on later tokens" in words
    assert "encoder layer 2 (attn)" in words
    assert len(app.get("vega_lite_chart") or app.get("arrow_vega_lite_chart")) == 2
    app.selectbox(key="health_measure").set_value("future").run()
    assert not app.exception
    app.button(key="health_go_0").click().run()
    assert not app.exception


def test_a_training_that_goes_on_is_live(open_page: Open, runs: Path) -> None:
    health = recorded(runs, close=False)
    app = open_page("pages/train/page.py", run=health.run)
    assert not app.exception
    assert "step 10 of 10" in words_of(app)
    assert [button.label for button in app.button if button.key == "run_stop"] == ["Stop"]
    health.close()


def test_an_archive_is_imported_and_shown_and_a_bad_one_refused_in_a_sentence(
    open_page: Open, runs: Path, tmp_path: Path
) -> None:
    health = recorded(tmp_path / "there")
    content = to_archive(RunStore(tmp_path / "there"), health.run)
    app = open_page("pages/runs/page.py")
    app.file_uploader(key="runs_import_0").upload("theirs.zip", content, "application/zip").run()
    assert not app.exception
    assert "“theirs”, step 10, is among your runs now." in words_of(app)
    [entry] = RunStore(runs).entries()
    train = open_page("pages/train/page.py", run=entry.id)
    assert not train.exception
    assert "of its attention is on later tokens" in words_of(train)
    app.file_uploader(key="runs_import_1").upload("bad.zip", content[:500], "application/zip").run()
    assert "The file was not taken. The archive is not a readable zip file" in app.error[0].value.replace("\\", "")
    assert len(RunStore(runs).entries()) == 1


def test_runs_lists_it(open_page: Open, runs: Path) -> None:
    recorded(runs)
    app = open_page("pages/runs/page.py")
    assert not app.exception
    assert "theirs" in " ".join([words_of(app), *(str(one.value) for one in app.dataframe)])
