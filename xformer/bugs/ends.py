"""Bugs at the two ends of a model: no positions going in, probabilities instead of scores coming out."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.layers.embedding import AnyEmbedding, Unembedding
from xformer.layers.layout import Layout
from xformer.layers.position_tables import AddPositions
from xformer.tape import SILENT, AnyTape


class TokensAlone(AddPositions):
    """embed, with nothing added to it, no query or key turned, and no score changed; a learned table is there and not used."""

    def forward(
        self, embed: Float[Tensor, "batch pos d_model"], layout: Layout, tape: AnyTape = SILENT
    ) -> Float[Tensor, "batch pos d_model"]:
        return tape("embed", embed)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None

    def bias(self, queries: Tensor, keys: Tensor, dtype: torch.dtype, *, causal: bool) -> None:
        return None


class Probabilities(Unembedding):
    """softmax(x W + b), before a cross-entropy that takes the softmax itself."""

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], embedding: AnyEmbedding
    ) -> Float[Tensor, "batch pos vocab"]:
        return super().forward(x, embedding).softmax(dim=-1)


END_BUGS = (
    Bug(
        "no-positions",
        "No positions",
        "Nothing tells the model where a token stands: the position encoding is computed and not added, or left out.",
        "blocks rebuilt from a diagram of the layers alone, and forward methods that forget the sum",
        "x = E[token]",
        "x = E[token] + P[position]   (rotary, ALiBi, T5: inside the attention)",
        "Equal tokens have equal rows and columns in every pattern; an encoder answers the same set whatever its order.",
        "positions other than none",
        lambda model: replace_modules(model, AddPositions, TokensAlone),
        lambda config: config.position_kind.acts_on != "nothing",
    ),
    Bug(
        "softmax-before-loss",
        "Softmax before the loss",
        "The model ends in a softmax, and the cross-entropy takes another one.",
        "models that keep the softmax of the paper's figure, together with a loss that expects raw scores",
        "loss = −log softmax(softmax(logits))",
        "loss = −log softmax(logits)",
        "Predictions rank as before, but no probability can come near 1: the loss gets stuck high above 0.",
        "no more than an output",
        lambda model: replace_modules(model, Unembedding, Probabilities),
    ),
)
