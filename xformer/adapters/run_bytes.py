"""About how much memory a run of a foreign model takes, worked out before it: everything kept, or little of it."""

from __future__ import annotations

from xformer.memory import BYTES_PER_FLOAT
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example


def lengths(example: Example) -> tuple[int, int]:
    """How many tokens are read, and how many by a decoder beside an encoder."""
    return example.stream.shape[1], 0 if example.target is None else example.target.shape[1]


def recorded_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """A run with everything kept: `n` positions read, `n_target` in a decoder beside an encoder."""
    numbers = 2 * (n_target or n) * shape.vocab_size
    for site in shape.attention:
        queries = _queries(site.stack, n, n_target)
        keys = n if site.is_cross else queries
        numbers += (
            2 * shape.heads[site.path] * queries * keys + 4 * queries * shape.d_model
        )  # scores, pattern; q, k, v, z
    return BYTES_PER_FLOAT * numbers + added_bytes(shape, n, n_target)


def added_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """Of these what is not inside an attention, and no logits: the stream, what is added to it, and the neurons."""
    return BYTES_PER_FLOAT * sum(
        3 * _queries(site.stack, n, n_target) * (shape.d_model + shape.neurons.get(site.path, 0))
        for site in shape.sites
    )


def on_demand_bytes(shape: ModelShape, n: int, n_target: int = 0) -> int:
    """A run of which only the logits and what each attention was given are kept."""
    longest = max(n, n_target)
    widest = 4 * longest * longest * shape.n_heads  # one layer while it is computed
    held = len(shape.attention) * 3 * longest * shape.d_model
    return BYTES_PER_FLOAT * (widest + held + (n_target or n) * shape.vocab_size)


def _queries(stack: str, n: int, n_target: int) -> int:
    return n_target if n_target and stack == "decoder" else n
