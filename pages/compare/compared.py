"""What a panel of Compare has to know of what is compared, whoever compares it."""

from __future__ import annotations

from typing import Protocol


class Compared(Protocol):
    """Players before one input, or two runs on a text."""

    @property
    def model(self) -> str:
        """What the files of its pictures are named after."""
        ...

    @property
    def unit(self) -> str:
        """What one of its steps is called."""
        ...
