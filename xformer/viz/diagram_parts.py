"""The vocabulary of a model's picture: boxes on and above the residual stream, arrows between them, layers around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from xformer.components import MaskPicture

Kind = Literal["tokens", "embedding", "positions", "attention", "feed_forward", "norm", "sum", "output"]
Place = Literal["stream", "above", "rise"]
"""On the residual stream · above it, off the stream · on the way up from the stream into a sublayer (pre-norm)."""
Flow = Literal["stream", "residual", "branch", "add", "inside", "memory"]
"""Along the stream · past a sublayer · through a sublayer · positions added to the stream · positions that act inside
attention · the encoder's output, which cross-attention reads keys and values from."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """One part of the picture.

    `shape` is that of its output for one input, and `activation` the name under which a trace keeps that output (None
    where a trace has none). `parameters` counts one such part, of which the model has `repeats`. `target` is the screen
    that shows the part closely. `sublayer` counts the sublayers inside a layer; None stands outside the layers.
    """

    id: str
    kind: Kind
    stack: str
    place: Place
    title: str
    equation: str = ""
    detail: str = ""
    what: str
    shape: tuple[int, ...]
    activation: str | None = None
    parameters: int = 0
    repeats: int = 1
    target: str | None = None
    sublayer: int | None = None
    heads: int = 0
    mask: MaskPicture | None = None
    note: str = ""

    @property
    def shape_text(self) -> str:
        """The shape as PyTorch prints it: "[1, 9, 16]"."""
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Arrow:
    """What flows from one box into another, both named by their ids."""

    source: str
    target: str
    flow: Flow


@dataclass(frozen=True)
class StackFrame:
    """The layers of one stack, drawn once: how many there are, and how many sublayers each has."""

    name: str
    title: str
    n_layers: int
    n_sublayers: int


@dataclass(frozen=True)
class Diagram:
    """A whole model as a picture to be drawn; see `Box`, `Arrow` and `StackFrame`."""

    title: str
    norm: str
    stacks: tuple[StackFrame, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    total: int | None = None
    """The learned numbers of the whole model, where those of its boxes are not known one by one."""

    def __getitem__(self, box_id: str) -> Box:
        return next(box for box in self.boxes if box.id == box_id)

    @property
    def n_parameters(self) -> int:
        """The learned numbers of all boxes, repeats included: those of the whole model."""
        return sum(box.parameters * box.repeats for box in self.boxes) if self.total is None else self.total

    def frame(self) -> pd.DataFrame:
        """The parts as a table: what each is, its output shape, its parameters, and how many of it there are."""
        columns = ("stack", "title", "equation", "detail", "shape", "parameters", "repeats", "activation")
        rows = [
            {name: box.shape_text if name == "shape" else getattr(box, name) for name in columns} for box in self.boxes
        ]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    @property
    def targets(self) -> frozenset[str]:
        """The screens that some box leads to."""
        return frozenset(box.target for box in self.boxes if box.target is not None)
