"""Commands that a visitor may not give are refused on the server, even if a button was enabled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.compute import run_commands, visible_runs
from pages.server import limits
from pages.train.setup import expected
from tests.pages.conftest import Open, complaints, plain, with_weights
from tests.pages.runs.test_page import RUNS, add, with_menu
from tests.training.tiny import tiny_preset
from xformer.errors import RunStoreError
from xformer.training.card import to_file
from xformer.training.run_record import RunRecord
from xformer.training.run_store import RunStore

TRAIN = "pages/train/page.py"
MINE, THEIRS = "a" * 32, "b" * 32
Be = Callable[[str], None]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Be:
    """Return a function that sets the visitor, on a server for several people that starts no processes: `be(MINE)`."""
    monkeypatch.setenv("XFORMER_OPEN", "0")
    monkeypatch.setattr("xformer.training.jobs.next_for", lambda *_: [])

    def be(visitor: str) -> None:
        monkeypatch.setattr(visible_runs, "visitor", lambda: visitor)

    return be


def of(store: RunStore) -> list[RunRecord]:
    """Return all runs in the store, including deleted ones."""
    return [*store.entries(), *store.entries(deleted=True)]


ON_A_RUN: dict[str, Callable[[str], Any]] = {
    "pause": lambda run: run_commands.send(run, "pause"),
    "step": lambda run: run_commands.send(run, "step"),
    "resume": run_commands.resume,
    "stop": run_commands.stop,
    "change_rate": lambda run: run_commands.change_rate(run, 0.1),
    "rename": lambda run: run_commands.rename(run, "ha"),
    "tag": lambda run: run_commands.tag(run, ["ha"]),
    "share": run_commands.share,
    "delete": run_commands.delete,
    "undelete": run_commands.undelete,
}
NEW: dict[str, Callable[[str], Any]] = {
    "start": lambda run: run_commands.start(tiny_preset()),
    "again": lambda run: run_commands.again(run, "ha"),
    "fork": lambda run: run_commands.fork(run, 12, tiny_preset(), "ha"),
    "take_file": lambda run: run_commands.take_file(b"", "a.safetensors"),
    "keep_text": lambda run: run_commands.keep_text(b"a" * 2000),
    "download_shakespeare": lambda run: run_commands.download_shakespeare(),
}


def test_every_command_is_listed_in_this_test() -> None:
    public = {
        name
        for name, thing in vars(run_commands).items()
        if callable(thing) and thing.__module__ == run_commands.__name__
    }
    commands = {name for name in public if not name.startswith("_")} - {"why_not"}
    assert commands == {*ON_A_RUN, *NEW} - {"pause", "step"} | {"send"}


def test_unknown_visitors_have_no_commands(be: Be, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    store = RunStore(runs)
    run = add(store, "one", owner="", state="stopped")
    before = of(store)
    be("")
    for command in (ON_A_RUN | NEW).values():
        with pytest.raises(RunStoreError, match="You cannot own anything here"):
            command(run)
    assert of(store) == before
    assert not (tmp_path / "data").exists()


def test_a_visitor_cannot_command_the_run_of_another_visitor(be: Be, runs: Path) -> None:
    store = RunStore(runs)
    run = add(store, "one", owner=THEIRS, state="stopped")
    before = of(store)
    be(MINE)
    for command in ON_A_RUN.values():
        with pytest.raises(RunStoreError, match="“one” was started by someone else"):
            command(run)
    assert of(store) == before


def test_a_private_run_of_another_visitor_does_not_exist_for_others(be: Be, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "secret")
    store.change(run, owner=THEIRS, private=1)
    be(MINE)
    for command in [*ON_A_RUN.values(), NEW["again"], NEW["fork"]]:
        for name in (run, "0123abcd"):
            with pytest.raises(RunStoreError) as refused:
                command(name)
            assert str(refused.value) == f"There is no run '{name}'; it may have been deleted."
    assert [entry.name for entry in of(store)] == ["secret"]


def press(app: AppTest, key: str) -> AppTest:
    button = app.button(key=key)
    button.proto.disabled = False  # as a forged message would
    return button.click().run()


def test_a_forged_press_without_a_cookie_starts_and_deletes_nothing(open_page: Open, be: Be, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "one")
    be("")
    before = of(store)
    for page, key, link in (
        (TRAIN, "start_reverse-small", {}),
        (TRAIN, "fork_start", {"run": run}),
        (RUNS, f"runs_delete_{run}", {"runs": run}),
    ):
        app = with_menu(open_page(page, **link), run)
        assert app.button(key=key).disabled
        assert not press(app, key).exception
        assert of(store) == before
    name = with_menu(open_page(RUNS, runs=run), run).text_input(key=f"runs_name_{run}")
    assert name.disabled
    name.proto.disabled = False
    assert not name.set_value("mine now").run().exception
    assert of(store) == before


def test_an_imported_run_is_private_until_it_is_shared(open_page: Open, be: Be, runs: Path, tmp_path: Path) -> None:
    elsewhere = RunStore(tmp_path / "elsewhere")
    content = to_file(elsewhere, with_weights(elsewhere, "a gift"))
    be(MINE)
    app = open_page(RUNS)
    assert "Only you can see it" in plain([caption.value for caption in app.caption])
    app.file_uploader(key="runs_import_0").upload("gift.safetensors", content, "application/octet-stream").run()
    [entry] = RunStore(runs).entries()
    assert (entry.owner, entry.private) == (MINE, 1)
    assert any("**a gift**" in element.value for element in app.markdown)
    app.file_uploader(key="runs_import_1").upload("gift.safetensors", content, "application/octet-stream").run()
    assert [plain(element.value) for element in app.success] == ["These weights are already here: “a gift”, step 12."]

    be(THEIRS)
    for page, name, value in (
        (RUNS, "runs", "{}"),
        (TRAIN, "run", "{}"),
        (None, "model", "{}@12"),
        ("pages/compare/page.py", "a", "{}@12"),
    ):
        apps = {run: open_page(page, **{name: value.format(run)}) for run in (entry.id, "0123abcd")}
        assert "a gift" not in str(apps[entry.id])
        assert len({" ".join(complaints(app)).replace(run, "X") for run, app in apps.items()}) == 1
    app = open_page(RUNS)
    app.file_uploader(key="runs_import_0").upload("gift.safetensors", content, "application/octet-stream").run()
    assert len(RunStore(runs).entries()) == 2  # not the message “These weights are already here”

    be(MINE)
    assert "Only you can see it" in plain(open_page(TRAIN, run=entry.id).get("progress")[0].proto.text)
    app = open_page(RUNS, runs=entry.id)
    assert "only you" in app.dataframe[0].value["owner"].tolist()
    app = press(with_menu(app, entry.id), f"runs_share_{entry.id}")
    assert complaints(app) == []
    be("")
    assert any("**a gift**" in element.value for element in open_page(RUNS).markdown)


def test_a_private_run_is_not_used_for_time_estimates(runs: Path) -> None:
    store = RunStore(runs)
    run = add(store, "secret")
    store.change(run, step=200, seconds=7.0)
    seconds = expected(tiny_preset(), store.entries(), gpu=False).seconds
    store.change(run, private=1)
    assert seconds == tiny_preset().train.steps * 7.0 / 200
    assert expected(tiny_preset(), store.entries(), gpu=False).seconds != seconds


def test_runs_derived_from_a_private_run_are_private(be: Be, runs: Path) -> None:
    store = RunStore(runs)
    run = with_weights(store, "secret")
    store.change(run, owner=MINE, private=1)
    be(MINE)
    fork, again = run_commands.fork(run, 12, tiny_preset(), "fork"), run_commands.again(run, "again")
    assert [store.entry(new).private for new in (fork, again)] == [1, 1]


def test_on_a_local_server_an_imported_file_belongs_to_everyone(runs: Path, tmp_path: Path) -> None:
    elsewhere = RunStore(tmp_path / "elsewhere")
    taken = run_commands.take_file(to_file(elsewhere, with_weights(elsewhere, "a gift")), "gift.safetensors")
    assert not RunStore(runs).entry(taken.run).private


def test_deleting_the_cookie_does_not_reset_the_run_limit(be: Be, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_WAITING", "2")
    monkeypatch.setenv("XFORMER_MAX_WAITING_BY_ADDRESS", "3")
    started = []
    monkeypatch.setattr(limits, "visitor_address", lambda: "203.0.113.9")
    for number in range(3):
        be(f"{number:032x}")
        started.append(run_commands.start(tiny_preset()))
    be(f"{9:032x}")
    with pytest.raises(RunStoreError, match="3 runs from your address are waiting or in training, and 3 are allowed"):
        run_commands.start(tiny_preset())
    be(f"{0:032x}")
    run_commands.stop(started[0])
    run_commands.start(tiny_preset())  # allowed, because one has ended
    monkeypatch.setattr(limits, "visitor_address", lambda: "203.0.113.10")
    run_commands.start(tiny_preset())
