"""The interfaces of the exchangeable components of a transformer: norm, feed-forward, attention mask, key/value heads.

A component is one object in one file. It states its name, checks the sizes that it accepts, says which parameters it has and
how they start, computes its step, and describes itself for the diagram and the forms. The layers, the parameter counts, the
memory estimates, the diagram and the diagnosis call these methods; none of them branches on a component's name.

No module here imports torch at import time, because configurations are checked by commands that run without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

MaskPicture = Literal["full", "causal", "strict", "window", "causal_window"]
"""How the diagram draws a mask; "strict" is causal without the diagonal."""


class Sizes(Protocol):
    """What components read of a model; `ModelConfig` provides it."""

    @property
    def d_model(self) -> int: ...
    @property
    def d_head(self) -> int: ...
    @property
    def d_value(self) -> int: ...
    @property
    def d_ff(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def see_self(self) -> bool: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def ffn_bias(self) -> bool: ...


class Component:
    """What all components have: a name for configurations and a description for people."""

    name: ClassVar[str]
    title: ClassVar[str]
    explanation: ClassVar[str]
    """One or two plain sentences."""
    source: ClassVar[str]
    """The paper, with its section."""

    def check(self, sizes: Sizes) -> None:
        """Raise `ConfigError` when a model of these sizes cannot use the component."""


class Norm(Component):
    """A normalisation of each vector of the residual stream, followed by a learned scale and perhaps a shift."""

    equation: ClassVar[str]
    effect: ClassVar[str]
    """What it does to a vector, for the diagram: "brings each vector to …"."""
    has_shift: ClassVar[bool]
    """Whether it learns a shift β besides the scale γ."""
    is_centred: ClassVar[bool]
    """Whether it subtracts the mean of the vector."""

    def apply(
        self, x: Float[Tensor, "*batch d_model"], weight: Tensor, bias: Tensor | None, eps: float
    ) -> Float[Tensor, "*batch d_model"]:
        """The normalised vectors. `weight` is γ [d_model], `bias` is β [d_model] or None."""
        raise NotImplementedError

    def initial(self) -> dict[str, float]:
        """The parameters, each [d_model], and the value that they start with."""
        return {"weight": 1.0} | ({"bias": 0.0} if self.has_shift else {})

    def n_parameters(self, sizes: Sizes) -> int:
        """The parameters of one norm."""
        return len(self.initial()) * sizes.d_model

    def formula(self, sizes: Sizes) -> str:
        """`n_parameters` as a written sum."""
        return f"{'2·' if self.has_shift else ''}{sizes.d_model}"

    def standardised(self, x: Tensor, eps: float) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch 1"]]:
        """The vectors before γ and β in double precision, and how often rounding may have changed them.

        The mean may be far larger than the spread, so the number of roundings grows with the square of their ratio.
        """
        x = x.double()
        mean = x.mean(dim=-1, keepdim=True) if self.is_centred else x.new_zeros(())
        spread = ((x - mean).square().mean(dim=-1, keepdim=True) + eps).sqrt()
        ratio = (x.square().mean(dim=-1, keepdim=True).sqrt() / spread).clamp(min=1.0)
        return (x - mean) / spread, (x.shape[-1] + OTHER_ROUNDINGS) * ratio.square()


OTHER_ROUNDINGS = 8
"""Roundings besides those of a sum: a product, a quotient, an exponential, storing the result."""


class FeedForward(Component):
    """The nonlinearity of the feed-forward network, and whether a gate multiplies it."""

    function_name: ClassVar[str]
    """The nonlinearity as equations write it: "relu"."""
    effect: ClassVar[str]
    """What the nonlinearity does, for the diagram: "keeps what is positive"."""
    is_gated: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    """Whether a neuron can be 0 for every input, with no gradient to bring it back."""
    n_saved: ClassVar[int]
    """How many activations [batch, pos, d_ff] the backward pass needs."""

    def function(self) -> Callable[[Tensor], Tensor]:
        """The nonlinearity, elementwise."""
        raise NotImplementedError

    def post(self, pre: Tensor, up: Tensor | None) -> Float[Tensor, "*batch d_ff"]:
        """What the output matrix reads: the nonlinearity of `pre`, times `up` where there is a gate."""
        gate = self.function()(pre)
        return gate if up is None else gate * up

    @property
    def n_kept(self) -> int:
        """How many activations [batch, pos, d_ff] a trace keeps: pre and post; with a gate also gate and up."""
        return 4 if self.is_gated else 2

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The parameters by name. Matrices are [out, in], as in `torch.nn.Linear`."""
        into = ("gate", "in") if self.is_gated else ("in",)
        shapes: dict[str, tuple[int, ...]] = {f"weight_{name}": (sizes.d_ff, sizes.d_model) for name in into}
        shapes["weight_out"] = (sizes.d_model, sizes.d_ff)
        if sizes.ffn_bias:
            shapes |= {f"bias_{name}": (sizes.d_ff,) for name in into} | {"bias_out": (sizes.d_model,)}
        return shapes

    def n_parameters(self, sizes: Sizes) -> int:
        """The parameters of one layer."""
        return sum(math.prod(shape) for shape in self.shapes(sizes).values())

    def formula(self, sizes: Sizes) -> str:
        """`n_parameters` as a written sum."""
        d, width = sizes.d_model, sizes.d_ff
        weights = f"{3 if self.is_gated else 2}·{d}·{width}"
        return weights + (f" + {'2·' if self.is_gated else ''}{width} + {d}" if sizes.ffn_bias else "")

    def equation(self, sizes: Sizes) -> str:
        """The layer as one line for the diagram."""
        b1, b2 = (" + b₁", " + b₂") if sizes.ffn_bias else ("", "")
        if self.is_gated:
            b_gate = " + b_gate" if sizes.ffn_bias else ""
            return f"({self.function_name}(x·W_gate{b_gate}) ∘ (x·W₁{b1}))·W₂{b2}"
        return f"{self.function_name}(x·W₁{b1})·W₂{b2}"


