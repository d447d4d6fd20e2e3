"""Screens never use `ttl` or `.clear()` with Streamlit's caches.

An entry with a `ttl` can expire between Streamlit's check and its read, which raises `KeyError`; `.clear()` removes entries
that other visitors are reading.
"""

from __future__ import annotations

import re

from tests.pages.conftest import ROOT

CACHE = r"cache_(?:resource|data)"
FILES = sorted([ROOT / "app.py", *(ROOT / "pages").rglob("*.py")])


def faults(source: str) -> list[str]:
    """Return each `ttl` of a Streamlit cache and each `.clear()` of a cache or a cached function."""
    cached = re.findall(rf"@(?:st\.)?{CACHE}\b.*\n(?:@.*\n)*(?:async )?def (\w+)", source)
    return re.findall(rf"{CACHE}\([^)]*\bttl\b|\b(?:{'|'.join([CACHE, *cached])})\.clear\(", source)


def test_ttl_and_clear_are_detected() -> None:
    cached = "@st.cache_data(max_entries=1)\ndef f(): ...\n"
    for source, n in (
        ("@st.cache_data(ttl=10)\ndef f(): ...", 1),
        (f"{cached}f.clear()", 1),
        ("from streamlit import cache_resource\ncache_resource.clear()", 1),
        (f"{cached}st.query_params.clear()", 0),
    ):
        assert len(faults(source)) == n, source


def test_no_screen_uses_ttl_or_clear() -> None:
    assert len(FILES) > 50
    found = {str(file.relative_to(ROOT)): faults(file.read_text(encoding="utf-8")) for file in FILES}
    assert not {file: lines for file, lines in found.items() if lines}
