"""Two buttons that copy where the visitor is: the link, and an iframe for slides that shows the picture of this screen alone.

The address is read in the browser when a button is pressed, so that it is that of what is seen at that moment.
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
    """Draw the buttons; `usual` are parameters that a frame does not need as long as they say this."""
    _component(key=key, data={"title": title, "usual": dict(usual)})
