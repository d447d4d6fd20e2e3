"""Bugs at the two ends of a model: no positions going in, probabilities instead of scores coming out."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.surgery import exchange
from xformer.bugs.written_out import WrittenOut
from xformer.config import ModelConfig
from xformer.layers.attention import Attention
from xformer.layers.cache import LayerCache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.embedding import AnyEmbedding, Unembedding
from xformer.layers.layout import Layout
from xformer.layers.masks import NO_MASK, Mask
from xformer.layers.position_tables import AddPositions
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape


class TokensAlone(AddPositions):
    """embed, with the table of positions there and not used."""

    def forward(
        self, embed: Float[Tensor, "batch pos d_model"], layout: Layout, tape: AnyTape = SILENT
    ) -> Float[Tensor, "batch pos d_model"]:
        return tape("embed", embed)


class NoOrder(WrittenOut):
    """Attention that drops the angles of its queries and keys, and the bias of its scores."""

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        *,
        mask: Mask = NO_MASK,
        angles: Float[Tensor, "*batch pos half"] | None = None,
        position_bias: Float[Tensor, "#batch head query key"] | None = None,
        tape: AnyTape = SILENT,
        dropout: Dropout = NO_DROPOUT,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        return super().forward(x, memory, mask=mask, tape=tape, dropout=dropout, cache=cache)


class Probabilities(Unembedding):
    """softmax(x W + b), before a cross-entropy that takes the softmax itself."""

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], embedding: AnyEmbedding
    ) -> Float[Tensor, "batch pos vocab"]:
        return super().forward(x, embedding).softmax(dim=-1)


def _without_positions(model: Transformer) -> Transformer:
    if model.config.position_kind.acts_on == "stream":
        return exchange(model, AddPositions, TokensAlone)
    return exchange(model, Attention, NoOrder, "attn")


def _any(config: ModelConfig) -> bool:
    return True


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
        lambda config: config.position_kind.acts_on != "nothing",
        _without_positions,
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
        _any,
        lambda model: exchange(model, Unembedding, Probabilities),
    ),
)
