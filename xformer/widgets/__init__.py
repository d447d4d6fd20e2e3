"""Pictures that run in a browser, wherever that browser looks: in the app, in a notebook, or in a file of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.widgets.attention_view import AttentionView, attention_view
    from xformer.widgets.page import comparison_page, film_page, save_html, view_page
else:
    __getattr__, __dir__, _ = attach(
        __name__,
        {
            "AttentionView": "attention_view",
            "attention_view": "attention_view",
            "comparison_page": "page",
            "film_page": "page",
            "save_html": "page",
            "view_page": "page",
        },
    )

__all__ = ["AttentionView", "attention_view", "comparison_page", "film_page", "save_html", "view_page"]
