"""A tape that ends the pass once it has been handed all that is wanted: the rest of it would be worked out for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from xformer.tape import Edit, Tape


class StopForward(Exception):  # noqa: N818  (it ends a run, nothing is wrong)
    """Ends a pass where it has what is wanted."""


class EarlyStopTape(Tape):
    """Keeps the activations of these names and ends the pass at the last of them."""

    def __init__(self, edits: Iterable[Edit], wanted: Sequence[str]) -> None:
        super().__init__(edits, wanted)
        self._missing = set(wanted)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = super().__call__(name, value)
        self._missing.discard(name)
        if not self._missing:
            raise StopForward
        return value
