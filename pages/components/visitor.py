"""A number for each browser, kept in a cookie: so that a run still belongs to whoever started it after a reload."""

from __future__ import annotations

from pathlib import Path

from streamlit.components.v2 import component

COOKIE = "xformer_visitor"
_HERE = Path(__file__).parent
_component = component("xformer_visitor", js=(_HERE / "visitor.js").read_text(encoding="utf-8"))


def visitor_number(*, key: str) -> str | None:
    """The number of this browser: 32 hexadecimal digits, made on the first visit; None until the browser has answered."""
    result = _component(key=key, data={"cookie": COOKIE}, on_number_change=lambda: None)
    sent = result.get("number")
    return sent if isinstance(sent, str) else None
