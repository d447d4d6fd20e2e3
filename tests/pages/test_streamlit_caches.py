"""Streamlit's caches under the screens: keyed by what changes, and never timed or cleared.

An entry with a `ttl` can expire between Streamlit's check and its read, which raises `KeyError` at a visitor; `.clear()` takes
from one visitor what another is reading.
"""

from __future__ import annotations

import ast

from tests.pages.conftest import ROOT, parsed

DECORATORS = {"cache_resource", "cache_data"}
FILES = sorted([ROOT / "app.py", *(ROOT / "pages").rglob("*.py")])


def faults(tree: ast.Module) -> list[str]:
    """Each use of `ttl` with a cache of Streamlit's, each `.clear()` of one or of a function that has one."""
    cached = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and any(_is_cache(decorator) for decorator in function.decorator_list)
    }
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if _is_cache(call) and any(keyword.arg == "ttl" for keyword in call.keywords):
            found.append(f"line {call.lineno}: ttl")
        if isinstance(call.func, ast.Attribute) and call.func.attr == "clear":
            owner = call.func.value
            if _is_cache(owner) or (isinstance(owner, ast.Name) and owner.id in cached):
                found.append(f"line {call.lineno}: clear")
    return found


def _is_cache(node: ast.expr) -> bool:
    node = node.func if isinstance(node, ast.Call) else node
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in DECORATORS


def test_a_timed_or_cleared_cache_is_seen() -> None:
    cached = "@st.cache_data(max_entries=1)\ndef f(): ...\n"
    for source, n in (
        ("@st.cache_data(ttl=10)\ndef f(): ...", 1),
        (f"{cached}f.clear()", 1),
        ("from streamlit import cache_resource\ncache_resource.clear()", 1),
        (f"{cached}st.query_params.clear()", 0),
    ):
        assert len(faults(ast.parse(source))) == n, source


def test_no_cache_under_a_screen_is_timed_or_cleared() -> None:
    assert len(FILES) > 50
    found = {str(file.relative_to(ROOT)): faults(parsed(file)) for file in FILES}
    assert not {file: lines for file, lines in found.items() if lines}
