"""Tests of who gets which tests: a group is not torn apart, whatever pytest-xdist makes of its mark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers import ROOT, by_group, group_of, is_for


class Worker:
    """What a scheduler asks of a worker of pytest-xdist."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


FILES = ["tests/browser/test_app.py", "tests/test_words.py", "tests/browser/test_runs.py", "tests/test_site.py"]
TESTS = [f"{file}::test_{index}" for index in range(9) for file in FILES]


def collected(number: int, count: int) -> list[str]:
    """What the worker of that number finds."""
    has = {file for file in FILES if is_for({"workerid": f"gw{number}", "workercount": count}, ROOT / file)}
    return [test for test in TESTS if test.split("::")[0] in has]


def run(scheduler: Any, workers: list[Worker]) -> list[list[str]]:
    """Every worker does at once what it is given; the tests that each was given."""
    while any(not worker.shutting_down for worker in workers):
        for worker in workers:
            for index in list(worker.given):
                scheduler.mark_test_complete(worker, index)
    return [[scheduler.registered_collections[worker][index] for index in worker.given] for worker in workers]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_group_goes_to_one_worker_and_so_does_a_file(
    count: int, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", [f"{count}*popen"])
    scheduler, workers = by_group(pytestconfig), [Worker() for _ in range(count)]
    for number, worker in enumerate(workers):
        assert not scheduler.collection_is_completed
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, collected(number, count))
    scheduler.schedule()
    given = run(scheduler, workers)
    assert sorted(test for tests in given for test in tests) == sorted(TESTS)
    places = [{test.split("::")[0] for test in tests} for tests in given]
    assert sum(map(len, places)) == len(FILES)
    assert any(places_of >= {FILES[0], FILES[2]} for places_of in places)
    if count > 2:
        assert places[-1] == {FILES[0], FILES[2]}


def test_one_takes_over_from_a_worker_that_died(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["3*popen"])
    scheduler, workers = by_group(pytestconfig), [Worker(), Worker(), Worker()]
    for number, worker in enumerate(workers):
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, collected(number, 3))
    scheduler.schedule()
    assert scheduler.remove_node(workers[2]) == collected(2, 3)[0]
    workers[2] = Worker()
    scheduler.add_node(workers[2])
    scheduler.add_node_collection(workers[2], collected(3, 3))
    scheduler.schedule()
    assert sorted(test for tests in run(scheduler, workers) for test in tests) == sorted(TESTS)


@pytest.mark.parametrize("file", sorted((ROOT / "tests/browser").glob("test_*.py")), ids=lambda file: file.stem)
def test_every_test_in_a_browser_shares_the_browser(file: Path) -> None:
    assert group_of(file.relative_to(ROOT).as_posix()) == "browser"
