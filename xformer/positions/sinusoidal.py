"""Sinusoidal positions: fixed waves of geometrically growing length, added to the embeddings (Vaswani et al. 2017, §3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xformer.positions.kind import PositionKind, PositionSizes

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from xformer.positions.kind import Added, Positions, Tables


def sinusoidal(n_pos: int, d_model: int, base: float = 10_000.0) -> Float[Tensor, "pos d_model"]:
    """Return the table PE(pos, 2i) = sin(pos / base^(2i/d_model)), PE(pos, 2i+1) = cos(pos / base^(2i/d_model))."""
    import torch

    # On the meta device, arange would import torch's compiler, which takes seconds.
    position = torch.arange(n_pos, dtype=torch.float64, device="cpu")[:, None]  # [pos, 1]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")  # [⌈d_model/2⌉]: 2i
    angle = position / base ** (pair / d_model)  # [pos, ⌈d_model/2⌉]
    table = torch.empty(n_pos, d_model, dtype=torch.float64, device="cpu")
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]  # an odd d_model ends on a sine
    return table.to(torch.get_default_dtype())


class Sinusoidal(PositionKind):
    """Fixed waves; nothing is learned or saved."""

    name = "sinusoidal"
    title = "Sinusoidal"
    summary = "Adds fixed waves, each longer than the one before."
    note = "With an even d_model, the dot product of two positions depends only on their offset."
    source = "Vaswani et al. 2017, §3.5"
    acts_on = "stream"
    detail = "sinusoidal, fixed"
    equation = "sin, cos of pos·ωᵢ"

    def fixed(self, sizes: PositionSizes) -> dict[str, Tensor]:
        return {"table": sinusoidal(sizes.max_len, sizes.d_model, sizes.position_base)}

    def add(self, sizes: PositionSizes, tables: Tables, index: Positions, mirrored: Positions) -> Added:
        from torch.nn.functional import embedding

        return embedding(index, tables["table"])

    def explanation(self, sizes: PositionSizes) -> str:
        base = f"{sizes.position_base:g}"
        return f"Adds fixed waves, from short to very long (base {base}), so that every position has its own vector."

    def offset_note(self, sizes: PositionSizes) -> str:
        if sizes.d_model % 2:
            return ""
        return "There is no **band**: by sin² + cos², the product depends only on the offset, Σ cos(offset · ω)."

    def wave_width(self, sizes: PositionSizes) -> int:
        return sizes.d_model
