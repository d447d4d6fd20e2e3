"""Every benchmark can be imported."""

from __future__ import annotations

import importlib
import pkgutil

import benchmarks

MODULES = [found.name for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


def test_every_benchmark_can_be_imported() -> None:
    for name in MODULES:
        assert ".apps." in name or importlib.import_module(name).__doc__, name
