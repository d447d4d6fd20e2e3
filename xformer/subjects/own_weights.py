"""The weights of our own transformers, as `Weights` asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.errors import InputError
from xformer.layers.embedding import PatchEmbedding, TokenEmbedding
from xformer.layers.residual import PostNorm
from xformer.model import Transformer
from xformer.site import Site
from xformer.subjects.weights import Projection, Readout


@dataclass(frozen=True, eq=False)
class OwnWeights:
    """Nothing is copied."""

    model: Transformer

    @torch.no_grad()
    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab d_model"]:
        """Scaled where the model scales it. Raises `InputError` for a model of images."""
        embedding = self._embedding(stack)
        return embedding(torch.arange(len(embedding.token), device=embedding.token.device)[None])[0]

    def unembedding(self) -> Readout:
        """The norm is that of the stack that predicts."""
        model = self.model
        stack = model.encoder if model.decoder is None else model.decoder
        return Readout(
            model.unembedding.matrix(model.embedding), model.unembedding.bias, None if stack is None else stack.norm
        )

    def projection(self, path: str) -> Projection:
        """W_O of attention, W₂ of a feed-forward layer."""
        sublayer, _ = self._parts(path)
        return Projection(sublayer.weight_out.T, sublayer.bias_out)

    def norm_after(self, path: str) -> nn.Module | None:
        """Of post-norm alone."""
        _, residual = self._parts(path)
        return residual.norm if isinstance(residual, PostNorm) else None

    def _parts(self, path: str) -> tuple[Any, Any]:
        site = Site.parse(path)
        block = getattr(self.model, site.stack).blocks[site.layer]
        return getattr(block, site.kind), getattr(block, f"{site.kind}_residual")

    def _embedding(self, stack: str | None) -> TokenEmbedding:
        """The embedding that a stack reads its tokens with: an encoder-decoder may have one for each side."""
        if stack != "decoder" and self.model.source_embedding is not None:
            return self.model.source_embedding
        if isinstance(self.model.embedding, PatchEmbedding):
            raise InputError(
                "A model of images looks no token up; see `patch_filters` for what it does with its patches."
            )
        return self.model.embedding
