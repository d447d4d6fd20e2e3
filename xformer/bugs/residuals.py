"""Bugs of the residual connection: left out, its sublayer's result lost, or started from the normalised stream."""

from __future__ import annotations

from xformer.bugs.bug import Bug
from xformer.bugs.replace_modules import replace_modules
from xformer.layers.residual import PreNorm, Residual, Sublayer, Vectors


class NoResidual(Residual):
    """f(x) in place of x + f(x)."""

    def add(self, x: Vectors, result: Vectors) -> Vectors:
        return result


class Lost(Residual):
    """x in place of x + f(x): f is computed, and its result thrown away."""

    def add(self, x: Vectors, result: Vectors) -> Vectors:
        return x


class NormalisedStream(PreNorm):
    """n + f(n) with n = LayerNorm(x): x = norm(x); x = x + f(x)."""

    def forward(self, x: Vectors, f: Sublayer) -> Vectors:
        x = self.norm(x)
        return self.add(x, f(x))


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
        lambda model: replace_modules(model, Residual, NoResidual),
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
        lambda model: replace_modules(model, Residual, Lost, "attn_residual"),
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
        lambda model: replace_modules(model, PreNorm, NormalisedStream),
        lambda config: config.norm == "pre",
        decides=("what the residual adds up",),
    ),
)
