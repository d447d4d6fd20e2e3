"""The attention view as a page that stands alone, with the link that brings back what it shows."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.resources import MASKS
from pages.shared.view import View
from xformer.interventions import join
from xformer.widgets.page import view_page


def standalone(view: View, chosen: Selection, **link: str) -> Callable[[], str]:
    """What makes the page, once it is asked for; `link` is what the screen's link has besides the view."""
    address = f"{st.context.url or ''}?{urlencode({**view.link, **link})}"
    masked = [f"{view.mask} mask"] if view.mask != MASKS[0] else []
    changes = ", ".join([*masked, *filter(None, [join(view.interventions)])])

    def page() -> str:
        cell = (chosen.query, chosen.key)
        original, changed = view.original(), view.changed()
        return view_page(
            original, changed, layer=chosen.layer, head=chosen.head, cell=cell, changes=changes, caption=[address]
        )

    return page
