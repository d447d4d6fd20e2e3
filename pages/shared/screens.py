"""The screens that show one model: where a step of a run can be opened."""

from __future__ import annotations

SCREENS = {
    "Home": "pages/explore/home.py",
    "Embeddings": "pages/explore/embeddings.py",
    "Positions": "pages/explore/positions.py",
    "Attention": "pages/explore/attention.py",
    "Feed-forward": "pages/explore/feed_forward.py",
    "Residual": "pages/explore/residual.py",
}
