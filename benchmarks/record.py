"""Cost of recording a run: a plain forward pass, one that keeps every intermediate, and one that keeps only the patterns.

One sequence of 16 to 512 tokens is read by the architecture of the preset "reverse", without a mask and with a causal mask,
and by a model with 6 layers of 12 heads and d_model 384.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Machine, in_turns, options, ratio, show
from xformer.config import ModelConfig
from xformer.model import Transformer
from xformer.presets import preset
from xformer.trace import record

LENGTHS = (16, 32, 64, 128, 256, 512)


def architectures() -> dict[str, ModelConfig]:
    """Return the configurations, with room for the longest input."""
    small = preset("reverse").model.replace(max_len=max(LENGTHS))
    return {
        "4 × 4, d 16": small,
        "the same, causal": small.replace(architecture="decoder", causal=True),
        "6 × 12, d 384": small.replace(
            vocab_size=128, d_model=384, n_layers=6, n_heads=12, d_head=32, d_value=32, d_ff=1536
        ),
    }


@torch.no_grad()
def measure(name: str, model: Transformer, n: int, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    tokens = torch.randint(1, model.config.vocab_size, (1, n), generator=torch.Generator().manual_seed(n))
    patterns = ["*.pattern"]
    seconds = in_turns(
        {
            "plain": partial(model, tokens),
            "all": partial(record, model, tokens),
            "patterns": partial(record, model, tokens, keep=patterns),
        },
        rounds,
    )
    return {
        "model": name,
        "tokens": n,
        "plain ms": 1e3 * statistics.median(seconds["plain"]),
        "recorded ms": 1e3 * statistics.median(seconds["all"]),
        "times plain": ratio(seconds["all"], seconds["plain"])[1],
        "KB": record(model, tokens).n_bytes / 1e3,
        "patterns ms": 1e3 * statistics.median(seconds["patterns"]),
        "patterns times": ratio(seconds["patterns"], seconds["plain"])[1],
        "patterns KB": record(model, tokens, keep=patterns).n_bytes / 1e3,
    }


def main() -> None:
    given = options(__doc__, rounds=20)
    machine = Machine.start(given.threads)
    rows = []
    for name, config in architectures().items():
        model = Transformer(config, torch.Generator().manual_seed(0)).eval()
        rows += [measure(name, model, n, given.rounds) for n in LENGTHS]
    notes = ["The scores and patterns grow with the square of the length; everything else grows linearly."]
    show("Recording one run", machine, rows, notes, given)


if __name__ == "__main__":
    main()
