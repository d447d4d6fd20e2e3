"""The weights of a foreign model, as `Weights` asks for them: found in the run that was watched when it was opened."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.opening import OpenedModel
from xformer.adapters.weights import Projection, Readout
from xformer.errors import UnavailableError


@dataclass(frozen=True, eq=False)
class ExternalWeights:
    """Nothing is copied but the factor into a matrix."""

    opened: OpenedModel
    name: str

    @torch.no_grad()
    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab width"]:
        """The table's rows: what a model multiplies them with, or maps them by, is not in them."""
        wanted = ("embed", f"{stack or self.opened.layout.attention[0].stack}.embed")
        for tap in self.opened.layout.taps:
            if tap.name in wanted:
                return self.opened.module.get_submodule(tap.module).get_parameter("weight").detach()
        raise UnavailableError(f"{self.name} looks its tokens up in no table that could be found.")

    def unembedding(self) -> Readout:
        """The last norm and a matrix. Raises `UnavailableError` where more stands between the stream and the logits."""
        head = self.opened.head
        matrix = None if head is None else head.output_matrix
        if head is None or matrix is None:
            raise UnavailableError(
                f"Between the last state of its stream and its logits {self.name} has more than a norm and a matrix, so a "
                "logit is no sum of what was added to the stream."
            )
        own = getattr(head.parts[-1], "bias", None)
        biases = [] if own is None else [own.detach() * head.factor]
        biases += [] if head.bias is None else [head.bias]
        return Readout(matrix, torch.stack(biases).sum(dim=0) if biases else None, head.norm, head.softcap)

    def projection(self, path: str) -> Projection:
        """The matrix behind the heads or the neurons. Raises `UnavailableError` where none was found."""
        place = self.opened.layout.projections.get(path)
        if place is None:
            raise UnavailableError(f"No single matrix maps the inside of {path} of {self.name} to the stream.")
        module = self.opened.module.get_submodule(place.module)
        weight, bias = module.get_parameter("weight").detach(), getattr(module, "bias", None)
        return Projection(
            weight if place.is_in_by_out else weight.T,
            None if bias is None else bias.detach(),
            None if place.norm is None else self.opened.module.get_submodule(place.norm),
            place.factor,
        )

    def norm_before(self, path: str) -> nn.Module | None:
        """Of pre-norm and parallel blocks."""
        where = self.opened.layout.norm_before.get(path)
        return None if where is None else self.opened.module.get_submodule(where)

    def last_norm(self, stack: str) -> nn.Module | None:
        """The one that was found."""
        where = {str(name): module for name, module in self.opened.layout.final_norm.items()}.get(stack)
        return None if where is None else self.opened.module.get_submodule(where)

    def norm_after(self, path: str) -> nn.Module | None:
        """Of post-norm blocks."""
        where = self.opened.layout.norm_after.get(path)
        return None if where is None else self.opened.module.get_submodule(where)

    def n_parameters(self) -> int:
        """What is shared counts once."""
        return sum(weight.numel() for weight in self.opened.module.parameters())
