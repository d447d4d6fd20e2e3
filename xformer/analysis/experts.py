"""Which experts of a mixture each token takes: the weights with which their outputs are added (Shazeer et al. 2017)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from xformer.reading import Reading


def expert_weights(reading: Reading, *, layer: int) -> pd.DataFrame:
    """One row for each position and expert: position, token, expert (from 0), weight; 0 for an expert that is not taken.

    `layer` counts the feed-forward layers from 0. Raises `EditError` where there is no such layer, `UnavailableError` where it
    has no router that was found.
    """
    site = reading.feed_forward_site(layer)
    weights = reading[f"{site.path}.experts"][0].float()  # [pos, expert]
    n, n_experts = weights.shape
    return pd.DataFrame(
        {
            "position": np.repeat(np.arange(n), n_experts),
            "token": np.repeat(np.array(reading.tokens_of(site.stack), dtype=object), n_experts),
            "expert": np.tile(np.arange(n_experts), n),
            "weight": weights.flatten().tolist(),
        }
    )
