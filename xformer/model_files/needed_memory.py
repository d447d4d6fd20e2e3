"""How much memory opening a model takes, told from its headers, and one sentence where that is more than is free."""

from __future__ import annotations

from xformer.errors import NotEnoughMemoryError
from xformer.room import megabytes

BYTES_PER_PARAMETER = 4
"""All is computed in float32: halves are slow on a CPU, and rounding would hide what an edit does."""
BESIDE = 120_000_000
"""The classes of a model, its tokenizer, and what a first short run takes."""
WHILE_READ = 1.2
"""What loading takes at its widest for each byte that stays. A file that is only mapped is not counted beside what is made of
it: the system takes its pages back when it needs them."""
WHILE_READ_GGUF = 1.6
"""The same of a GGUF file: blocks are unpacked into arrays, and these copied into tensors."""


def needed_bytes(n_parameters: int, *, is_gguf: bool) -> int:
    """About how many bytes opening a model takes at its peak."""
    factor = WHILE_READ_GGUF if is_gguf else WHILE_READ
    return BESIDE + int(factor * BYTES_PER_PARAMETER * n_parameters)


def check_free(name: str, needed: int, free: int) -> None:
    """Raise `NotEnoughMemoryError` where opening the model of that name takes more than is free."""
    if needed > free:
        raise NotEnoughMemoryError(
            f"{name[:80]} needs {megabytes(needed)} of memory, {megabytes(free)} are free; close other models or take a "
            "smaller one."
        )
