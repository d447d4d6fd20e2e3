"""The usual way to train this model, for comparison: a data set of tensors, a DataLoader that pads, Adam, 15 epochs.

40,000 sequences of 3 to 15 symbols from 1 to 19 are drawn once, one at a time. Batches of 128 are padded to their longest
sequence. The loop uses Adam at a constant 5e-4, no mask, so padding is read like a token, padding in the loss, and no clipping.
15 epochs are 4,680 steps; with fewer epochs, the total time is estimated as 4,680 times that of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.measure import Machine, options, show
from benchmarks.peers import PlainEncoder
from xformer.presets import preset

EPOCHS, BATCH, SEQUENCES = 15, 128, 40_000
STEPS = EPOCHS * (SEQUENCES // BATCH)
Pair = tuple[Tensor, Tensor]


def examples(n: int) -> list[Pair]:
    """Draw n sequences; return them with their reversals."""
    pairs = []
    for _ in range(n):
        length = int(torch.randint(3, 16, (1,)))
        symbols = torch.randint(1, 20, (length,))
        pairs.append((symbols, symbols.flip(0)))
    return pairs


def collate(pairs: list[Pair]) -> Pair:
    """Return a padded batch of inputs and one of answers."""
    inputs, answers = (
        torch.nn.utils.rnn.pad_sequence(list(side), batch_first=True) for side in zip(*pairs, strict=True)
    )
    return inputs, answers


class SeedLoop:
    """The training loop; `step` draws a batch, trains on it and returns the loss."""

    def __init__(self, seed: int = 15, n: int = SEQUENCES) -> None:
        torch.manual_seed(seed)
        data, self.held_out = examples(n), examples(1000)
        self.loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)  # pyright: ignore[reportArgumentType]
        self.model = PlainEncoder(preset("reverse").model.replace(max_len=5000))
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self._batches = self._forever()

    def _forever(self) -> Iterator[Pair]:
        while True:
            yield from self.loader

    def step(self) -> float:
        inputs, answers = next(self._batches)
        self.optimiser.zero_grad()
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        loss.backward()
        self.optimiser.step()
        return loss.item()

    @torch.no_grad()
    def exact_match(self, pairs: list[Pair]) -> float:
        """Return the share of sequences whose symbols are all predicted correctly; padding is ignored."""
        right = 0
        for start in range(0, len(pairs), 500):
            inputs, answers = collate(pairs[start : start + 500])
            predicted = self.model(inputs).argmax(dim=-1)
            right += int(((predicted == answers) | (answers == 0)).all(dim=1).sum())
        return right / len(pairs)


def main() -> None:
    given = options(__doc__, rounds=1, epochs={"type": int, "default": EPOCHS, "help": "number of epochs, 15 in full"})
    machine = Machine.start(given.threads)
    began = time.perf_counter()
    loop = SeedLoop()
    drawn = time.perf_counter() - began
    rows, total, total_busy = [], 0.0, 0.0
    for epoch in range(1, given.epochs + 1):
        wall, busy = time.perf_counter(), time.process_time()
        losses = [loop.step() for _ in range(SEQUENCES // BATCH)]
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        total, total_busy = total + wall, total_busy + busy
        rows.append(
            {
                "epoch": epoch,
                "steps": epoch * len(losses),
                "loss": sum(losses) / len(losses),
                "exact match": loop.exact_match(loop.held_out),
                "ms a step": 1e3 * wall / len(losses),
                "ms of processor": 1e3 * busy / len(losses),
                "seconds": total,
            }
        )
    kind = "measured" if given.epochs == EPOCHS else f"estimated from {given.epochs}"
    whole = EPOCHS / given.epochs
    notes = [
        f"All {EPOCHS} epochs, {STEPS:,} steps: {whole * total:,.0f} s, {whole * total_busy:,.0f} s of processor ({kind}); "
        f"drawing the data took another {drawn:.1f} s.",
        f"Exact match on 10,000 unseen sequences: {loop.exact_match(examples(10_000)):.2%}",
    ]
    show("The usual loop", machine, rows, notes, given)


if __name__ == "__main__":
    main()
