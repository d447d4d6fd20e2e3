"""The installed package: its files and dependencies, and an app that runs from any folder.

The wheel is built from this tree and unpacked into a folder that comes first on Python's path; no network is needed.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.attack.visitor import Visitor

ROOT = Path(__file__).parents[1]


def built(kind: str, tree: Path, folder: Path) -> Path:
    """Build the "wheel" or "sdist" of a tree in a folder, without leftovers of earlier builds."""
    (folder / "build.cfg").write_text(f"[build]\nbuild_base={folder / 'build'}\n[egg_info]\negg_base={folder}\n")
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
    environment = os.environ | {"DIST_EXTRA_CONFIG": str(folder / "build.cfg")}
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tree, env=environment, stdout=subprocess.PIPE)
    return folder / done.stdout.decode().split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """Unpack the wheel into a folder, as an installation would."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(wheel.parent / "site")
    return wheel.parent / "site"


def files_of(folder: Path) -> set[str]:
    """Return all files below a folder, except __pycache__."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_contains_exactly_the_files_of_the_library_and_the_app(wheel: Path) -> None:
    there = set(zipfile.ZipFile(wheel).namelist())
    models = {f"{path.parent.name}/{path.name}" for path in ROOT.glob("checkpoints/*/*")}
    models = {name for name in models if not name.startswith(("runs/", "characters/"))}
    wanted = {f"xformer/{file}" for file in files_of(ROOT / "xformer")}
    wanted |= {f"xformer/_app/pages/{file}" for file in files_of(ROOT / "pages")}
    wanted |= {f"xformer/_app/checkpoints/{file}" for file in models}
    wanted |= {f"xformer/_app/docs/lessons/{file}" for file in files_of(ROOT / "docs" / "lessons")}
    wanted |= {"xformer/_app/app.py", "xformer/_app/.streamlit/config.toml"}
    assert len(models) > 20
    assert wanted == {file for file in there if ".dist-info/" not in file}
    assert wheel.stat().st_size < 6_000_000
    [commands] = [file for file in there if file.endswith("entry_points.txt")]
    assert b"xformer = xformer.cli.main:main" in zipfile.ZipFile(wheel).read(commands)


def test_a_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(built("sdist", ROOT, tmp_path)) as packed:
        packed.extractall(tmp_path, filter="data")
    (tmp_path / "again").mkdir()
    [tree] = tmp_path.glob("*/pyproject.toml")
    again = built("wheel", tree.parent, tmp_path / "again")
    contents = [{one.filename: one.CRC for one in zipfile.ZipFile(path).infolist()} for path in (wheel, again)]
    assert contents[0] == contents[1]


def test_the_app_runs_from_an_empty_folder_and_writes_only_to_its_data_folder(site: Path, tmp_path: Path) -> None:
    before, here = files_of(site), tmp_path / "here"
    here.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ours = {name: value for name, value in os.environ.items() if not name.startswith("XFORMER")}
    environment = ours | {"PYTHONPATH": str(site), "XDG_DATA_HOME": str(tmp_path / "data")}
    command = [sys.executable, "-m", "xformer", "app", "--port", address.partition(":")[2]]
    server = subprocess.Popen(command, cwd=here, env=environment, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        runs = tmp_path / "data" / "xformer" / "checkpoints" / "runs"
        assert (
            server.stdout.readline().decode() == f"Runs are stored in {runs}; set XFORMER_RUNS to use another folder.\n"
        )
        while not is_healthy(address):
            assert server.poll() is None
            time.sleep(0.1)
        with Visitor(f"http://{address}") as visitor:  # raises where a page breaks
            assert visitor.open().title.startswith("See a transformer think")
            assert "reverse-small" in str(visitor.screen.widgets)
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert files_of(site) == before
    assert files_of(here) == set()


def is_healthy(address: str) -> bool:
    """Return whether the server answers with our security headers."""
    try:
        with urllib.request.urlopen(f"http://{address}/_stcore/health") as answer:
            return answer.read() == b"ok" and "frame-ancestors" in answer.headers["Content-Security-Policy"]
    except OSError:
        return False


def test_the_library_does_not_depend_on_the_libraries_of_the_app() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    assert not base & {"streamlit", "plotly", "scikit-learn", "transformers"}
