"""Images of handwritten digits and their layout: pixels as input, the class as the label of the class token.

    in   the ink of every pixel, row by row              [batch, pixel]
    out  the digit  – – – …                              [batch, 1 + patch]      – means “no label”

Patches get logits like every position of an encoder, but no label, so traces have the usual axes and the logit lens works.

The 1,797 images, 8 × 8 pixels of 0–16, come with scikit-learn: the test part of "Optical Recognition of Handwritten Digits"
(Alpaydin & Kaynak 1998, UCI Machine Learning Repository). The split is fixed: every fifth image of a permutation (seed 0) is a
test image (360), the others are for training (1,437). The same thirteen people wrote both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from xformer.errors import MissingLibraryError
from xformer.tasks.batch import IGNORED, Batch
from xformer.tasks.framing import full_layout

CLASS = "class"
"""The label of the first position."""


def image_batch(source: Int[Tensor, "example pixel+1"], n_patches: int) -> Batch:
    """Return a batch of sources (pixels, then the digit). All images have the same size, so nothing is padded or packed."""
    labels = torch.full((len(source), 1 + n_patches), IGNORED, device=source.device)
    labels[:, 0] = source[:, -1]
    return Batch(source[:, :-1], full_layout(labels), labels)


def patch_names(side: int) -> list[str]:
    """Return the labels of the positions: the class token, then rows and columns from 1."""
    return [CLASS, *(f"r{row} c{column}" for row in range(1, side + 1) for column in range(1, side + 1))]


SIDE = 8
"""The side of an image in pixels."""

N_TEST = 360
"""The number of test images."""

_EVERY = 5


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their labels; a source is 64 pixels, row by row, then the digit."""

    sources: Int[Tensor, "image 65"]

    @property
    def pixels(self) -> Int[Tensor, "image 64"]:
        return self.sources[:, :-1]

    @property
    def digits(self) -> Int[Tensor, " image"]:
        return self.sources[:, -1]

    def __len__(self) -> int:
        return len(self.sources)


@cache
def digit_images() -> tuple[Images, Images]:
    """Return the training images and the test images, cached."""
    sources = torch.from_numpy(np.loadtxt(_file(), delimiter=",").astype(np.int64))
    order = np.random.RandomState(0).permutation(len(sources))  # stable across NumPy versions
    is_test = torch.zeros(len(sources), dtype=torch.bool)
    is_test[torch.from_numpy(order[::_EVERY])] = True
    return Images(sources[~is_test]), Images(sources[is_test])


def _file() -> Path:
    """Return the path of scikit-learn's file; reading it takes 0.1 s, importing `load_digits` 2 s."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise MissingLibraryError("The images of the digits come with scikit-learn: pip install scikit-learn")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
