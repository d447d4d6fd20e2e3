"""What a patch of an image is turned into: the columns of W in p·W + b, each a filter of pixels, and their components.

(Dosovitskiy et al. 2021, arXiv:2010.11929, fig. 7 left)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.embeddings import pca
from xformer.errors import InputError
from xformer.layers.embedding import PatchEmbedding
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.subjects import own_model
from xformer.words import percent


def patch_weights(model: Transformer) -> Float[Tensor, "d_model y x"]:
    """What each number of a patch's vector adds up: its weights on the pixels. Raises `InputError` without patches."""
    if not isinstance(model.embedding, PatchEmbedding):
        raise InputError("Only a model of images has patch filters, and this one reads tokens.")
    side = model.config.patch
    return model.embedding.weight.detach().view(-1, side, side)


def principal_filters(
    filters: Float[Tensor, "d_model y x"],
) -> tuple[Float[Tensor, "axis y x"], Float[Tensor, " axis"]]:
    """The principal axes of the filters as patches, and the share of their variance along each."""
    found = pca(filters.flatten(1))
    return found.axes.view(-1, *filters.shape[1:]), found.explained


def patch_filters(reading: Reading) -> pd.DataFrame:
    """The filters of the patch embedding, the strongest first, one row a weight: filter, pixel y, pixel x, weight."""
    filters = patch_weights(own_model(reading.subject))
    order = filters.flatten(1).norm(dim=1).argsort(descending=True)
    return _table(filters[order], [f"dimension {index}" for index in order.tolist()])


def filter_components(reading: Reading) -> pd.DataFrame:
    """The directions in which the filters differ most, named by their share of the variance; columns as in `patch_filters`."""
    axes, explained = principal_filters(patch_weights(own_model(reading.subject)))
    return _table(axes, [f"component {axis + 1}: {percent(share, 0)}" for axis, share in enumerate(explained.tolist())])


def _table(filters: Float[Tensor, "filter y x"], names: Sequence[str]) -> pd.DataFrame:
    which, y, x = (index.flatten() for index in np.indices(filters.shape))
    weights = filters.double().flatten().numpy(force=True)
    return pd.DataFrame({"filter": np.array(names, dtype=object)[which], "pixel y": y, "pixel x": x, "weight": weights})
