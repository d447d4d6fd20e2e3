"""How far the attention of each head moves between two runs, and whether a run looks back only."""

from __future__ import annotations

import pandas as pd

from xformer.reading import Reading


def attention_moved(reading: Reading, *, before: Reading) -> pd.DataFrame:
    """How far each head's attention moved from the run `before`, of equal length: layer (its path), head (from 0), moved.

    moved = mean over queries of ½ Σ_key |p_after − p_before|, the share of the attention that went elsewhere (0 to 1).
    """
    rows = []
    for site in reading.attention:
        after, was = (run[f"{site.path}.pattern"][0].double() for run in (reading, before))  # [head, query, key]
        moved = ((after - was).abs().sum(dim=-1) / 2).mean(dim=-1).tolist()  # [head]
        rows += [(site.path, head, share) for head, share in enumerate(moved)]
    return pd.DataFrame(rows, columns=["layer", "head", "moved"])


def looks_back_only(reading: Reading, stack: str | None = None) -> bool:
    """Whether every self-attention of a run (of one of its stacks) kept each query from all later keys."""
    paths = [site.path for site in reading.attention if not site.is_cross and stack in (None, site.stack)]
    return all(not reading[f"{path}.mask"].triu(1).any() for path in paths)
