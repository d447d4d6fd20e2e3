"""Some of the damaged folders of `tests.damaged_books`: an answer or a sentence, each time."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.damaged_books import damage, good_folder, trouble_with


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_folder(tmp_path_factory.mktemp("damaged") / "good")


def test_a_whole_folder_is_no_trouble(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "runs")
    assert trouble_with(tmp_path / "runs") == []


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_folder_ends_in_no_traceback(good: Path, tmp_path: Path, seed: int) -> None:
    shutil.copytree(good, tmp_path / "runs")
    what = damage(tmp_path / "runs", random.Random(seed))
    assert trouble_with(tmp_path / "runs") == [], what
