"""The attention view as a page that stands alone, with the lines below it that bring back what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pages.components.attention_view import Selection
from pages.shared.resources import mask_words
from pages.shared.view import View
from xformer.interventions import join
from xformer.widgets.page import view_page


def standalone(view: View, chosen: Selection) -> Callable[[Sequence[str]], str]:
    """What makes the page of its caption, once it is asked for."""
    changes = ", ".join([*mask_words(view.mask), *filter(None, [join(view.interventions)])])

    def page(caption: Sequence[str]) -> str:
        cell = (chosen.query, chosen.key)
        original, changed = view.original(), view.changed()
        return view_page(
            original, changed, layer=chosen.layer, head=chosen.head, cell=cell, changes=changes, caption=caption
        )

    return page
