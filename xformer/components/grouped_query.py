"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245, §2.2; one group: Shazeer 2019, arXiv:1911.02150).

head h:  softmax(Q_h K_g(h)ᵀ / √d_head) V_g(h)        g(h) = ⌊h · n_kv_heads / n_heads⌋

Neighbouring query heads share the keys and values of one group, so that a cache holds n_kv_heads of them instead of n_heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.components.component import KeyValueHeads, Sizes
from xformer.errors import ConfigError

if TYPE_CHECKING:
    from xformer.components.component import GroupVectors, HeadVectors


class GroupedQuery(KeyValueHeads):
    """Fewer key/value heads than query heads."""

    name = "grouped_query"
    title = "Grouped-query"
    explanation = "Neighbouring heads share keys and values; each head keeps its own queries."
    source = "Ainslie et al. 2023, §2.2"

    def check(self, sizes: Sizes) -> None:
        if sizes.n_heads % sizes.n_kv_heads:
            fitting = max(n for n in range(1, sizes.n_kv_heads + 1) if sizes.n_heads % n == 0)
            raise ConfigError(
                f"n_kv_heads must divide n_heads = {sizes.n_heads}, got {sizes.n_kv_heads}; "
                f"for example n_kv_heads={fitting}."
            )

    def n_kv_heads(self, sizes: Sizes) -> int:
        return sizes.n_kv_heads

    def expand(self, x: GroupVectors, n_heads: int) -> HeadVectors:
        return x.repeat_interleave(n_heads // x.shape[1], dim=1)

    def formula(self, sizes: Sizes) -> str:
        d, heads, groups, d_head, d_value = sizes.d_model, sizes.n_heads, sizes.n_kv_heads, sizes.d_head, sizes.d_value
        written = f"{d}·({heads}·({d_head} + {d_value}) + {groups}·({d_head} + {d_value}))"
        biases = f" + {heads}·{d_head} + {groups}·({d_head} + {d_value}) + {d}" if sizes.attention_bias else ""
        return written + biases

    def detail(self, sizes: Sizes) -> str:
        n = sizes.n_kv_heads
        return f"{super().detail(sizes)}, {n} of keys and values"
