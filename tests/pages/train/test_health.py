"""The Train and Runs screens with the recorded training of another program."""

from __future__ import annotations

from pathlib import Path

import torch

import xformer
from tests.integrations.faulty_gpt import GPT
from tests.pages.conftest import Open, everything, n_charts
from tests.pages.runs.test_page import RUNS, with_menu
from xformer.integrations import AttentionHealth
from xformer.integrations.health_archive import to_archive
from xformer.training.run_store import RunStore


def recorded(runs: Path) -> AttentionHealth:
    """A model with a leaking mask, recorded at three steps."""
    torch.manual_seed(0)
    model = GPT(19, d_model=12, n_heads=3, max_len=11, fault="leaking mask")
    health = AttentionHealth(torch.arange(14).reshape(2, 7), every=5, out=runs, causal=True, steps=10, name="theirs")
    for step in (0, 5, 10):
        health.step(model, step, loss=3.0 - step / 10)
    health.close()
    return health


def test_an_archive_is_imported_and_a_damaged_one_refused(open_page: Open, runs: Path, tmp_path: Path) -> None:
    health = recorded(tmp_path / "there")
    content = to_archive(RunStore(tmp_path / "there"), health.run)
    app = open_page("pages/runs/page.py")
    app.file_uploader(key="runs_import_0").upload("theirs.zip", content, "application/zip").run()
    assert not app.exception
    assert "“theirs”, step 10, is now among your runs." in everything(app)
    [entry] = RunStore(runs).entries()
    train = open_page("pages/train/page.py", run=entry.id)
    assert "of its attention is on later tokens" in everything(train)
    app.file_uploader(key="runs_import_1").upload("bad.zip", content[:500], "application/zip").run()
    assert "The file was not accepted. The archive is not a readable zip file" in app.error[0].value.replace("\\", "")
    assert len(RunStore(runs).entries()) == 1


def test_card_has_a_picture_and_alarms_but_no_actions_that_need_weights(open_page: Open, runs: Path) -> None:
    health = recorded(runs)
    app = with_menu(open_page(RUNS), health.run)
    assert not app.exception
    [picture] = app.image
    assert picture.proto.imgs[0].alt.startswith("Attention of layer")
    words = everything(app)
    assert "1 alarm" in words
    assert "Its weights are not on this server" in words
    keys = {str(button.key) for button in app.button}
    assert not [key for key in keys if key.startswith(("runs_again", "runs_resume", "runs_open"))]
    app = open_page("pages/runs/page.py", runs=health.run, curves="entropy_p50/median,score_max/max")
    assert n_charts(app) == 2
    assert "No chosen run has reported" not in everything(app)


def own(runs: Path, *, with_task: bool) -> str:
    """Record one of xformer's own models at two steps with its weights, and return the run."""
    found = xformer.load("checkpoints/induction")
    task = found.task if with_task else None
    how = {"every": 5, "out": runs, "name": "ours", "weights": True, "task": task, "steps": 5}
    health = AttentionHealth(torch.tensor([[3, 7, 12, 9, 3, 7]]), **how)
    for step in (0, 5):
        health.step(found.model, step, loss=1.0)
    health.close()
    return health.run


def test_recorded_weights_of_an_own_model_open_on_other_screens(open_page: Open, runs: Path) -> None:
    run = own(runs, with_task=True)
    app = with_menu(open_page(RUNS), run)
    app.button(key=f"runs_open_{run}_Attention").click().run()
    assert not app.exception
    assert app.query_params["model"] == f"{run}@5"
    compare = open_page("pages/compare/page.py", a=f"{run}@0", b=f"{run}@5")
    assert not compare.error
    assert [compare.query_params[name] for name in "ab"] == [f"{run}@0", f"{run}@5"]


def test_recorded_weights_without_a_task_cannot_be_opened(open_page: Open, runs: Path) -> None:
    run = own(runs, with_task=False)
    for app in (with_menu(open_page(RUNS), run), open_page("pages/train/page.py", run=run)):
        assert not app.exception
        assert "names no task, so it has no input" in everything(app)
        assert not [button.key for button in app.button if "open_Home" in str(button.key)]


def test_another_program_can_only_be_stopped(open_page: Open, runs: Path) -> None:
    """Live updates are tested in a browser."""
    health = AttentionHealth(torch.arange(14).reshape(2, 7), every=5, out=runs, causal=True, steps=10)
    health.step(GPT(19, d_model=12, n_heads=3, max_len=11), 0)
    keys = {button.key for button in open_page("pages/train/page.py", run=health.run).button}
    assert "run_stop" in keys
    assert "run_pause" not in keys
    health.close("failed")
    app = open_page("pages/train/page.py", run=health.run)
    assert "run_resume" not in {button.key for button in app.button}
    assert "Resume" not in everything(app)


def test_a_failure_to_record_is_said_in_one_sentence(open_page: Open, runs: Path) -> None:
    health = recorded(runs)
    health.step(GPT(19, d_model=12, n_heads=3, max_len=5), 20)
    train = open_page("pages/train/page.py", run=health.run)
    assert not train.exception
    [shown] = train.warning
    assert shown.value.replace("\\", "").startswith("Step 20 could not be probed: The probe needs row 6 of position")
