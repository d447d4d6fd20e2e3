"""Positions as vectors added to the embeddings: sinusoidal, learned, learned from both ends, and none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xformer.errors import ConfigError
from xformer.positions.kind import PositionKind, Sizes

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def sinusoidal(n_pos: int, d_model: int, base: float = 10_000.0) -> Float[Tensor, "pos d_model"]:
    """PE(pos, 2i) = sin(pos / base^(2i/d_model)),  PE(pos, 2i+1) = cos(pos / base^(2i/d_model))."""
    import torch

    return _waves(n_pos, d_model, base).to(torch.get_default_dtype())


def _waves(n_pos: int, d_model: int, base: float) -> Float[Tensor, "pos d_model"]:
    import torch

    # On the meta device, arange would import torch's compiler first: seconds.
    position = torch.arange(n_pos, dtype=torch.float64, device="cpu")[:, None]  # [pos, 1]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")  # [⌈d_model/2⌉]: 2i
    angle = position / base ** (pair / d_model)  # [pos, ⌈d_model/2⌉]
    table = torch.empty(n_pos, d_model, dtype=torch.float64, device="cpu")
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]  # an odd d_model ends on a sine
    return table


class Sinusoidal(PositionKind):
    """Fixed waves of geometrically growing length (Vaswani et al. 2017, §3.5). Nothing is learned, so nothing is saved."""

    name = "sinusoidal"
    title = "Sinusoidal"
    does = "Adds fixed waves, each longer than the one before."
    more = "With an even d_model, the dot product of two positions depends on their offset alone. (Vaswani et al. 2017, §3.5)"
    acts_on = "stream"
    detail = "sinusoidal, fixed"
    equation = "sin, cos of pos·ωᵢ"
    vector_caption = (
        "Even dimensions are sines, odd ones cosines; the further right in the vector, the slower the wave."
    )

    def fixed(self, sizes: Sizes) -> dict[str, Tensor]:
        return {"table": _waves(sizes.max_len, sizes.d_model, sizes.position_base)}

    def add(
        self, sizes: Sizes, tables: Mapping[str, Tensor], index: Int[Tensor, "*batch pos"], mirrored: Tensor
    ) -> Float[Tensor, "*batch pos d_model"]:
        from torch.nn.functional import embedding

        return embedding(index, tables["table"])

    def explained(self, sizes: Sizes) -> str:
        base = f"{sizes.position_base:g}"
        return f"Adds fixed waves, from short to very long (base {base}), so that every position has its own vector."

    def offset_note(self, sizes: Sizes) -> str:
        if sizes.d_model % 2:
            return ""
        return "There is no **band** to be seen: sin² + cos² leaves nothing but the offset, Σ cos(offset · ω)."

    def wave_width(self, sizes: Sizes) -> int:
        return sizes.d_model


FREE = (
    "Look at the **band**: a learned table is free to treat the same offset differently at different places. "
    "Sinusoidal positions are not (**all kinds**)."
)


class Learned(PositionKind):
    """P[position], a row of a learned table (Vaswani et al. 2017, §3.5)."""

    name = "learned"
    title = "Learned"
    does = "Adds one learned vector per position."
    more = (
        "Nothing makes offsets comparable but training, and a position that training never showed has learned nothing. "
        "(Vaswani et al. 2017, §3.5)"
    )
    acts_on = "stream"
    detail = "learned"
    equation = "P[pos]"
    vector_caption = "No shape is built in: each position’s numbers are learned."

    def learned(self, sizes: Sizes) -> dict[str, tuple[int, int]]:
        return {"table": (sizes.max_len, sizes.d_model)}

    def add(
        self, sizes: Sizes, tables: Mapping[str, Tensor], index: Int[Tensor, "*batch pos"], mirrored: Tensor
    ) -> Float[Tensor, "*batch pos d_model"]:
        from torch.nn.functional import embedding

        return embedding(index, tables["table"])

    def explained(self, sizes: Sizes) -> str:
        return f"Adds a learned vector for each of {sizes.max_len} positions."

    def offset_note(self, sizes: Sizes) -> str:
        return FREE


class Mirror(PositionKind):
    """P[distance from the start] + Q[distance from the end].

    With both, one layer is enough to reverse: position i looks for the token whose distance from the end is i.
    """

    name = "mirror"
    title = "Mirror"
    does = "Adds two learned vectors, for the distance from the start and from the end."
    more = (
        "One look-up is then enough to reverse a sequence. It needs to know the length, so it is nothing for a decoder."
    )
    acts_on = "stream"
    keeps_keys = False  # with each token, all those before it stand one further from the end
    detail = "mirror, learned"
    equation = "P[start] + Q[end]"
    vector_caption = "What is added to an input of this length: counted from the start, plus counted from the end."

    def learned(self, sizes: Sizes) -> dict[str, tuple[int, int]]:
        return {"from_start": (sizes.max_len, sizes.d_model), "from_end": (sizes.max_len, sizes.d_model)}

    def add(
        self,
        sizes: Sizes,
        tables: Mapping[str, Tensor],
        index: Int[Tensor, "*batch pos"],
        mirrored: Int[Tensor, "*batch pos"],
    ) -> Float[Tensor, "*batch pos d_model"]:
        from torch.nn.functional import embedding

        return embedding(index, tables["from_start"]) + embedding(mirrored, tables["from_end"])

    def check(self, sizes: Sizes) -> None:
        if sizes.architecture != "encoder":
            raise ConfigError(
                "Mirror positions count from the end too, which would tell a model how long the answer is that it has yet to "
                f"write, so positions='mirror' needs architecture='encoder', got {sizes.architecture!r}; "
                "use positions='sinusoidal'."
            )

    def explained(self, sizes: Sizes) -> str:
        return "Adds two learned vectors: one for the distance from the start and one for the distance from the end."

    def offset_note(self, sizes: Sizes) -> str:
        return FREE


class NoPositions(PositionKind):
    """Nothing is added, turned or biased: an encoder sees a set of tokens; a decoder still has its causal mask."""

    name = "none"
    title = "None"
    does = "Nothing is added, turned or taken off."
    more = "Every offset counts 0."
    acts_on = "nothing"
