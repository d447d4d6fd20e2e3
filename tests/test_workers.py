"""Tests of who gets which tests: a group is not torn apart, whatever pytest-xdist makes of its mark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.workers import ROOT, by_group, group_of


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


def test_a_group_goes_to_one_worker_and_so_does_a_file(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    monkeypatch.setattr(pytestconfig.option, "loadscopereorder", True, raising=False)
    files = ["tests/browser/test_app.py", "tests/test_words.py", "tests/browser/test_runs.py", "tests/test_site.py"]
    tests = [f"{file}::test_{index}" for index in range(9) for file in files]
    scheduler, workers = by_group(pytestconfig), [Worker(), Worker()]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    while any(not worker.shutting_down for worker in workers):
        for worker in workers:
            for index in list(worker.given):
                scheduler.mark_test_complete(worker, index)
    places = [{tests[index].split("::")[0] for index in worker.given} for worker in workers]
    assert sorted(index for worker in workers for index in worker.given) == list(range(len(tests)))
    assert places[0].isdisjoint(places[1])
    assert any(places_of >= {files[0], files[2]} for places_of in places)


@pytest.mark.parametrize("file", sorted((ROOT / "tests/browser").glob("test_*.py")), ids=lambda file: file.stem)
def test_every_test_in_a_browser_shares_the_browser(file: Path) -> None:
    assert group_of(file.relative_to(ROOT).as_posix()) == "browser"
