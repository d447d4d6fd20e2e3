"""What is pasted into a box: too much of it is one sentence and not silence, and half a character breaks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared.widgets import typed
from tests.pages.conftest import Open, plain
from tests.pages.test_runs import RUNS, add, with_menu
from tests.pages.test_train import finished
from xformer.errors import InputError
from xformer.training.run_store import RunStore


def messages(app: AppTest) -> list[str]:
    assert not app.exception
    return [plain(element.value) for kind in (app.error, app.warning) for element in kind]


def test_a_text_is_taken_whole_or_refused_and_never_cut() -> None:
    assert typed("a" * 10, 10) == "a" * 10
    with pytest.raises(InputError, match="Up to 10 characters are read here, got 1,011; take a part of it"):
        typed("a" * 1011, 10)
    assert typed("3 \ud83d 7", 10) == "3 ? 7"


@pytest.mark.parametrize(
    ("page", "key", "most"),
    [
        (None, "input", 20_000),
        ("pages/compare/page.py", "compare_input", 2_000),
        ("pages/train/page.py", "probe_", 400),
        (RUNS, "runs_text", 80),
        (RUNS, "runs_name_", 80),
    ],
)
def test_pasting_too_much_is_one_sentence(open_page: Open, runs: Path, page: str | None, key: str, most: int) -> None:
    run = finished(runs) if page in (RUNS, "pages/train/page.py") else ""
    app = open_page(page, **({"run": run} if key == "probe_" else {"runs": run} if page == RUNS else {}))
    if page == RUNS:
        app.session_state["runs_text"] = "tiny"  # else so few runs have no box
        with_menu(app, run)
    assert messages(app) == []
    [box] = [box for box in app.text_input if str(box.key).startswith(key)]
    assert not box.proto.max_chars
    app = box.set_value("1 " * most).run()
    assert messages(app) == [f"Up to {most:,} characters are read here, got {2 * most:,}; take a part of it."]


def test_a_long_name_for_own_settings_is_refused_and_not_cut(
    open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xformer.training.jobs.next_for", lambda *_: [])
    app = open_page("pages/train/page.py")
    app.button_group(key="train_group").set_value("own").run()
    app.text_input(key="own_name").set_value("n" * 100).run()
    app.button(key="start_own").click().run()
    assert messages(app) == ["Up to 80 characters are read here, got 100; take a part of it."]
    assert RunStore(runs).entries() == []


def test_a_run_that_was_found_stays_found(open_page: Open, runs: Path) -> None:
    add(RunStore(runs), "one")
    app = open_page(RUNS, view="table", find="one")
    app.text_input(key="runs_text").set_value("x" * 81).run()
    assert app.dataframe[0].value["name"].tolist() == ["one"]
    assert app.query_params["find"] == "x" * 80


def test_a_text_of_one_letter_is_refused_in_one_message(
    open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    app = open_page("pages/train/page.py")
    app.button_group(key="train_group").set_value("own").run()
    app.selectbox(key="own_base").set_value("characters").run()
    app.file_uploader(key="text_file_0").upload("a.txt", b"a" * 2000, "text/plain").run()
    assert not app.success
    assert messages(app) == [
        "The file was not taken. A text needs at least two different characters, and this one has only 'a'; give another."
    ]
    assert not (tmp_path / "data").exists()
