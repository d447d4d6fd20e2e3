"""Two buttons that copy the address of what is shown: as a link, and as an iframe for slides with the picture alone.

The browser reads the address when a button is pressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streamlit.components.v2 import component

_HERE = Path(__file__).parent
_component = component(
    "xformer_copy_address",
    css=(_HERE / "copy_address.css").read_text(encoding="utf-8"),
    js=(_HERE / "copy_address.js").read_text(encoding="utf-8"),
)


def copy_address(title: str, *, usual: Mapping[str, str], key: str) -> None:
    """Draw the buttons; parameters with the values in `usual` are left out of the iframe's address."""
    _component(key=key, data={"title": title, "usual": dict(usual)})
