"""Which worker of pytest-xdist gets which tests: a file goes to one worker as a whole, and so do all the files of a group.

The mark `xdist_group` in a file names its group: those who share a server and a browser, or a library that takes seconds
to import. (`--dist loadgroup` reads the same mark, but under pytest 9.2 it no longer sees it and tears every group apart.)
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = "browser"
_GROUP = re.compile(r"mark\.xdist_group\(\"(\w+)\"\)")


@cache
def group_of(file: str) -> str:
    """The group that a file of tests names, or the file itself where it names none."""
    found = _GROUP.search((ROOT / file).read_text(encoding="utf-8"))
    return found[1] if found else file


def longest_first(items: list[pytest.Item]) -> None:
    """The longest group begins, so that nobody waits for it in the end."""
    items.sort(key=lambda item: group_of(item.path.relative_to(ROOT).as_posix()) != LONGEST)


def by_group(config: pytest.Config, log: Any = None) -> Any:
    """A scheduler that hands tests out by the group of their file, in the order in which they are collected."""
    from xdist.scheduler import LoadScopeScheduling  # not where the lowest versions are tried

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.split("::")[0])

    config.option.loadscopereorder = False  # by the number of tests, which says nothing of their time
    return ByGroup(config, log)
