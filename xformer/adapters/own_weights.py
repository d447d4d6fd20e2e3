"""The weights of our own transformers, as `Weights` asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.weights import Projection, Readout
from xformer.errors import InputError
from xformer.layers.embedding import PatchEmbedding, TokenEmbedding
from xformer.layers.residual import PostNorm, PreNorm
from xformer.model import Transformer
from xformer.site import Site
from xformer.trace import Trace


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

    def norm_before(self, path: str) -> nn.Module | None:
        """Of pre-norm alone."""
        _, residual = self._parts(path)
        return residual.norm if isinstance(residual, PreNorm) else None

    def last_norm(self, stack: str) -> nn.Module | None:
        return getattr(self.model, stack).norm

    def heads_read(
        self, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """x W_Q + b_Q, or x W_K + b_K, turned where positions turn them, as the run did."""
        with torch.set_grad_enabled(x.requires_grad):
            return self._heads_read(trace, path, x, side)

    def _heads_read(self, trace: Trace, path: str, x: Tensor, side: Literal["q", "k"]) -> Tensor:
        attention, _ = self._parts(path)
        which = 0 if side == "q" else 1
        weight = attention.weight_in.split(attention.rows)[which].to(x.dtype)
        bias = None if attention.bias_in is None else attention.bias_in.split(attention.rows)[which].to(x.dtype)
        read = attention.split(F.linear(x, weight, bias), attention.n_kv_heads if which else None)
        read = attention.kv.expand(read, attention.n_heads) if which else read
        angles = f"{path}.pos_angles"
        return attention.positions.turn(read, trace[angles].to(x.dtype)) if angles in trace else read

    def n_parameters(self) -> int:
        """What is shared counts once."""
        return sum(weight.numel() for weight in self.model.parameters())

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
