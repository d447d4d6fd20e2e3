"""Train a student's GPT on a small task, and write its attention as a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.errors import AssignmentError

VOCAB, HALF = 16, 8
"""The number of symbols, and of those that are repeated."""
GOOD = 0.99
"""The accuracy at which the training ends early."""
PAGE = "attention.html"


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model.

    Attributes:
        model: The student's GPT.
        tokens: A text that it has not seen: some symbols, and the same symbols again.
        accuracy: The share of repeated symbols that it predicts in new texts.
        n_steps: The number of training steps.
    """

    model: nn.Module
    tokens: Int[Tensor, "1 pos"]
    accuracy: float
    n_steps: int


def train(
    make: Callable[..., nn.Module], loss: Callable[[Tensor, Tensor], Tensor], *, seconds: float = 30.0, seed: int = 0
) -> Trained:
    """Train a GPT to repeat symbols: after "3 7 12 9" comes "3 7 12 9" again.

    Args:
        make: The class of the model, called with the number of symbols.
        loss: The loss of logits [batch, pos, vocab] on tokens [batch, pos].
        seconds: The longest time; a right model needs less than half a minute.
        seed: The seed of the weights and the texts.

    Returns:
        The model, with its accuracy on new texts.
    """
    torch.manual_seed(seed)
    model, generator = make(VOCAB), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    held_out, end, accuracy, step = _texts(256, generator), time.monotonic() + seconds, 0.0, 0
    while accuracy < GOOD and time.monotonic() < end:
        tokens = _texts(64, generator)
        optimiser.zero_grad()
        loss(model(tokens), tokens).backward()
        optimiser.step()
        step += 1
        if step % 50 == 0:
            accuracy = _accuracy(model, held_out)
    return Trained(model.eval(), held_out[:1], _accuracy(model, held_out), step)


def _texts(n: int, generator: torch.Generator) -> Int[Tensor, "n pos"]:
    half = torch.randint(VOCAB, (n, HALF), generator=generator)
    return torch.cat([half, half], dim=1)


@torch.no_grad()
def _accuracy(model: nn.Module, tokens: Int[Tensor, "batch pos"]) -> float:
    logits: Float[Tensor, "batch pos vocab"] = model(tokens)
    return float((logits[:, HALF - 1 : -1].argmax(-1) == tokens[:, HALF:]).float().mean())


def train_and_show(functions: Mapping[str, Any], seconds: float, out: Path) -> dict[str, Any]:
    """Train the model of a student's file, and write its attention in a folder as a page that opens without a network.

    Raises:
        AssignmentError: The file has no GPT or no loss.
    """
    if missing := [name for name in ("GPT", "next_token_loss") if name not in functions]:
        raise AssignmentError(f"There is no {missing[0]}.")
    trained = train(functions["GPT"], functions["next_token_loss"], seconds=seconds)
    from xformer.reading import read
    from xformer.widgets.page import save_html

    save_html(read(trained.model, trained.tokens), out / PAGE)
    return {"accuracy": trained.accuracy, "steps": trained.n_steps, "page": PAGE}
