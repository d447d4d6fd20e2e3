"""Orders that are not a visitor's to give, sent all the same: refused where the thing is done, whatever a button looks like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared import desk, orders
from pages.shared.serving import address
from pages.train.estimate import expected_at_once
from tests.pages.conftest import Open, plain
from tests.pages.test_runs import RUNS, add, with_weights
from tests.training.tiny import tiny_preset
from xformer.errors import BookError
from xformer.training.book import Book, Entry
from xformer.training.transfer import to_file

TRAIN = "pages/train/page.py"
MINE, THEIRS = "a" * 32, "b" * 32
Be = Callable[[str], None]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Be:
    """`be(MINE)`: that visitor asks, at a server for several people where no process is started."""
    monkeypatch.setenv("XFORMER_OPEN", "0")
    monkeypatch.setattr("xformer.training.queue.next_for", lambda *_: [])

    def be(who: str) -> None:
        monkeypatch.setattr(desk, "who", lambda: who)

    return be


def of(book: Book) -> list[Entry]:
    """All that the book knows, what was thrown away too."""
    return [*book.entries(), *book.entries(deleted=True)]


ON_A_RUN: dict[str, Callable[[str], Any]] = {
    "pause": lambda run: orders.send(run, "pause"),
    "step": lambda run: orders.send(run, "step"),
    "resume": orders.resume,
    "stop": orders.stop,
    "change_rate": lambda run: orders.change_rate(run, 0.1),
    "rename": lambda run: orders.rename(run, "ha"),
    "tag": lambda run: orders.tag(run, ["ha"]),
    "share": orders.share,
    "delete": orders.delete,
    "undelete": orders.undelete,
}
NEW: dict[str, Callable[[str], Any]] = {
    "start": lambda run: orders.start(tiny_preset()),
    "again": lambda run: orders.again(run, "ha"),
    "fork": lambda run: orders.fork(run, 12, tiny_preset(), "ha"),
    "take_file": lambda run: orders.take_file(b"", "a.safetensors"),
    "keep_text": lambda run: orders.keep_text(b"a" * 2000),
    "download_shakespeare": lambda run: orders.download_shakespeare(),
}


def test_every_order_is_listed_here() -> None:
    public = {name for name, thing in vars(orders).items() if callable(thing) and thing.__module__ == orders.__name__}
    assert {name for name in public if not name.startswith("_")} == {*ON_A_RUN, *NEW} - {"pause", "step"} | {"send"}


@pytest.mark.parametrize("order", [*ON_A_RUN, *NEW])
def test_nobody_gives_no_order(order: str, be: Be, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    book = Book(runs)
    run = add(book, "one", owner="", state="stopped")
    before = of(book)
    be("")
    with pytest.raises(BookError, match="Nothing can belong to you here"):
        (ON_A_RUN | NEW)[order](run)
    assert of(book) == before
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("order", ON_A_RUN)
def test_nobody_orders_somebody_elses_run_about(order: str, be: Be, runs: Path) -> None:
    book = Book(runs)
    run = add(book, "one", owner=THEIRS, state="stopped")
    before = of(book)
    be(MINE)
    with pytest.raises(BookError, match="“one” was started by someone else"):
        ON_A_RUN[order](run)
    assert of(book) == before


@pytest.mark.parametrize("order", [*ON_A_RUN, "again", "fork"])
def test_a_private_run_of_somebody_else_is_no_run_at_all(order: str, be: Be, runs: Path) -> None:
    book = Book(runs)
    run = with_weights(book, "secret")
    book.change(run, owner=THEIRS, private=1)
    be(MINE)
    for name in (run, "0123abcd"):
        with pytest.raises(BookError) as refused:
            (ON_A_RUN | NEW)[order](name)
        assert str(refused.value) == f"There is no run '{name}'; it may have been deleted."
    assert [entry.name for entry in of(book)] == ["secret"]


def warned(app: AppTest) -> str:
    assert not app.exception
    return plain(" ".join(element.value for kind in (app.warning, app.error) for element in kind))


def press(app: AppTest, key: str) -> AppTest:
    button = app.button(key=key)
    button.proto.disabled = False  # a forged message does not mind
    return button.click().run()


@pytest.mark.parametrize(
    ("page", "key", "link"),
    [
        (TRAIN, "start_reverse-small", False),
        (TRAIN, "run_again", True),
        (TRAIN, "fork_start", True),
        (RUNS, "runs_again_", True),
        (RUNS, "runs_delete_", True),
    ],
)
def test_a_forged_press_without_a_cookie_starts_and_deletes_nothing(
    open_page: Open, be: Be, runs: Path, page: str, key: str, link: bool
) -> None:
    book = Book(runs)
    run = with_weights(book, "one")
    be("")
    app = open_page(page, **({("run" if page == TRAIN else "runs"): run} if link else {}))
    assert not app.exception
    assert app.button(key=f"{key}{run}" if key.endswith("_") else key).disabled
    before = of(book)
    app = press(app, f"{key}{run}" if key.endswith("_") else key)
    assert not app.exception
    assert of(book) == before


def test_forged_words_in_a_disabled_box_change_nothing(open_page: Open, be: Be, runs: Path) -> None:
    book = Book(runs)
    run = add(book, "theirs", owner=THEIRS)
    be(MINE)
    app = open_page(RUNS, runs=run)
    name = app.text_input(key=f"runs_name_{run}")
    assert name.disabled
    name.proto.disabled = False
    name.set_value("mine now").run()
    assert not app.exception
    press(app, f"runs_delete_{run}")
    assert [entry.name for entry in book.entries()] == ["theirs"]


def test_a_cookie_is_asked_for_where_there_is_none(
    open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_OPEN", "0")
    monkeypatch.setattr(desk, "visitor_number", lambda key: "c" * 32)  # what the browser answers
    monkeypatch.setattr("xformer.training.queue.next_for", lambda *_: [])
    app = press(open_page(TRAIN), "start_reverse-small")
    assert warned(app) == ""
    assert [entry.owner for entry in Book(runs).entries()] == ["c" * 32]


def test_an_imported_run_is_its_owners_alone_until_it_is_shared(
    open_page: Open, be: Be, runs: Path, tmp_path: Path
) -> None:
    elsewhere = Book(tmp_path / "elsewhere")
    content = to_file(elsewhere, with_weights(elsewhere, "a gift"))
    be(MINE)
    app = open_page(RUNS)
    assert "Only you will see it" in plain([caption.value for caption in app.caption])
    app.file_uploader(key="runs_import_0").upload("gift.safetensors", content, "application/octet-stream").run()
    [entry] = Book(runs).entries()
    assert (entry.owner, entry.private) == (MINE, 1)
    assert app.dataframe[0].value["name"].tolist() == ["a gift"]

    be(THEIRS)
    other = open_page(RUNS, runs=entry.id)
    assert "Nothing has been trained here yet" in [element.value for element in other.subheader]
    for page, link in (
        (RUNS, {"runs": "{}"}),
        (TRAIN, {"run": "{}"}),
        (None, {"model": "{}@12"}),
        ("pages/compare/page.py", {"a": "{}@12"}),
        ("pages/compare/page.py", {"model": "{}"}),
    ):
        said = []
        for run in (entry.id, "0123abcd"):
            app = open_page(page, **{name: value.format(run) for name, value in link.items()})
            said.append(warned(app).replace(run, "X"))
            assert "a gift" not in str(app)
        assert said[0] == said[1]
    other.file_uploader(key="runs_import_0").upload("gift.safetensors", content, "application/octet-stream").run()
    assert len(Book(runs).entries()) == 2  # not: “these weights are here already”

    be(MINE)
    assert "Only you see it" in plain(open_page(TRAIN, run=entry.id).get("progress")[0].proto.text)
    app = open_page(RUNS, runs=entry.id)
    assert "only you" in app.dataframe[0].value["owner"].tolist()
    app = press(app, f"runs_share_{entry.id}")
    assert warned(app) == ""
    be("")
    assert "a gift" in open_page(RUNS).dataframe[0].value["name"].tolist()


def test_on_ones_own_machine_nothing_is_said_to_be_private(
    open_page: Open, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFORMER_OPEN", "1")
    run = add(Book(runs), "one")
    Book(runs).change(run, private=1)
    app = open_page(RUNS, runs=run)
    assert not [button for button in app.button if str(button.key).startswith("runs_share")]
    assert "only" not in " ".join(caption.value for caption in app.caption).lower()


def test_how_long_a_private_run_took_is_told_to_nobody(runs: Path) -> None:
    book = Book(runs)
    run = add(book, "secret")
    book.change(run, step=200, seconds=7.0)
    seconds = expected_at_once(tiny_preset(), book.entries(), gpu=False).seconds
    book.change(run, private=1)
    assert seconds == tiny_preset().train.steps * 7.0 / 200
    assert expected_at_once(tiny_preset(), book.entries(), gpu=False).seconds != seconds


def test_what_begins_with_a_private_run_is_private_too(be: Be, runs: Path) -> None:
    book = Book(runs)
    run = with_weights(book, "secret")
    book.change(run, owner=MINE, private=1)
    be(MINE)
    fork, again = orders.fork(run, 12, tiny_preset(), "fork"), orders.again(run, "again")
    assert [book.entry(new).private for new in (fork, again)] == [1, 1]


def test_on_ones_own_machine_a_file_is_everyones(runs: Path, tmp_path: Path) -> None:
    elsewhere = Book(tmp_path / "elsewhere")
    taken = orders.take_file(to_file(elsewhere, with_weights(elsewhere, "a gift")), "gift.safetensors")
    assert not Book(runs).entry(taken.run).private


def test_throwing_the_cookie_away_brings_no_more_runs(be: Be, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MAX_WAITING", "2")
    monkeypatch.setenv("XFORMER_MAX_WAITING_BY_ADDRESS", "3")
    monkeypatch.setattr(address, "of_visitor", lambda: "203.0.113.9")
    for number in range(3):
        be(f"{number:032x}")
        orders.start(tiny_preset())
    be(f"{9:032x}")
    with pytest.raises(BookError, match="3 runs from your address are waiting or in training, and 3 are allowed"):
        orders.start(tiny_preset())
    monkeypatch.setattr(address, "of_visitor", lambda: "203.0.113.10")
    stopped = orders.start(tiny_preset())
    monkeypatch.setattr(address, "of_visitor", lambda: "203.0.113.9")
    be(f"{0:032x}")
    orders.stop(next(entry.id for entry in Book(runs).entries() if entry.owner == f"{0:032x}"))
    assert stopped
    orders.start(tiny_preset())  # one has ended, so there is room


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        (None, address.HERE),
        ("127.0.0.1", address.HERE),
        ("::1", address.HERE),
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not an address", "not an address"),
    ],
)
def test_an_address_is_counted_as_its_network(said: str | None, counted: str) -> None:
    assert address.network(said) == counted
