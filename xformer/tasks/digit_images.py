"""The images of the task digits: 1,797 handwritten digits, 8 × 8 pixels of 0–16, that scikit-learn carries with it.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak 1998, UCI Machine Learning
Repository): 32 × 32 bitmaps whose 4 × 4 blocks were counted. The split is fixed: of a permutation of all images (seed 0), every
fifth is a test image (360), the others are for training (1,437). The same thirteen people wrote both.
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

SIDE = 8
"""Pixels in a row, and rows in an image."""
N_TEST = 360
"""How many of the images are for testing."""
_EVERY = 5


@dataclass(frozen=True, eq=False)
class Images:
    """Some images with what they show: a source each, the 64 pixels row by row and then the digit."""

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
    """The training images and the test images, read when they are first needed."""
    sources = torch.from_numpy(np.loadtxt(_file(), delimiter=",").astype(np.int64))
    order = np.random.RandomState(0).permutation(len(sources))  # this generator's numbers never change between versions
    is_test = torch.zeros(len(sources), dtype=torch.bool)
    is_test[torch.from_numpy(order[::_EVERY])] = True
    return Images(sources[~is_test]), Images(sources[is_test])


def _file() -> Path:
    """Where scikit-learn keeps them: to import it for its `load_digits` takes two seconds, to read them a tenth of one."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise MissingLibraryError("The images of the digits come with scikit-learn: pip install scikit-learn")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
