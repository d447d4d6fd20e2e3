"""Cost of recording every operation of a hand-written model, beside a plain pass and PyTorch's profiler.

One text of 16 to 512 tokens is read by minGPT-like models of 2 and 6 layers.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import xformer
from benchmarks.measure import Machine, in_turns, options, ratio, show

SIZES = {"2 × 4, d 64": (2, 4, 64), "6 × 6, d 384": (6, 6, 384)}
LENGTHS = (16, 128, 512)


class Layer(nn.Module):
    """A pre-norm block, as a student writes it."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            one.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for one in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        n = x.shape[1]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


def model(n_layers: int, n_heads: int, d_model: int) -> nn.Module:
    torch.manual_seed(0)
    blocks = (Layer(d_model, n_heads) for _ in range(n_layers))
    return nn.Sequential(nn.Embedding(256, d_model), *blocks, nn.Linear(d_model, 256)).eval()


def profiled(module: nn.Module, tokens: Tensor) -> None:
    """The peer: PyTorch's profiler with stacks and shapes, which keeps no tensors."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True):
        module(tokens)


@torch.no_grad()
def measure(name: str, n: int, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    module = model(*SIZES[name])
    tokens = torch.randint(256, (1, n), generator=torch.Generator().manual_seed(n))
    seconds = in_turns(
        {
            "plain": partial(module, tokens),
            "operations": partial(xformer.operations, module, tokens),
            "profiler": partial(profiled, module, tokens),
        },
        rounds,
    )
    return {
        "model": name,
        "tokens": n,
        "operations": len(xformer.operations(module, tokens)),
        "plain ms": 1e3 * statistics.median(seconds["plain"]),
        "recorded ms": 1e3 * statistics.median(seconds["operations"]),
        "times plain": ratio(seconds["operations"], seconds["plain"])[1],
        "profiler times": ratio(seconds["profiler"], seconds["plain"])[1],
    }


def main() -> None:
    given = options(__doc__, rounds=20)
    machine = Machine.start(given.threads)
    rows = [measure(name, n, given.rounds) for name in SIZES for n in LENGTHS]
    notes = ["Recording includes a second pass with two short texts, which names the axes."]
    show("Operations of one pass", machine, rows, notes, given)


if __name__ == "__main__":
    main()
