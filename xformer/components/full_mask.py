"""Full attention: no key is masked but by causality and padding (Vaswani et al. 2017, arXiv:1706.03762, §3.2)."""

from __future__ import annotations

from xformer.components.component import Mask


class FullMask(Mask):
    """Every key; in a causal stack every earlier one."""

    name = "full"
    title = "Full"
    explanation = "Each query looks at every key that causality and padding leave."
    source = "Vaswani et al. 2017, §3.2"
