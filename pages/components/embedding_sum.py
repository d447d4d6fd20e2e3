"""Token + position = sum, as an animation: `embedding_sum(embedding_sum_data(reading), key="sum")`."""

from __future__ import annotations

from streamlit.components.v2 import component

from xformer.widgets.scripts import script, style

_component = component("xformer_embedding_sum", css=style("embedding_sum"), js=script("embedding_sum", "streamlit"))


def embedding_sum(data: bytes, *, key: str) -> None:
    """Draw packed data of `xformer.widgets.embedding_sum`."""
    _component(key=key, data=data)
