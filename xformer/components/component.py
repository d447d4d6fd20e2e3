"""The interfaces of the interchangeable components of a transformer: norm, feed-forward, attention mask, key/value heads.

A component has a name, validates the sizes of a model, defines its parameters and their initial values, computes its step, and
describes itself for the diagram and the forms. Layers, parameter counts, memory estimates, the diagram and the diagnosis call
these methods and never branch on a component's name.

No module here imports torch on import, because some commands validate configurations without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    Vectors = Float[Tensor, "*batch d_model"]
    GroupVectors = Float[Tensor, "batch kv_head pos width"]
    HeadVectors = Float[Tensor, "batch head pos width"]

MaskPicture = tuple[tuple[bool, ...], ...]
"""A mask in miniature: for each of four queries, which of four keys it may attend to."""


class Sizes(Protocol):
    """The fields of a `ModelConfig` that components use."""

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
    """Base of all components: a name for configurations and a human-readable description."""

    name: ClassVar[str]
    title: ClassVar[str]
    explanation: ClassVar[str]
    """One or two plain sentences."""
    source: ClassVar[str]
    """The paper, with its section."""

    def check(self, sizes: Sizes) -> None:
        """Raise `ConfigError` if a model of these sizes cannot use the component."""


class Norm(Component):
    """A normalisation of each vector of the residual stream, followed by a learned scale and optionally a shift."""

    equation: ClassVar[str]
    effect: ClassVar[str]
    """The effect on a vector, for the diagram: "brings each vector to …"."""
    has_shift: ClassVar[bool]
    """Whether it learns a shift β in addition to the scale γ."""
    is_centred: ClassVar[bool]
    """Whether it subtracts the mean of the vector."""

    def apply(self, x: Vectors, weight: Tensor, bias: Tensor | None, eps: float) -> Vectors:
        """Normalise vectors. `weight` is γ [d_model], `bias` is β [d_model] or None."""
        raise NotImplementedError

    def initial(self) -> dict[str, float]:
        """Return the names of the parameters, each [d_model], with their initial values."""
        return {"weight": 1.0} | ({"bias": 0.0} if self.has_shift else {})

    def n_parameters(self, sizes: Sizes) -> int:
        """Return the number of parameters of one norm."""
        return len(self.initial()) * sizes.d_model

    def formula(self, sizes: Sizes) -> str:
        """Return `n_parameters` as a formula."""
        return f"{'2·' if self.has_shift else ''}{sizes.d_model}"

    def standardised(self, x: Tensor, eps: float) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch 1"]]:
        """Return the vectors before γ and β in double precision, and their rounding error in units of roundoff.

        The mean can be far larger than the spread; the error grows with the square of their ratio.
        """
        x = x.double()
        mean = x.mean(dim=-1, keepdim=True) if self.is_centred else x.new_zeros(())
        spread = ((x - mean).square().mean(dim=-1, keepdim=True) + eps).sqrt()
        ratio = (x.square().mean(dim=-1, keepdim=True).sqrt() / spread).clamp(min=1.0)
        return (x - mean) / spread, (x.shape[-1] + OTHER_ROUNDINGS) * ratio.square()


OTHER_ROUNDINGS = 8
"""Number of roundings besides those of a sum: a product, a quotient, an exponential, storing the result."""


class FeedForward(Component):
    """The nonlinearity of the feed-forward network, gated or not."""

    function_name: ClassVar[str]
    """The nonlinearity in equations: "relu"."""
    effect: ClassVar[str]
    """The effect of the nonlinearity, for the diagram: "keeps what is positive"."""
    is_gated: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    """Whether a neuron can be dead: 0 for every input, without a gradient to revive it."""
    n_saved: ClassVar[int]
    """Number of activations [batch, pos, d_ff] that the backward pass needs."""

    def function(self) -> Callable[[Tensor], Tensor]:
        """Return the elementwise nonlinearity."""
        raise NotImplementedError

    def post(self, pre: Tensor, up: Tensor | None) -> Float[Tensor, "*batch d_ff"]:
        """Return the input of the output matrix: the nonlinearity of `pre`, times `up` if gated."""
        gate = self.function()(pre)
        return gate if up is None else gate * up

    @property
    def n_kept(self) -> int:
        """The number of activations [batch, pos, d_ff] in a trace: pre and post; with a gate also gate and up."""
        return 4 if self.is_gated else 2

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters by name. Matrices are [out, in], as in `torch.nn.Linear`."""
        into = ("gate", "in") if self.is_gated else ("in",)
        shapes: dict[str, tuple[int, ...]] = {f"weight_{name}": (sizes.d_ff, sizes.d_model) for name in into}
        shapes["weight_out"] = (sizes.d_model, sizes.d_ff)
        if sizes.ffn_bias:
            shapes |= {f"bias_{name}": (sizes.d_ff,) for name in into} | {"bias_out": (sizes.d_model,)}
        return shapes

    def n_parameters(self, sizes: Sizes) -> int:
        """Return the number of parameters of one layer."""
        return sum(math.prod(shape) for shape in self.shapes(sizes).values())

    def formula(self, sizes: Sizes) -> str:
        """Return `n_parameters` as a formula."""
        d, width = sizes.d_model, sizes.d_ff
        weights = f"{3 if self.is_gated else 2}·{d}·{width}"
        return weights + (f" + {'2·' if self.is_gated else ''}{width} + {d}" if sizes.ffn_bias else "")

    def equation(self, sizes: Sizes) -> str:
        """Return the layer's equation, as one line for the diagram."""
        b1, b2 = (" + b₁", " + b₂") if sizes.ffn_bias else ("", "")
        if self.is_gated:
            b_gate = " + b_gate" if sizes.ffn_bias else ""
            return f"({self.function_name}(x·W_gate{b_gate}) ∘ (x·W₁{b1}))·W₂{b2}"
        return f"{self.function_name}(x·W₁{b1})·W₂{b2}"


