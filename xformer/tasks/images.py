"""How an image is put before a model: its pixels go in, and its class is asked for at the class token alone.

    in   the ink of every pixel, row by row              [batch, pixel]
    out  the digit  – – – …                              [batch, 1 + patch]      – stands for “no right answer”

Every patch gets logits too, as every position of an encoder does, but only the class token's have a label. So a trace has the
same axes as that of any other model, and the logit lens can be asked what a patch would say.
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
from xformer.layers.layout import Layout
from xformer.tasks.batch import IGNORED, Batch

CLASS = "class"
"""What the first position is called."""


def image_batch(source: Int[Tensor, "example pixel+1"], n_patches: int) -> Batch:
    """The batch of some sources: pixels, then the digit. Images all have one size, so nothing is padded or packed."""
    n, n_pos = len(source), 1 + n_patches
    labels = torch.full((n, n_pos), IGNORED, device=source.device)
    labels[:, 0] = source[:, -1]
    index = torch.arange(n_pos, device=source.device).expand(n, n_pos)  # [example, pos]
    return Batch(source[:, :-1], Layout(positions=index, mirrored=index.flip(1)), labels)


def patch_names(side: int) -> list[str]:
    """What the positions of an image with side × side patches are called: the class token, then rows and columns from 1."""
    return [CLASS, *(f"r{row} c{column}" for row in range(1, side + 1) for column in range(1, side + 1))]


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
