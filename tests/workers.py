"""Which worker of pytest-xdist gets which tests: a file goes to one worker as a whole, and so do all the files of a group.

The mark `xdist_group` in a file names its group: those who share a server and a browser, or a library that takes seconds
to import. (`--dist loadgroup` reads the same mark, but under pytest 9.2 it no longer sees it and tears every group apart.)

The tests in a browser mostly wait. Where there are three workers or more, the last one has them to itself beside the others,
who keep the processors busy; it does not even import the other tests, nor the others its own.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WAITING = "browser"
_GROUP = re.compile(r"mark\.xdist_group\(\"(\w+)\"\)")


@cache
def group_of(file: str | Path) -> str:
    """The group that a file of tests names, or the file itself where it names none."""
    found = _GROUP.search((ROOT / file).read_text(encoding="utf-8"))
    return found[1] if found else str(file)


def is_for(worker: dict[str, Any] | None, file: Path) -> bool:
    """Whether a worker, by its `workerinput`, imports a file; one that stands in for a worker that died imports every file."""
    number, count = (int(worker["workerid"].removeprefix("gw")), worker["workercount"]) if worker else (0, 1)
    return count < 3 or number >= count or (group_of(file) == WAITING) == (number == count - 1)


def waiting_first(items: list[pytest.Item]) -> None:
    """The longest group begins, so that nobody waits for it in the end."""
    items.sort(key=lambda item: group_of(item.path) != WAITING)


def by_group(config: pytest.Config, log: Any = None) -> Any:
    """A scheduler that hands tests out by the group of their file, in the order in which they are collected."""
    from xdist.scheduler import LoadScopeScheduling  # not where the lowest versions are tried

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.split("::")[0])

        def add_node_collection(self, node: Any, collection: Any) -> None:
            self.registered_collections[node] = list(collection)

        def schedule(self) -> None:
            if self.collection is None:
                self.collection = list(dict.fromkeys(chain.from_iterable(self.registered_collections.values())))
                for nodeid in self.collection:
                    self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
            for node in self.nodes * 2:  # one that has a single test does not begin before it knows what comes next
                self._reschedule(node)

        def _assign_work_unit(self, node: Any) -> None:
            has = set(self.registered_collections[node])
            scope = next((scope for scope, tests in self.workqueue.items() if not has.isdisjoint(tests)), None)
            if scope is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)
