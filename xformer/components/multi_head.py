"""Multi-head attention: each head has its own queries, keys and values (Vaswani et al. 2017, arXiv:1706.03762, §3.2.2)."""

from __future__ import annotations

from xformer.components.component import KeyValueHeads


class MultiHead(KeyValueHeads):
    """As many key/value heads as query heads."""

    name = "multi_head"
    title = "Multi-head"
    explanation = "Each head has its own queries, keys and values."
    source = "Vaswani et al. 2017, §3.2.2"