class Mask(Component):
    """Which keys self-attention may attend to, in addition to the causal mask."""

    def allowed(self, sizes: Sizes, n_query: int, n_key: int, device: Any = "cpu") -> Bool[Tensor, "query key"] | None:
        """Return True where a query may attend to a key; None if that is everywhere.

        The last query is aligned with the last key, as in decoding with a cache.
        """
        return None

    def picture(self, sizes: Sizes, *, causal: bool) -> MaskPicture:
        """Return the mask of a causal or bidirectional stack in miniature, for the diagram."""
        allowed = self.allowed(sizes, 4, 4)
        return tuple(
            tuple(
                (allowed is None or bool(allowed[query, key]))
                and (not causal or key < query or (key == query and sizes.see_self))
                for key in range(4)
            )
            for query in range(4)
        )

    def width(self, sizes: Sizes) -> int | None:
        """Return the width of a sliding window, including the query itself; None for any other mask."""
        return None

    def seen(self, sizes: Sizes, *, causal: bool) -> str:
        """Describe the visible positions, as the object of "each position looks at …"."""
        if not causal:
            return "every position"
        before = "itself and the positions before it" if sizes.see_self else "the positions before it, not at itself"
        return f"{before} (causal mask)"


class KeyValueHeads(Component):
    """The number of key/value heads, and how query heads share them."""

    def n_kv_heads(self, sizes: Sizes) -> int:
        """Return the number of key/value heads."""
        return sizes.n_heads

    def widths(self, sizes: Sizes) -> list[int]:
        """Return the numbers of rows of the joint input matrix for q, k and v."""
        n = self.n_kv_heads(sizes)
        return [sizes.n_heads * sizes.d_head, n * sizes.d_head, n * sizes.d_value]

    def expand(self, x: GroupVectors, n_heads: int) -> HeadVectors:
        """Repeat keys or values for each query head."""
        return x

    def n_parameters(self, sizes: Sizes) -> int:
        """Return the number of parameters of one attention layer."""
        d, widths = sizes.d_model, self.widths(sizes)
        biases = sum(widths) + d if sizes.attention_bias else 0
        return d * sum(widths) + sizes.n_heads * sizes.d_value * d + biases

    def formula(self, sizes: Sizes) -> str:
        """Return `n_parameters` as a formula."""
        d, heads, d_head, d_value = sizes.d_model, sizes.n_heads, sizes.d_head, sizes.d_value
        written = f"{d}·{heads}·(2·{d_head} + 2·{d_value})"
        return written + (f" + {heads}·(2·{d_head} + {d_value}) + {d}" if sizes.attention_bias else "")

    def detail(self, sizes: Sizes) -> str:
        """Describe the heads for the diagram: "4 heads"."""
        return "1 head" if sizes.n_heads == 1 else f"{sizes.n_heads} heads"
