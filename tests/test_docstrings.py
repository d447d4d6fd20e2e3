"""Public names are documented: a first sentence, arguments, results, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest

import xformer

ROOT = Path(__file__).parents[1]
EDITS = sorted(
    name
    for name, value in vars(xformer.edits).items()
    if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == "xformer.edits"
)


NAMES = [*(f"xformer.{name}" for name in xformer.__all__), *(f"xformer.edits.{name}" for name in EDITS)]
"""All public names; the modules among them have names of their own."""


@pytest.fixture(params=NAMES)
def value(request: pytest.FixtureRequest) -> Any:
    """What a public name stands for."""
    found = resolve_name(request.param)
    if isinstance(found, ModuleType):
        pytest.skip("a module")
    return found


def test_there_are_edits() -> None:
    assert {"ablate_head", "apply", "patch_from"} <= set(EDITS)


def test_a_public_name_says_what_it_takes_and_gives(value: Any) -> None:
    text = inspect.getdoc(value) or ""
    first = text.partition("\n")[0]
    assert re.fullmatch(r"[A-Z∂`].*[.]", first), f"one sentence first, got {first!r}"
    if inspect.isclass(value):
        return
    signature = inspect.signature(value)
    for name in signature.parameters:
        assert re.search(rf"^    {name}: ", text, re.MULTILINE), f"Args: lacks {name}"
    if signature.return_annotation not in ("None", None):
        assert "\nReturns:\n" in text


def test_the_example_of_a_public_name_runs(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the project's folder, without other names than the example's own."""
    monkeypatch.chdir(ROOT)
    assert "\nExample:\n" in (inspect.getdoc(value) or ""), "there is an example"
    tests = [test for test in doctest.DocTestFinder(recurse=False).find(value, globs={}) if test.examples]
    assert tests
    out: list[str] = []
    for test in tests:
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=out.append)
    assert not out, "".join(out)
