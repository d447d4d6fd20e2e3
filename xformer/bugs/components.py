"""Bugs of the registered components: the gate of a feed-forward layer, and shared keys and values."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.layers.attention import Attention
from xformer.layers.feed_forward import FeedForward
from xformer.tape import AnyTape


class OtherHalfGates(FeedForward):
    """(x W_gate) ∘ SiLU(x W₁)."""

    def hidden(self, x: Float[Tensor, "batch pos d_model"], tape: AnyTape) -> Float[Tensor, "batch pos d_ff"]:
        pre = tape("pre", F.linear(x, self.weight_gate, self.bias_gate))
        up = tape("up", F.linear(x, self.weight_in, self.bias_in))
        return pre * tape("gate", self.activation(up))


class TiledGroups(Attention):
    """Head h gets the keys and values of group h mod n_kv_heads."""

    def share(self, x: Float[Tensor, "batch kv_head pos width"]) -> Float[Tensor, "batch head pos width"]:
        return x.repeat(1, self.n_heads // x.shape[1], 1, 1)


COMPONENT_BUGS = (
    Bug(
        "gate-and-up-swapped",
        "Gate and up projection swapped",
        "The nonlinearity is applied to the wrong half of the fused gate and up projection.",
        "up, gate = x.chunk(2): which half comes first differs between code bases",
        "(x W_gate ∘ SiLU(x W₁)) W₂",
        "(SiLU(x W_gate) ∘ x W₁) W₂",
        "With loaded weights the predictions are lost; trained from the start it learns all the same.",
        "a gated feed-forward layer",
        lambda model: replace_modules(model, FeedForward, OtherHalfGates),
        lambda config: config.d_ff > 0 and config.ffn_component.is_gated,
    ),
    Bug(
        "kv-heads-tiled",
        "Key/value heads tiled",
        "The shared keys and values are repeated as a whole (0 1 0 1) where each should be repeated in place (0 0 1 1).",
        "k.repeat(1, n, 1, 1) in the place of k.repeat_interleave(n, dim=1)",
        "head h uses group h mod n_kv_heads",
        "head h uses group ⌊h · n_kv_heads / n_heads⌋",
        "Most heads compare their queries with another group’s keys: patterns that no longer mean anything.",
        "at least two key/value heads, each shared by several heads",
        lambda model: replace_modules(model, Attention, TiledGroups),
        lambda config: 1 < config.kv_component.n_kv_heads(config) < config.n_heads,
    ),
)
