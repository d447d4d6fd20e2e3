"""Bugs that no check was written for: those that are found must stay found."""

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
from tests.diagnosis.confusion import SHIPPED, shipped
from tests.layers.reference import randomise
from xformer.bugs import BUGS
from xformer.config import ModelConfig
from xformer.diagnosis.diagnose import check_up, diagnose, examination
from xformer.layers.attention import Attention, Scores
from xformer.layers.embedding import AddPositions, TokenEmbedding, Unembedding
from xformer.layers.feed_forward import FeedForward, Norm
from xformer.layers.masks import Mask
from xformer.layers.stack import CrossBlock, PostNorm, PreNorm
from xformer.model import Transformer
from xformer.tape import SILENT, AnyTape


class NextRow(TokenEmbedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward((tokens + 1) % len(self.token))


class CountsPadding(AddPositions):
    def forward(self, embed: Tensor, layout: Any, tape: AnyTape = SILENT) -> Tensor:
        index = torch.arange(embed.shape[1]).expand(layout.positions.shape)
        return super().forward(embed, replace(layout, positions=index), tape)


class Unbiased(Norm):
    def forward(self, x: Tensor) -> Tensor:
        normal = (x - x.mean(dim=-1, keepdim=True)) / (x.var(dim=-1, keepdim=True) + self.eps).sqrt()
        return self.weight * normal + self.bias


class Nothing(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x


class CosineScores(Attention):
    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * math.sqrt(self.d_head)


class OneMoreInTheSum(Attention):
    def softmax(self, scores: Scores, mask: Mask) -> Scores:
        most = scores.amax(dim=-1, keepdim=True).clamp(min=0.0)
        exp = (scores - most).exp()
        return exp / (exp.sum(dim=-1, keepdim=True) + (-most).exp())


class DroppedAtTheEnd(Attention):
    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(pattern, 0.1, training=True) @ v


class CentredOverTheBatch(Attention):
    def mix(self, pattern: Scores, k: Tensor, v: Tensor) -> Tensor:
        return super().mix(pattern, k, v - v.mean(dim=0, keepdim=True))


class KeysWithoutGradient(Attention):
    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k.detach(), v)


class HeadsInReverse(Attention):
    def out(self, z: Tensor) -> Tensor:
        return super().out(z.flip(1))


class FastPathWithoutPadding(Attention):
    def kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, position_bias: Tensor | None) -> Tensor:
        return super().kernel(q, k, v, replace(mask, layout=None), position_bias)


class MaskedByTheTarget(CrossBlock):
    """Cross-attention is masked by the padding of the target, cut or filled up to the length of the source."""

    def forward(
        self, x: Tensor, context: Any, tape: AnyTape = SILENT, cache: Any = None, cross_cache: Any = None
    ) -> Any:
        layout, memory = context.mask.layout, context.memory
        if layout is not None and memory is not None and self.applies(layout.shape[-1], memory.shape[1]):
            seen = F.pad(layout, (0, max(0, memory.shape[1] - layout.shape[-1])), value=True)[..., : memory.shape[1]]
            context = replace(context, cross_mask=replace(context.cross_mask, layout=seen))
        return super().forward(x, context, tape, cache, cross_cache)

    def applies(self, n_target: int, n_source: int) -> bool:
        return True


class MaskedByATargetOfAnotherLength(MaskedByTheTarget):
    def applies(self, n_target: int, n_source: int) -> bool:
        return n_target != n_source


class AsManyQueriesAsKeys(Attention):
    """Fails where the queries and the keys are not equally many."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        scores = super().score(q, k, v)
        return scores.view(*scores.shape[:2], scores.shape[-1], scores.shape[-1])


class PaddingOfTheFirstRow(Attention):
    """All rows of a batch are masked by the padding of the first one."""

    def allow(self, mask: Mask, scores: Tensor, tape: AnyTape) -> Mask:
        if mask.is_ordered and mask.layout is not None:
            mask = replace(mask, layout=mask.layout[:1].expand_as(mask.layout))
        return super().allow(mask, scores, tape)


def leaky(model: Transformer) -> Transformer:
    """Feed-forward layers whose closed neurons let a hundredth through."""
    changed = copy.deepcopy(model)
    for layer in changed.modules():
        if isinstance(layer, FeedForward):
            layer.activation = lambda x: F.leaky_relu(x, 0.01)
    return changed


class HalfOfIt(PreNorm):
    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        return x + 0.5 * f(self.norm(x))


class NormOfThePart(PostNorm):
    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.norm(f(x))


class Tempered(Unembedding):
    def forward(self, x: Tensor, embedding: Any) -> Tensor:
        return super().forward(x, embedding) / 2


def memory_of_the_first_layer(model: Transformer) -> Transformer:
    """The decoder looks at what the encoder's first layer left."""
    changed = copy.deepcopy(model)
    encoder = changed.encoder
    assert encoder is not None
    kept: list[Tensor] = []
    encoder.blocks[0].register_forward_hook(lambda layer, given, out: kept.append(out))
    encoder.register_forward_hook(lambda layer, given, out: kept.pop())
    return changed