class Mask(Component):
    """Which keys self-attention allows besides what `causal` says."""

    def allowed(
        self, sizes: Sizes, n_query: int, n_key: int, device: object = "cpu"
    ) -> Bool[Tensor, "query key"] | None:
        """True where a query may look at a key; None where that is everywhere.

        The last query stands at the last key, as in decoding with a cache.
        """
        return None

    def picture(self, sizes: Sizes, *, causal: bool) -> MaskPicture:
        """How the diagram draws it, for a stack that is causal or not."""
        return "full" if not causal else "causal" if sizes.see_self else "strict"

    def seen(self, sizes: Sizes, *, causal: bool) -> str:
        """Which positions a query looks at, as the object of "each position looks at …"."""
        if not causal:
            return "every position"
        before = "itself and the positions before it" if sizes.see_self else "the positions before it, not at itself"
        return f"{before} (causal mask)"


class KeyValueHeads(Component):
    """How many heads of keys and values there are for the heads of queries."""

    def n_kv_heads(self, sizes: Sizes) -> int:
        """The number of key/value heads."""
        return sizes.n_heads

    def widths(self, sizes: Sizes) -> list[int]:
        """The rows of the joint input matrix that make q, k and v."""
        n = self.n_kv_heads(sizes)
        return [sizes.n_heads * sizes.d_head, n * sizes.d_head, n * sizes.d_value]

    def expand(
        self, x: Float[Tensor, "batch kv_head pos width"], n_heads: int
    ) -> Float[Tensor, "batch head pos width"]:
        """Keys or values for each query head."""
        return x

    def n_parameters(self, sizes: Sizes) -> int:
        """The parameters of one attention layer."""
        d, widths = sizes.d_model, self.widths(sizes)
        biases = sum(widths) + d if sizes.attention_bias else 0
        return d * sum(widths) + sizes.n_heads * sizes.d_value * d + biases

    def formula(self, sizes: Sizes) -> str:
        """`n_parameters` as a written sum."""
        d, heads, d_head, d_value = sizes.d_model, sizes.n_heads, sizes.d_head, sizes.d_value
        written = f"{d}·{heads}·(2·{d_head} + 2·{d_value})"
        return written + (f" + {heads}·(2·{d_head} + {d_value}) + {d}" if sizes.attention_bias else "")

    def detail(self, sizes: Sizes) -> str:
        """The heads for the diagram: "4 heads"."""
        return "1 head" if sizes.n_heads == 1 else f"{sizes.n_heads} heads"
