"""Every benchmark and tool can be imported, and explains its options with `--help`."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks
import tools

MODULES = [
    found.name
    for package in (benchmarks, tools)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if ".apps" not in found.name and found.name != "tools.docstring_examples"  # needs the docs extra
]


def test_every_benchmark_and_tool_has_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", "--help"])
    for name in MODULES:
        module = importlib.import_module(name)
        assert module.__doc__, name
        if hasattr(module, "main"):
            with pytest.raises(SystemExit, match=r"^0$"):
                module.main()
            assert capsys.readouterr().out.startswith("usage:"), name