def positions_in_every_layer(model: Transformer) -> Transformer:
    """The table of positions is added to the stream before each layer but the first."""
    changed = copy.deepcopy(model)
    for stack in (changed.encoder, changed.decoder):
        if stack is not None:
            assert stack.positions.table is not None
            [table] = stack.positions.table.buffers()
            for block in list(stack.blocks)[1:]:
                block.register_forward_pre_hook(
                    lambda layer, given, table=table: (given[0] + table[: given[0].shape[1]].to(given[0]), *given[1:])
                )
    return changed


@dataclass(frozen=True)
class Unseen:
    """A bug, how it gets into a model, and which models can have it."""

    name: str
    put_into: Callable[[Transformer], Transformer]
    applies: Callable[[ModelConfig], bool] = lambda config: True


def tokens(config: ModelConfig) -> bool:
    return not config.image


def pairs(config: ModelConfig) -> bool:
    return config.architecture == "encoder-decoder"


def swap(old: type[nn.Module], new: type[nn.Module], path_ends: str = "") -> Callable[[Transformer], Transformer]:
    """A copy whose layers of that class, at paths that end so, are of the other class, with all that they hold."""

    def put_into(model: Transformer) -> Transformer:
        changed = copy.deepcopy(model)
        for path, layer in changed.named_modules():
            if isinstance(layer, old) and path.endswith(path_ends):
                layer.__class__ = new
        return changed

    return put_into


UNSEEN = (
    Unseen("embedding: the next row of the table", swap(TokenEmbedding, NextRow), tokens),
    Unseen("positions: padding in front counted too", swap(AddPositions, CountsPadding),
           lambda c: c.positions in ("sinusoidal", "learned") and not c.image),
    Unseen("positions: added again in every layer", positions_in_every_layer,
           lambda c: c.positions == "sinusoidal" and c.n_layers > 1),
    Unseen("norm: variance over n − 1", swap(Norm, Unbiased), lambda c: c.norm != "none"),
    Unseen("norm: the last one does nothing", swap(Norm, Nothing, "coder.norm"), lambda c: bool(c.final_norm)),
    Unseen("scores: cosines", swap(Attention, CosineScores)),
    Unseen("softmax: 1 more in the denominator", swap(Attention, OneMoreInTheSum)),
    Unseen("attention: dropout that never ends", swap(Attention, DroppedAtTheEnd)),
    Unseen("values: centred over the batch", swap(Attention, CentredOverTheBatch)),
    Unseen("keys: cut off from the gradient", swap(Attention, KeysWithoutGradient)),
    Unseen("heads: joined in reverse", swap(Attention, HeadsInReverse), lambda c: c.n_heads > 1),
    Unseen("fast path: forgets the padding", swap(Attention, FastPathWithoutPadding), tokens),
    Unseen("feed-forward: leaky ReLU", leaky, lambda c: c.d_ff > 0 and c.activation == "relu"),
    Unseen("residual: half of each sublayer", swap(PreNorm, HalfOfIt), lambda c: c.norm == "pre"),
    Unseen("residual: x + norm(f(x))", swap(PostNorm, NormOfThePart), lambda c: c.norm == "post"),
    Unseen("logits: divided by 2", swap(Unembedding, Tempered)),
    Unseen("queries: as many as keys, or it fails", swap(Attention, AsManyQueriesAsKeys, "cross_attn"), pairs),
    Unseen("mask: of the first row’s padding", swap(Attention, PaddingOfTheFirstRow), tokens),
    Unseen("cross mask: of the target’s padding", swap(CrossBlock, MaskedByTheTarget), pairs),
    Unseen("cross mask: of a target of another length", swap(CrossBlock, MaskedByATargetOfAnotherLength), pairs),
    Unseen("memory: what the first layer left", memory_of_the_first_layer,
           lambda c: c.architecture == "encoder-decoder" and c.n_layers > 1),
)  # fmt: skip


