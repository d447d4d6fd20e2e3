"""One training step of the preset "reverse" at batch size 128, compared with the same model built from PyTorch modules.

Every variant takes the whole step on the same sequences (zero_grad, forward, loss, backward, clip, AdamW), without drawing
them. Only tokens of the sequences count for tokens/s; padding costs work but does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import cycle
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Machine, in_turns, options, ratio, show
from benchmarks.peers import PlainEncoder, TorchEncoder, TrueHeads
from xformer.config import TrainConfig
from xformer.counting import n_parameters
from xformer.doctor.faults.bug import replace_modules
from xformer.layers.attention import Attention
from xformer.model import Transformer
from xformer.presets import preset
from xformer.tasks import Batch, Task
from xformer.tasks.batch import cross_entropy
from xformer.tasks.framing import frame, generator, sequences, to_batch
from xformer.training.recipe import adamw, clip, update

M = TypeVar("M", bound=nn.Module)
Step = Callable[[], object]
BATCHES = 16
LR = 5e-4


class StepByStep(Attention):
    """Attention without the fused kernel, computed step by step."""


def same_sequences(task: Task, n: int) -> tuple[list[Batch], list[Batch]]:
    """Return batches of n sequences, packed and padded."""
    packed, padded = [], []
    for index in range(BATCHES):
        c, draw = task.config, generator(0, "test", index, "cpu")
        symbols, lengths = sequences(n, symbols=c.symbols, min_len=c.min_len, max_len=c.max_len, paired=True, draw=draw)
        streams = frame(c.architecture, symbols, lengths, *task.rule.answer(symbols, lengths), task.vocabulary.special)
        packed.append(to_batch(*streams, 0, task.widths))
        padded.append(to_batch(*streams, 0, None))
    return packed, padded


def ours(model: Transformer, batches: list[Batch]) -> Step:
    """Return the step of `xformer.training.loop`."""
    optimiser, turn = adamw(model, TrainConfig(steps=1)), cycle(batches)

    def step() -> object:
        batch = next(turn)
        optimiser.zero_grad()
        loss = cross_entropy(batch.logits(model), batch.labels)
        loss.backward()
        norm = clip(model, 1.0)
        update(optimiser, LR)
        return torch.stack((loss.detach(), norm)).tolist()

    return step


def torch_encoder(model: TorchEncoder, batch: Batch) -> Tensor:
    """Return the logits of a padded batch."""
    return model(batch.tokens, batch.labels >= 0)


def true_heads(model: TrueHeads, batch: Batch) -> Tensor:
    """Return the logits of a padded or packed batch; in a packed one, tokens attend only within their sequence."""
    segments = batch.layout.segments
    assert segments is not None
    if batch.layout.padded:
        return model(batch.tokens, batch.layout.positions, (segments > 0)[:, None, :])
    return model(batch.tokens, batch.layout.positions, segments[:, :, None] == segments[:, None, :])


def peer(model: M, logits: Callable[[M, Batch], Tensor], batches: list[Batch], *, fused: bool) -> Step:
    """Return the step as in PyTorch's tutorials, with the fused or the default optimiser."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
    turn = cycle(batches)

    def step() -> object:
        batch = next(turn)
        optimiser.zero_grad()
        loss = cross_entropy(logits(model, batch), batch.labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return norm.item(), loss.item()

    return step


def plain(model: PlainEncoder, batches: list[Batch]) -> Step:
    """Return a step without mask and clipping, with padding in the loss as token 0, and Adam tensor by tensor."""
    optimiser, turn = torch.optim.Adam(model.parameters(), lr=LR, foreach=False), cycle(batches)

    def step() -> object:
        batch = next(turn)
        optimiser.zero_grad()
        logits = model(batch.tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.clamp(min=0).flatten())
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def main() -> None:
    given = options(__doc__, rounds=100, batch={"type": int, "default": 128, "help": "sequences per step"})
    machine = Machine.start(given.threads)
    chosen = preset("reverse")
    packed, padded = same_sequences(Task(chosen.task), given.batch)
    models = [Transformer(chosen.model, torch.Generator().manual_seed(0)) for _ in range(2)]
    torch.manual_seed(0)
    twins = [TrueHeads(chosen.model) for _ in range(3)]
    for twin, batch in zip(twins, (padded[0], padded[0], packed[0]), strict=True):
        twin.copy_weights(models[0])
        difference = (batch.logits(models[0]) - true_heads(twin, batch))[batch.labels >= 0]
        assert difference.abs().max() < 1e-4, "TrueHeads does not compute the same function"
    of_torch = [TorchEncoder(chosen.model) for _ in range(2)]
    variants = {
        "ours, packed": ours(models[0], packed),
        "ours, padded": ours(models[1], padded),
        "ours, packed, without the kernel": ours(replace_modules(models[0], Attention, StepByStep), packed),
        "nn.TransformerEncoder, heads of 4": peer(of_torch[0], torch_encoder, padded, fused=False),
        "… of 4, fused AdamW": peer(of_torch[1], torch_encoder, padded, fused=True),
        "torch.nn parts, heads of 16": peer(twins[0], true_heads, padded, fused=False),
        "… of 16, fused AdamW": peer(twins[1], true_heads, padded, fused=True),
        "… of 16, fused AdamW, packed like ours": peer(twins[2], true_heads, packed, fused=True),
        "plain loop": plain(PlainEncoder(chosen.model), padded),
    }
    seconds = in_turns(variants, given.rounds)
    tokens = statistics.mean(int((batch.labels >= 0).sum()) for batch in padded)
    rows = []
    for name, taken in seconds.items():
        low, middle, high = ratio(taken, seconds["ours, packed"])
        median = statistics.median(taken)
        rows.append(
            {
                "step": name,
                "ms": 1e3 * median,
                "sequences/s": given.batch / median,
                "tokens/s": tokens / median,
                "times ours": middle,
                "quartiles": f"{low:.2f} – {high:.2f}",
            }
        )
    notes = [
        f"Batch {given.batch}, {tokens:,.0f} tokens; {given.rounds} turns each. Ours has {n_parameters(chosen.model):,} "
        "parameters; the model of torch.nn parts gives the same logits with the same weights."
    ]
    show("A training step of preset reverse", machine, rows, notes, given)


if __name__ == "__main__":
    main()
