"""What a model of images says to all test images, and what its patches look like to it.

patch filters      the columns of W in p·W + b: what each number of a patch's vector looks for in its pixels, and their
                   principal components                                (Dosovitskiy et al. 2021, arXiv:2010.11929, fig. 7 left)
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.embeddings import pca
from xformer.errors import InputError
from xformer.layers.embedding import PatchEmbedding
from xformer.memory import rows_that_fit
from xformer.model import Transformer
from xformer.tasks.digit_images import digit_images


@torch.no_grad()
def read_test_images(model: Transformer) -> pd.DataFrame:
    """One row per test image, in their order: image, digit, said, probability (of what it said), of_digit (the right one's)."""
    _, test = digit_images()
    parts = test.pixels.to(model.device).split(rows_that_fit(model.config, model.config.max_len))
    p = torch.cat([model(part)[:, 0] for part in parts]).softmax(dim=-1).cpu()  # [image, digit]
    best = p.max(dim=-1)
    return pd.DataFrame(
        {
            "image": range(len(test)),
            "digit": test.digits.tolist(),
            "said": best.indices.tolist(),
            "probability": best.values.tolist(),
            "of_digit": p.gather(1, test.digits[:, None])[:, 0].tolist(),
        }
    )


def mistakes(read: pd.DataFrame) -> pd.DataFrame:
    """The rows of `read_test_images` that are wrong, the surest first."""
    return read.loc[read["said"] != read["digit"]].sort_values("probability", ascending=False)


def patch_filters(model: Transformer) -> Float[Tensor, "d_model y x"]:
    """What each number of a patch's vector looks for: its weights on the pixels. Raises `InputError` without patches."""
    if not isinstance(model.embedding, PatchEmbedding):
        raise InputError("Only a model of images has patch filters, and this one reads tokens.")
    side = model.config.patch
    return model.embedding.weight.detach().view(-1, side, side)


def filter_components(
    filters: Float[Tensor, "d_model y x"],
) -> tuple[Float[Tensor, "axis y x"], Float[Tensor, " axis"]]:
    """The principal axes of the filters as patches, and the share of their variance along each."""
    found = pca(filters.flatten(1))
    return found.axes.view(-1, *filters.shape[1:]), found.explained
