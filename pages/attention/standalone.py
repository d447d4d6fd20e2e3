"""The attention view as a page that stands alone, with the link that brings back what it shows."""

from __future__ import annotations

from collections.abc import Callable

from pages.components.attention_view import Selection
from pages.shared.link import address
from pages.shared.resources import mask_words
from pages.shared.view import View
from xformer.interventions import join
from xformer.widgets.page import view_page


def standalone(view: View, chosen: Selection, **link: str) -> Callable[[], str]:
    """What makes the page, once it is asked for; `link` is what the screen's link has besides the view."""
    caption = [address({**view.link, **link})]
    changes = ", ".join([*mask_words(view.mask), *filter(None, [join(view.interventions)])])

    def page() -> str:
        cell = (chosen.query, chosen.key)
        original, changed = view.original(), view.changed()
        return view_page(
            original, changed, layer=chosen.layer, head=chosen.head, cell=cell, changes=changes, caption=caption
        )

    return page
