"""How the tests are started: what all processes share, and who gets which tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.workers import by_group, is_for, waiting_first
from xformer.quick_imports import quick_imports

GRAMMAR = "rfc3987_syntax"

os.environ.setdefault("OMP_NUM_THREADS", "1")  # else the processes that are started would fight over the cores
sys.dont_write_bytecode = False  # else each worker, and each process that a test starts, compiles everything anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Until the first test begins, no garbage is looked for, and Altair does without what JupyterLab brings, which takes it longest.
_starting = ExitStack()
_starting.enter_context(quick_imports(GRAMMAR))


def pytest_configure(config: pytest.Config) -> None:
    """Whoever runs tests imports torch; one who only hands them out to workers need not wait for it."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.import_plugin("tests.checked_library")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return by_group(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    waiting_first(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return None if is_for(getattr(config, "workerinput", None), collection_path) else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is imported by now stays: Streamlit has garbage looked for after every run of a script, in all that there is."""
    _starting.close()


def pytest_unconfigure() -> None:
    """Also where there was nothing to run: a file that is not there."""
    _starting.close()


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Nobody waits for the disk: that files are flushed, and in which order, is tested with an `fsync` of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _settings_of_the_server() -> None:
    """Read `.streamlit/config.toml` now: Streamlit reads it once, from wherever the first test that asks has gone."""
    from streamlit import config

    config.get_config_options()
    assert config.get_option("server.address") == "127.0.0.1"
