"""How alike the places of an image's patches are to a model, which only ever sees them as one line of tokens.

cosine of each patch's position vector with all others'              (Dosovitskiy et al. 2021, arXiv:2010.11929, fig. 7 centre)
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.positions import added_positions
from xformer.reading import Reading


def place_cosines(reading: Reading) -> Float[Tensor, "patch patch"]:
    """The cosine of each patch's position vector with every other's. Raises `InputError` where no positions are added."""
    vectors = torch.nn.functional.normalize(added_positions(reading)[1:].double(), dim=-1)  # without the class token
    return vectors @ vectors.T


def patch_places(reading: Reading) -> pd.DataFrame:
    """One row per pair of patches: patch, other (by row and column, "r1 c3"), cosine, itself."""
    cosine, names = place_cosines(reading), np.array(reading.tokens[1:])
    n = len(names)
    return pd.DataFrame(
        {
            "patch": names.repeat(n),
            "other": np.tile(names, n),
            "cosine": cosine.flatten().numpy(),
            "itself": np.eye(n, dtype=bool).flatten(),
        }
    )
