"""Public names are documented: a first sentence, arguments, results, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import xformer
from xformer import assignments, masks, testing
from xformer.checkpoints import load

ROOT = Path(__file__).parents[1]
EDITS = sorted(
    name
    for name, value in vars(xformer.edits).items()
    if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == "xformer.edits"
)


ASSERTIONS = sorted(f"xformer.testing.{name}" for name in vars(testing) if name.startswith("assert_"))
NAMES = [
    *(f"xformer.{name}" for name in xformer.__all__),
    *(f"xformer.edits.{name}" for name in EDITS),
    *(f"xformer.assignments.{name}" for name in assignments.__all__),
    *(f"xformer.masks.{name}" for name in masks.__all__),
    *ASSERTIONS,
]
"""Public names; the modules among them have names of their own."""
DRAWN = [f"{package.__name__}.{name}" for package in (xformer.analysis, xformer.viz) for name in package.__all__]
SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
WORDS = {"title", "attention"}
"""Parameters whose value is text for people, or the path of a layer."""


MODULES = {"xformer.analysis", "xformer.analysis.principles", "xformer.edits", "xformer.masks", "xformer.viz"}
PUBLIC = sorted({*NAMES, *DRAWN} - MODULES)
"""The names whose docstrings are read; resolved only in the tests, as that imports what draws."""


def test_every_public_name_says_what_it_takes_and_gives() -> None:
    """Values of options are in snake_case. A chart may refer to the arguments of its table."""
    assert {"ablate_head", "apply", "patch_from"} <= set(EDITS)
    assert len(ASSERTIONS) == 7
    assert all(isinstance(resolve_name(name), ModuleType) for name in MODULES)
    for name in PUBLIC:
        value = resolve_name(name)
        text = inspect.getdoc(value) or ""
        assert re.fullmatch(r"[A-Z∂`].*[.]", text.partition("\n")[0]), f"{name}: one sentence first"
        if inspect.isclass(value):
            continue
        signature = inspect.signature(value)
        if (table := name.replace(".viz.", ".analysis.")) != name and f"those of `{table[8:]}`" in text:
            text += inspect.getdoc(resolve_name(table)) or ""
        assert signature.return_annotation in ("None", None) or "\nReturns:\n" in text, name
        for parameter in signature.parameters.values():
            assert re.search(rf"^    {parameter.name}: ", text, re.MULTILINE), f"{name}: Args: lacks {parameter.name}"
            annotation = str(parameter.annotation)
            written = re.findall(r"[\"']([^\"']*)[\"']", annotation) if "Literal" in annotation else []
            if isinstance(parameter.default, str) and parameter.name not in WORDS:
                written.append(parameter.default)
            assert not [one for one in written if one and not SNAKE_CASE.fullmatch(one)], f"{name}: {parameter}"


loaded_once = cache(load)
"""The examples read the same few models, and only read them."""


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the project's folder, without other names than the example's own; a table has columns in snake_case."""
    value = resolve_name(name)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("xformer.reading.load", loaded_once)
    assert "\nExample:\n" in (inspect.getdoc(value) or ""), "there is an example"
    [test] = [test for test in doctest.DocTestFinder(recurse=False).find(value, globs={}) if test.examples]
    out: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=flags).run(test, out=out.append, clear_globs=False)
    assert not out, "".join(out)
    table = test.globs.get("table")
    if table is not None:
        assert not [column for column in table.columns if isinstance(column, str) and not SNAKE_CASE.fullmatch(column)]
        assert not [level for level in table.index.names if level is not None and not SNAKE_CASE.fullmatch(level)]
