"""The mistakes that stop a program at once, for the record: Python finds them, so there is nothing to look at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crash:
    """A mistake, what Python says to it, and what was meant."""

    mistake: str
    error: str
    meant: str


CRASHES = (
    Crash(
        "A number is called as if it were the layer: self.embedding_dim(x).",
        "TypeError: 'int' object is not callable",
        "self.embedding(x)",
    ),
    Crash(
        "The logarithm of a plain number is asked of torch: torch.log(10000.0).",
        "TypeError: log(): argument 'input' must be Tensor, not float",
        "math.log(10000.0)",
    ),
    Crash(
        "A buffer is registered under one name and read under another: self.pe for self.positional_encoding.",
        "AttributeError: 'PositionalEncoding' object has no attribute 'pe'",
        "one name for it",
    ),
    Crash(
        "A layer is built where it should be called: nn.ReLU(x), nn.LayerNorm(x).",
        "TypeError, or a layer passed on as if it were a tensor",
        "self.relu(x) with self.relu = nn.ReLU(), or F.relu(x)",
    ),
    Crash(
        "A module's __init__ does not call super().__init__().",
        "AttributeError: cannot assign module before Module.__init__() call",
        "super().__init__() first",
    ),
    Crash(
        "The result has one name and another is returned: output = weights @ v; return out.",
        "NameError: name 'out' is not defined",
        "return output",
    ),
    Crash(
        "The projections end in the length of the context instead of the width of the model.",
        "RuntimeError: shape is invalid, as soon as the two numbers differ",
        "nn.Linear(d_model, d_model)",
    ),
)