NAMED = {
    "cross mask: of the target’s padding": "cross-mask-of-target",
    "cross mask: of a target of another length": "differs-with-source-length",
}
"""What the first finding is called, with the model at hand."""
BY_A_TRACE = {
    "positions: added again in every layer", "norm: the last one does nothing", "scores: cosines",
    "softmax: 1 more in the denominator", "attention: dropout that never ends", "values: centred over the batch",
    "feed-forward: leaky ReLU", "residual: half of each sublayer", "residual: x + norm(f(x))",
    "mask: of the first row’s padding", "cross mask: of the target’s padding", "memory: what the first layer left",
}  # fmt: skip
"""Found in a trace whose weights are not known."""
MISSED_BY_A_TRACE = {
    "embedding: the next row of the table": "other weights would be right with it",
    "norm: variance over n − 1": "a smaller gain would be right with it",
    "heads: joined in reverse": "another output matrix would be right with it",
    "logits: divided by 2": "another output matrix would be right with it",
    "positions: padding in front counted too": "a run without padding in front does not show it",
    "fast path: forgets the padding": "a recorded run does not take it",
    "keys: cut off from the gradient": "a trace has no gradient",
    "queries: as many as keys, or it fails": "a run of source and target equally long does not show it",
    "cross mask: of a target of another length": "a run of source and target equally long does not show it",
}
"""Not found in a trace, and why."""


def model_of(unseen: Unseen) -> xformer.Transformer:
    """A small model with room for padding that can have the bug, all of its weights random: biases and gains too."""
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
def test_it_is_found_with_the_model_at_hand_and_where_it_shows_in_a_trace_too(unseen: Unseen) -> None:
    torch.manual_seed(0)
    model = model_of(unseen)
    assert not [finding for finding in check_up(model).findings if finding.severity == "error"]
    broken, inputs = unseen.put_into(model), examination(model.config)
    with_the_model = [finding.kind for finding in check_up(broken).findings if finding.severity == "error"]
    assert with_the_model
    if unseen.name in NAMED:
        assert NAMED[unseen.name] in with_the_model
    found = diagnose(inputs.record(broken), valid=inputs.valid, target_valid=inputs.target_valid).findings
    if unseen.name in BY_A_TRACE:
        assert [finding for finding in found if finding.severity == "error"]
    assert (unseen.name in BY_A_TRACE) != (unseen.name in MISSED_BY_A_TRACE)


@pytest.mark.parametrize("with_task", [True, False])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_two_lengths_of_an_examination_can_be_taken_for_each_other(name: str, with_task: bool) -> None:
    """Source and target differ in each row, either being the longer one somewhere; and rows differ in their padding."""
    checkpoint = shipped(name)
    inputs = examination(checkpoint.config, checkpoint.task if with_task else None)
    if checkpoint.config.image:
        return  # images have no padding
    n = inputs.valid.sum(dim=1)
    assert len(set(n.tolist())) > 1
    assert (inputs.tokens[~inputs.valid] == checkpoint.config.pad_token).all()
    if inputs.target is not None and inputs.target_valid is not None:
        n_target = inputs.target_valid.sum(dim=1)
        assert (n != n_target).all()
        assert (n > n_target).any()
        assert (n < n_target).any()
        assert (inputs.target[~inputs.target_valid] == checkpoint.config.pad_token).all()


@pytest.mark.parametrize(
    "unseen", [unseen for unseen in UNSEEN if unseen.name in NAMED], ids=lambda unseen: unseen.name
)
def test_a_cross_mask_of_the_target_is_named_in_the_shipped_model(unseen: Unseen) -> None:
    checkpoint = shipped("reverse-seq2seq")
    assert not check_up(checkpoint.model, checkpoint.task).findings
    found = check_up(unseen.put_into(checkpoint.model), checkpoint.task).findings
    assert found[0].kind == NAMED[unseen.name]
    if found[0].kind == "cross-mask-of-target":
        assert all(path.endswith("cross_attn") for path in found[0].where)
        assert min(found[0].numbers.values()) > 0  # it hides tokens, and shows padding


@pytest.mark.parametrize("name", ["characters", "modular"])
def test_rows_of_one_length_are_padded_differently(name: str) -> None:
    """A fast path that forgets the padding is found where all inputs of the task are equally long."""
    [forgets] = [unseen for unseen in UNSEEN if unseen.name == "fast path: forgets the padding"]
    checkpoint = shipped(name)
    assert check_up(forgets.put_into(checkpoint.model), checkpoint.task).findings


def test_no_cross_mask_at_all_is_not_taken_for_that_of_the_target() -> None:
    checkpoint = shipped("reverse-seq2seq")
    found = check_up(BUGS["no-padding-mask"].broken(checkpoint.model), checkpoint.task).findings
    assert [finding.kind for finding in found] == ["no-padding-mask"]
