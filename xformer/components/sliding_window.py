"""Sliding-window attention (Beltagy et al. 2020, arXiv:2004.05150, §3.1; Mistral 7B, Jiang et al. 2023, arXiv:2310.06825, §2).

allowed(i, j) = |i − j| < window        in a causal stack also j ≤ i, so a query sees itself and window − 1 earlier keys

Information moves at most window − 1 positions in each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xformer.components.component import Mask, MaskPicture, Sizes
from xformer.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor


class SlidingWindow(Mask):
    """Only keys fewer than `window` positions away are visible."""

    name = "sliding_window"
    title = "Sliding window"
    explanation = "A query attends only to keys fewer than `window` positions away. A layer reaches one window further."
    source = "Beltagy et al. 2020, §3.1; Jiang et al. 2023, §2"

    def check(self, sizes: Sizes) -> None:
        least = 1 if sizes.see_self else 2
        if sizes.window < least:
            raise ConfigError(
                f"mask='sliding_window' needs a window of at least {least}, got window={sizes.window}; for example window=8."
            )

    def allowed(self, sizes: Sizes, n_query: int, n_key: int, device: Any = "cpu") -> Bool[Tensor, "query key"] | None:
        if n_key <= sizes.window:
            return None
        import torch

        query = torch.arange(n_key - n_query, n_key, device=device)  # [query]
        offset = torch.arange(n_key, device=device) - query[:, None]  # [query, key]
        return offset.abs() < sizes.window

    def picture(self, sizes: Sizes, *, causal: bool) -> MaskPicture:
        rows = super().picture(sizes, causal=causal)
        reach = min(sizes.window, 2)  # a wider one would fill the miniature
        return tuple(tuple(seen and abs(q - k) < reach for k, seen in enumerate(row)) for q, row in enumerate(rows))

    def width(self, sizes: Sizes) -> int:
        return sizes.window

    def seen(self, sizes: Sizes, *, causal: bool) -> str:
        n = sizes.window - 1
        positions = "1 position" if n == 1 else f"{n} positions"
        where = "before it" if causal else "on either side"
        itself = "itself and " if sizes.see_self else ""
        return f"{itself}the {positions} {where} (sliding window)"
