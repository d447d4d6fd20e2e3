"""The batches of many models as one, with an axis of models in front, for a step that all of them take at once.

tokens [model, batch, pos], labels [model, batch, out], and the layouts' indices shaped like the tokens
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from xformer.layers.layout import Layout
from xformer.tasks import Batch
from xformer.tasks.batch import IGNORED


@dataclass(frozen=True, eq=False)
class StackedBatch:
    """What every model reads, by name, and the labels; rows that are shorter than another model's are padded."""

    cells: Mapping[str, Int[Tensor, "model batch pos"]]
    labels: Int[Tensor, "model batch out"]
    n_tokens: list[int]
    """Cells of each model's own batch."""
    padded: tuple[bool, bool]
    """Whether a cell of the source, and of a target, may be padding."""

    @classmethod
    def of(cls, batches: Sequence[Batch], pad: int) -> StackedBatch:
        """Raises `ValueError` where the batches are of different kinds: only models of one task read together."""
        cells = {}
        padded = [False, False]
        for side, prefix in enumerate(("", "target_")):
            columns = [_columns(batch, prefix) for batch in batches]
            if len({frozenset(one) for one in columns}) > 1:
                raise ValueError("The batches of models that are trained together have to be of one kind.")
            widths = {one["tokens"].shape[-1] for one in columns if one}
            padded[side] = len(widths) > 1 or any(_layout(batch, prefix).padded for batch in batches if columns[0])
            for name in columns[0]:
                filler = pad if name == "tokens" else 0
                cells[prefix + name] = _stacked([one[name] for one in columns], filler)
        labels = _stacked([batch.labels for batch in batches], IGNORED)
        return cls(cells, labels, [batch.tokens.numel() for batch in batches], (padded[0], padded[1]))

    @property
    def shape(self) -> tuple[object, ...]:
        """What two batches have in common for which the same operations are right."""
        return (*((name, one.shape) for name, one in self.cells.items()), self.labels.shape, self.padded)

    def map(self, change: Callable[[Tensor], Tensor]) -> StackedBatch:
        """The batch with every tensor changed, in the order of `tensors`."""
        cells = {name: change(one) for name, one in self.cells.items()}
        return StackedBatch(cells, change(self.labels), self.n_tokens, self.padded)

    def tensors(self) -> list[Tensor]:
        """All that it consists of."""
        return [*self.cells.values(), self.labels]

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Layout]]:
        """How the rows of all models are read, one under the other."""
        cells = {name: one.flatten(0, 1) for name, one in self.cells.items()}
        layout = self._layout_of(cells, "", self.padded[0])
        if "target_tokens" not in cells:
            return (cells["tokens"],), {"layout": layout}
        target = self._layout_of(cells, "target_", self.padded[1])
        return (cells["tokens"], cells["target_tokens"]), {"layout": layout, "target_layout": target}

    def losses(self, logits: Float[Tensor, "model batch out vocab"]) -> Float[Tensor, " model"]:
        """Each model's mean −log p(right token), in nats, over its labelled cells."""
        each = F.cross_entropy(
            logits.flatten(0, -2), self.labels.flatten(), ignore_index=IGNORED, reduction="none"
        ).view(len(self.labels), -1)  # [model, cell]
        return each.sum(dim=1) / (self.labels != IGNORED).flatten(1).sum(dim=1)

    def steps(self, n: int) -> list[StackedBatch]:
        """The batches of n steps that lie one after the other in the rows, each by itself."""

        def each(rows: Tensor) -> Tensor:
            return rows.unflatten(1, (n, -1)).transpose(0, 1).contiguous()  # [step, model, batch, …]

        cells, labels = {name: each(one) for name, one in self.cells.items()}, each(self.labels)
        n_tokens = [whole // n for whole in self.n_tokens]
        return [
            StackedBatch({name: one[step] for name, one in cells.items()}, labels[step], n_tokens, self.padded)
            for step in range(n)
        ]

    @staticmethod
    def _layout_of(cells: Mapping[str, Tensor], prefix: str, padded: bool) -> Layout:
        return Layout(
            positions=cells[f"{prefix}positions"],
            mirrored=cells[f"{prefix}mirrored"],
            segments=cells.get(f"{prefix}segments"),
            padded=padded,
        )


def _layout(batch: Batch, prefix: str) -> Layout:
    layout = batch.target_layout if prefix else batch.layout
    assert layout is not None
    return layout


def _columns(batch: Batch, prefix: str) -> dict[str, Tensor]:
    """The cells of a batch's source or target by name; nothing where it has no target."""
    tokens = batch.target if prefix else batch.tokens
    if tokens is None:
        return {}
    layout = _layout(batch, prefix)
    found = {"tokens": tokens, "positions": layout.positions, "mirrored": layout.mirrored}
    return found if layout.segments is None else found | {"segments": layout.segments}


def _stacked(each: Sequence[Tensor], filler: int) -> Tensor:
    """[model, …], the last axis as long as the longest."""
    width = max(one.shape[-1] for one in each)
    return torch.stack([F.pad(one, (0, width - one.shape[-1]), value=filler) for one in each])
