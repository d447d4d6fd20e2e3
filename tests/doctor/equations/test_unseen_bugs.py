"""Bugs for which no check was written: those that are found must still be found."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.layers.reference import randomise
from xformer.config import ModelConfig
from xformer.doctor.equations.report import check_trace, varied_inputs
from xformer.layers.attention import Attention, Scores
from xformer.layers.embedding import AddPositions, TokenEmbedding, Unembedding
from xformer.layers.feed_forward import FeedForwardLayer, NormLayer
from xformer.layers.masks import LayerMask
from xformer.layers.stack import CrossBlock
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape


class NextRow(TokenEmbedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward((tokens + 1) % len(self.token))


class CountedFromOne(AddPositions):
    def forward(self, embed: Tensor, layout: Any, tape: AnyTape = SILENT) -> Tensor:
        return super().forward(embed, replace(layout, positions=layout.positions + 1), tape)


class Unbiased(NormLayer):
    def forward(self, x: Tensor) -> Tensor:
        normal = (x - x.mean(dim=-1, keepdim=True)) / (x.var(dim=-1, keepdim=True) + self.eps).sqrt()
        return self.weight * normal + self.bias


class CosineScores(Attention):
    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * math.sqrt(self.d_head)


class CentredOverTheBatch(Attention):
    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Tensor:
        return super().mix(pattern, k, v - v.mean(dim=0, keepdim=True))


class KeysWithoutGradient(Attention):
    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k.detach(), v)


class FastPathWithoutPadding(Attention):
    def kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: LayerMask, position_bias: Tensor | None) -> Tensor:
        return super().kernel(q, k, v, replace(mask, layout=None), position_bias)


class MaskedByTheTarget(CrossBlock):
    """Cross-attention is masked by the padding of the target, cropped or padded to the length of the source."""

    def forward(self, x: Tensor, context: Any, tape: AnyTape = SILENT, *caches: Any) -> Any:
        layout, memory = context.mask.layout, context.memory
        if layout is not None and memory is not None:
            seen = F.pad(layout, (0, max(0, memory.shape[1] - layout.shape[-1])), value=True)[..., : memory.shape[1]]
            context = replace(context, cross_mask=replace(context.cross_mask, layout=seen))
        return super().forward(x, context, tape, *caches)


def leaky(model: Transformer) -> Transformer:
    """Return a copy with leaky ReLUs, which pass one percent of negative inputs."""
    changed = copy.deepcopy(model)
    for layer in changed.modules():
        if isinstance(layer, FeedForwardLayer):
            layer.activation = lambda x: F.leaky_relu(x, 0.01)
    return changed


class Tempered(Unembedding):
    def forward(self, x: Tensor, embedding: Any) -> Tensor:
        return super().forward(x, embedding) / 2


def memory_of_the_first_layer(model: Transformer) -> Transformer:
    """Return a copy whose decoder attends to the output of the encoder's first layer."""
    changed = copy.deepcopy(model)
    encoder = changed.encoder
    assert encoder is not None
    kept: list[Tensor] = []
    encoder.blocks[0].register_forward_hook(lambda layer, given, out: kept.append(out))
    encoder.register_forward_hook(lambda layer, given, out: kept.pop())
    return changed


@dataclass(frozen=True)
class Unseen:
    """A bug, the function that puts it into a model, and the models that can have it."""

    name: str
    put_into: Callable[[Transformer], Transformer]
    applies: Callable[[ModelConfig], bool] = lambda config: True


def tokens(config: ModelConfig) -> bool:
    return not config.image


def pairs(config: ModelConfig) -> bool:
    return config.architecture == "encoder-decoder"


def swap(old: type[nn.Module], new: type[nn.Module]) -> Callable[[Transformer], Transformer]:
    """Return a function that copies a model and changes the class of its layers from `old` to `new`."""

    def put_into(model: Transformer) -> Transformer:
        changed = copy.deepcopy(model)
        for layer in changed.modules():
            if isinstance(layer, old):
                layer.__class__ = new
        return changed

    return put_into


UNSEEN = (
    Unseen("embedding: the next row of the table", swap(TokenEmbedding, NextRow), tokens),
    Unseen("positions: counted from 1", swap(AddPositions, CountedFromOne), lambda c: c.positions == "sinusoidal"),
    Unseen("norm: variance over n − 1", swap(NormLayer, Unbiased), lambda c: c.norm != "none"),
    Unseen("scores: cosines", swap(Attention, CosineScores)),
    Unseen("values: centred over the batch", swap(Attention, CentredOverTheBatch)),
    Unseen("keys: cut off from the gradient", swap(Attention, KeysWithoutGradient)),
    Unseen("fast path: forgets the padding", swap(Attention, FastPathWithoutPadding), tokens),
    Unseen("feed-forward: leaky ReLU", leaky, lambda c: c.d_ff > 0 and c.activation == "relu"),
    Unseen("logits: divided by 2", swap(Unembedding, Tempered)),
    Unseen("cross mask: of the target’s padding", swap(CrossBlock, MaskedByTheTarget), pairs),
    Unseen("memory: what the first layer left", memory_of_the_first_layer,
           lambda c: c.architecture == "encoder-decoder" and c.n_layers > 1),
)  # fmt: skip


NOT_BY_EQUATIONS = {"fast path: forgets the padding": "right_padding", "keys: cut off from the gradient": "gradients"}
"""Bugs that are not visible in a recorded run, and the checks that find them."""
BY_A_TRACE = {
    "positions: counted from 1", "scores: cosines", "values: centred over the batch", "feed-forward: leaky ReLU",
    "cross mask: of the target’s padding", "memory: what the first layer left",
}  # fmt: skip
"""Bugs that are found in a trace without the weights."""


def model_of(unseen: Unseen) -> xformer.Transformer:
    """Return a small model that can have the bug, with room for padding and random weights, biases and gains."""
    for architecture in ("encoder", "decoder", "encoder-decoder"):
        for norm in ("post", "pre"):
            config = xformer.ModelConfig(
                architecture=architecture, vocab_size=23, d_model=12, n_layers=2, n_heads=3, d_ff=37, max_len=19, norm=norm,
                attention_bias=True,
            )  # fmt: skip
            if unseen.applies(config):
                return randomise(xformer.Transformer(config)).eval().requires_grad_(False)
    raise AssertionError(unseen.name)


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda unseen: unseen.name)
def test_unseen_bugs_are_found_with_the_model_and_if_visible_in_a_trace(unseen: Unseen) -> None:
    torch.manual_seed(0)
    model = model_of(unseen)
    broken, inputs = unseen.put_into(model), varied_inputs(model.config)
    check = NOT_BY_EQUATIONS.get(unseen.name, "equations")
    assert xformer.diagnose(model, checks=[check]).findings[0].verdict == "holds"
    assert xformer.diagnose(broken, checks=[check]).findings[0].verdict == "broken"
    found = check_trace(inputs.record(broken), valid=inputs.valid, target_valid=inputs.target_valid).mistakes
    assert any(mistake.severity == "error" for mistake in found) == (unseen.name in BY_A_TRACE)
