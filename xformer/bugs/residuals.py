"""Bugs of the residual connection: left out, its sublayer's result lost, or started from the normalised stream."""

from __future__ import annotations

from torch import nn

from xformer.bugs.bug import Bug
from xformer.bugs.surgery import exchange
from xformer.config import ModelConfig
from xformer.layers.residual import RESIDUALS, NoNorm, PostNorm, PreNorm, Sublayer, Vectors
from xformer.model import Transformer


class PostNormNoResidual(PostNorm):
    """LayerNorm(f(x))."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return self.norm(f(x))


class PreNormNoResidual(PreNorm):
    """f(LayerNorm(x))."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return f(self.norm(x))


class NoNormNoResidual(NoNorm):
    """f(x)."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        return f(x)


class PostNormLost(PostNorm):
    """LayerNorm(x): f is computed, and its result thrown away."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        f(x)
        return self.norm(x)


class PreNormLost(PreNorm):
    """x: f is computed, and its result thrown away."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        f(self.norm(x))
        return x


class NoNormLost(NoNorm):
    """x: f is computed, and its result thrown away."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        f(x)
        return x


class NormalisedStream(PreNorm):
    """n + f(n) with n = LayerNorm(x): x = norm(x); x = x + f(x)."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        x = self.norm(x)
        return x + f(x)


NO_RESIDUAL: dict[str, type[nn.Module]] = {
    "post": PostNormNoResidual,
    "pre": PreNormNoResidual,
    "none": NoNormNoResidual,
}
LOST: dict[str, type[nn.Module]] = {"post": PostNormLost, "pre": PreNormLost, "none": NoNormLost}


def _by_norm(model: Transformer, classes: dict[str, type[nn.Module]], path_ends: str = "") -> Transformer:
    norm = model.config.norm
    return exchange(model, RESIDUALS[norm], classes[norm], path_ends)


def _any(config: ModelConfig) -> bool:
    return True


RESIDUAL_BUGS = (
    Bug(
        "no-residual",
        "No residual connection",
        "A sublayer's result replaces the stream instead of being added to it.",
        "first versions of a block, x = layer(x), before the paper's “Add & Norm” is noticed",
        "x ← LayerNorm(f(x))   (pre-norm: f(LayerNorm(x)))",
        "x ← LayerNorm(x + f(x))   (pre-norm: x + f(LayerNorm(x)))",
        "The tokens' vectors become alike layer by layer, and the deeper the model the less it learns.",
        "no more than layers",
        _any,
        lambda model: _by_norm(model, NO_RESIDUAL),
        decides=("what the residual adds up",),
    ),
    Bug(
        "lost-output",
        "A sublayer's result lost",
        "The attention is called and its result not used: self.attn(x) stands where x = self.attn(x) was meant.",
        "statements without an assignment, which Python runs without a word",
        "x ← LayerNorm(x)   (pre-norm: x)",
        "x ← LayerNorm(x + f(x))   (pre-norm: x + f(LayerNorm(x)))",
        "The patterns look healthy and change nothing: each position's answer depends on its own token alone.",
        "no more than attention",
        _any,
        lambda model: _by_norm(model, LOST, "attn_residual"),
        decides=("what the residual adds up",),
    ),
    Bug(
        "residual-after-norm",
        "The residual starts after the norm",
        "Pre-norm is written x = norm(x); x = x + f(x), so the stream itself is normalised at every sublayer.",
        "a widely read article's first listing of a pre-norm block",
        "n = LayerNorm(x),  x ← n + f(n)",
        "x ← x + f(LayerNorm(x))",
        "It still learns; but the stream's length starts anew at every sublayer, and no untouched path leads through.",
        'norm="pre"',
        lambda config: config.norm == "pre",
        lambda model: exchange(model, PreNorm, NormalisedStream),
        decides=("what the residual adds up",),
    ),
)
