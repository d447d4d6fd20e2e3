"""How an image is put before a model: its pixels go in, and its class is asked for at the class token alone.

    in   the ink of every pixel, row by row              [batch, pixel]
    out  the digit  – – – …                              [batch, 1 + patch]      – stands for “no right answer”

Every patch gets logits too, as every position of an encoder does, but only the class token's have a label. So a trace has the
same axes as that of any other model, and the logit lens can be asked what a patch would say.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

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
