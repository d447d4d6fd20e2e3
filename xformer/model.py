"""The transformer: an encoder, a decoder, or both, as one plain `nn.Module`.

encoder            tokens → logits, every position sees every other; or pixels → class logits, at the class token and, for
                   inspection, at every patch (Dosovitskiy et al. 2021, arXiv:2010.11929)
decoder            tokens → logits, a position sees itself and earlier positions
encoder-decoder    (source, target) → logits of the target; decoder layers also attend to the encoded source
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.errors import InputError
from xformer.layers.attention import Attention, Cache
from xformer.layers.dropout import NO_DROPOUT, Dropout
from xformer.layers.embedding import PositionTables, TokenEmbedding, Unembedding, embedding_of
from xformer.layers.feed_forward import NormLayer
from xformer.layers.masks import LayerMask, SequencePacking, layout_mask
from xformer.layers.stack import Block, BlockInputs, CrossBlock, Stack
from xformer.tape import SILENT, AnyTape


class Transformer(nn.Module):
    """A transformer of the shape that a `ModelConfig` describes: an encoder, a decoder or both.

    Args:
        config: The shape. An encoder and a decoder map tokens [batch, pos] to logits [batch, pos, vocab]; an encoder-decoder
            maps a source [batch, pos] and a target [batch, target] to logits [batch, target, vocab].
        generator: The source of randomness of the initial weights; None is PyTorch's own.

    Source: Vaswani et al. 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762

    Example:
        >>> import torch, xformer
        >>> config = xformer.ModelConfig(
        ...     architecture="decoder", vocab_size=20, d_model=16, n_layers=2, n_heads=4, d_ff=32, max_len=8
        ... )
        >>> model = xformer.Transformer(config, torch.Generator().manual_seed(0))
        >>> model(torch.tensor([[3, 7, 12]])).shape  # [batch, pos, vocab]
        torch.Size([1, 3, 20])
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding_of(config)
        self.source_embedding: TokenEmbedding | None = None
        self.encoder: Stack | None = None
        self.decoder: Stack | None = None
        if config.architecture == "encoder":
            self.encoder = Stack(config, Block, causal=config.looks_back_only("encoder"))
        elif config.architecture == "decoder":
            self.decoder = Stack(config, Block, causal=True)
        else:
            self.source_embedding = None if config.tied_source else TokenEmbedding(config)
            self.encoder = Stack(config, Block, causal=False)
            self.decoder = Stack(config, CrossBlock, causal=True)
        self.unembedding = Unembedding(config)
        initialise(self, config, generator)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def forward(
        self,
        tokens: Int[Tensor, "batch pos"],
        target: Int[Tensor, "batch target"] | None = None,
        *,
        pad: int | None = None,
        valid: Bool[Tensor, "batch pos"] | None = None,
        target_valid: Bool[Tensor, "batch target"] | None = None,
        layout: SequencePacking | None = None,
        target_layout: SequencePacking | None = None,
        mask: Bool[Tensor, "*batch query key"] | None = None,
        tape: AnyTape | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch out vocab"]:
        """Return the logits of every position.

        Padding is given by `valid` (true where there is a token), by the token id `pad`, or by a `layout`. `mask` further
        restricts self-attention (in an encoder-decoder, that of the decoder). `generator` is the source of randomness of
        dropout, which applies only in `train()` mode and never to a recorded run.

        Raises `InputError` when the tokens do not fit the configuration.
        """
        tape = SILENT if tape is None else tape
        dropout = Dropout.of(self.config, generator) if self.training and not tape.recording else NO_DROPOUT
        layout = self._layout(tokens, pad, valid, layout)
        name, stack = self._last_stack
        context, at = BlockInputs(dropout=dropout), tape.at(name)
        if self.config.architecture == "encoder-decoder":
            if target is None:
                raise InputError("An encoder-decoder needs both a source and a target: model(source, target).")
            source_layout, layout = layout, self._layout(target, pad, target_valid, target_layout)
            padded = layout.padded or source_layout.padded
            cross_mask = LayerMask(
                layout=layout_mask(layout, source_layout), rows_may_be_empty=padded, is_ordered=False
            )
            memory = self.encode(tokens, layout=source_layout, tape=tape, dropout=dropout)
            context = BlockInputs(memory=memory, cross_mask=cross_mask, dropout=dropout)
            tokens, once = target, at  # both stacks have an embedding and a final norm
        elif target is not None:
            raise InputError(f"A model with architecture={self.config.architecture!r} takes only tokens, no target.")
        else:
            once = tape
        x = stack(self.embedding(tokens), layout, context=context, custom_mask=mask, tape=once, layer_tape=at)
        return tape("logits", self.unembedding(x, self.embedding))

    def encode(
        self,
        source: Int[Tensor, "batch pos"],
        *,
        layout: SequencePacking | None = None,
        tape: AnyTape = SILENT,
        dropout: Dropout = NO_DROPOUT,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the encoder's output, which an encoder-decoder's decoder attends to (the memory)."""
        if self.encoder is None or self.decoder is None:
            raise InputError(
                f"Only an encoder-decoder can encode a source, got architecture={self.config.architecture!r}."
            )
        layout = self._layout(source, None, None, layout)
        embedding = self.source_embedding or self.embedding
        at = tape.at("encoder")
        return self.encoder(embedding(source), layout, context=BlockInputs(dropout=dropout), tape=at, layer_tape=at)

    def extend(
        self, tokens: Int[Tensor, "batch new"], cache: Cache, memory: Float[Tensor, "batch key d_model"] | None = None
    ) -> Float[Tensor, "batch new vocab"]:
        """Return the logits of new tokens whose earlier positions are in `cache`, and append them to the cache.

        Raises `InputError` for an encoder, and for an encoder-decoder without its memory.
        """
        if self.decoder is None:
            raise InputError("An encoder predicts all positions at once and cannot continue a cache; use a decoder.")
        if memory is None and self.encoder is not None:
            raise InputError(
                "An encoder-decoder's decoder attends to a memory: extend(tokens, cache, model.encode(source))."
            )
        self._check(tokens, cache.length)
        layout = SequencePacking.plain(tokens.shape[1], tokens.device, start=cache.length)
        x = self.decoder(self.embedding(tokens), layout, context=BlockInputs(memory=memory), cache=cache)
        return self.unembedding(x, self.embedding)

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Apply the final norm and the output layer to any point of the residual stream, as in the logit lens."""
        _, stack = self._last_stack
        return self.unembedding(stream if stack.norm is None else stack.norm(stream), self.embedding)

    @property
    def _last_stack(self) -> tuple[str, Stack]:
        """The name of the stack that produces the logits, and the stack."""
        name, stack = ("encoder", self.encoder) if self.decoder is None else ("decoder", self.decoder)
        assert stack is not None
        return name, stack

    def _layout(
        self, tokens: Tensor, pad: int | None, valid: Tensor | None, layout: SequencePacking | None
    ) -> SequencePacking:
        if layout is not None:  # the caller is responsible for a layout that fits the tokens
            return layout
        self._check(tokens)
        if self.config.image:
            if pad is not None or valid is not None:
                raise InputError("An image has no padding; omit pad and valid.")
            return SequencePacking.plain(self.config.max_len, tokens.device)
        if valid is None and pad is not None:
            valid = tokens != pad
        if valid is None:
            return SequencePacking.plain(tokens.shape[1], tokens.device)
        if valid.shape != tokens.shape or valid.dtype != torch.bool:
            raise InputError(
                f"valid must be boolean and shaped like the tokens, {list(tokens.shape)}, "
                f"got {valid.dtype} {list(valid.shape)}; for example valid = tokens != 0."
            )
        return SequencePacking.from_valid(valid)

    def _check(self, tokens: Tensor, n_before: int = 0) -> None:
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or tokens.numel() == 0:
            raise InputError(
                f"Tokens must be integers shaped [batch, pos] and not empty, got {tokens.dtype} "
                f"{list(tokens.shape)}; for example torch.tensor([[3, 7, 12]])."
            )
        pixels = self.config.image**2
        if pixels and tokens.shape[1] != pixels:
            raise InputError(
                f"This model reads images of {self.config.image}×{self.config.image} = {pixels} pixels, got {tokens.shape[1]}."
            )
        if not pixels and n_before + tokens.shape[1] > self.config.max_len:
            n = n_before + tokens.shape[1]
            raise InputError(f"This model reads at most {self.config.max_len} tokens, got {n}.")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.n_inputs:
            wrong = low if low < 0 else high
            what = "pixels" if pixels else "tokens"
            raise InputError(f"This model's {what} are 0 to {self.config.n_inputs - 1}, got {wrong}.")


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, generator: torch.Generator | None = None) -> None:
    """Initialise every parameter of `model` in place, except parameters on the meta device.

    "xavier" draws W ~ U(−b, b) with b = gain · √(6 / (fan_in + fan_out)) (Glorot & Bengio 2010), for q, k and v separately;
    "normal" draws W ~ N(0, std²) (GPT-2). Embeddings are N(0, embed_std²), biases 0, norms as their component defines.

    Args:
        model: The module to initialise.
        config: Its configuration: `init`, `init_scale`, `embed_std`.
        generator: The source of randomness; None is PyTorch's own.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:  # sampling on meta would import torch's compiler, which takes seconds
                continue
            if isinstance(module, NormLayer):
                parameter.fill_(module.component.initial()[name])
            elif parameter.dim() == 1:
                parameter.zero_()
            elif name == "token" or isinstance(module, PositionTables):
                parameter.normal_(0.0, config.embed_std, generator=generator)
            elif isinstance(module, Attention) and name == "weight_in":
                for matrix in parameter.split(module.rows):
                    _draw(matrix, config, generator)
            else:
                _draw(parameter, config, generator)


def _draw(matrix: Tensor, config: ModelConfig, generator: torch.Generator | None) -> None:
    if config.init == "normal":
        matrix.normal_(0.0, config.init_scale, generator=generator)
    else:
        bound = config.init_scale * math.sqrt(6 / (matrix.shape[0] + matrix.shape[1]))
        matrix.uniform_(-bound, bound, generator=generator)
