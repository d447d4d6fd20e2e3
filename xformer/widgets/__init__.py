"""Interactive views that run in a browser: in the app, in a notebook, or in a stand-alone HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.widgets.attention_view import AttentionView as AttentionView
    from xformer.widgets.attention_view import attention_view as attention_view
    from xformer.widgets.page import comparison_page as comparison_page
    from xformer.widgets.page import save_html as save_html
    from xformer.widgets.page import timeline_page as timeline_page
    from xformer.widgets.page import view_page as view_page
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
