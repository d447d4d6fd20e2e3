"""Full attention: only causality and padding mask keys (Vaswani et al. 2017, arXiv:1706.03762, §3.2)."""

from __future__ import annotations

from xformer.components.component import Mask


class FullMask(Mask):
    """Every key is visible; in a causal stack, every earlier one."""

    name = "full"
    title = "Full"
    explanation = "Each query can attend to every key, except for the causal and padding masks."
    source = "Vaswani et al. 2017, §3.2"
