"""Sweeps that are ready to start: each asks something that only many models can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xformer.presets import Preset, preset


@dataclass(frozen=True)
class ReadySweep:
    """A preset, and what is swept."""

    name: str
    title: str
    about: str
    preset: Preset
    settings: Mapping[str, Sequence[Any]]


def _seeds() -> ReadySweep:
    base = preset("reverse-small")
    return ReadySweep(
        "seeds",
        "Sixteen seeds of the reverser",
        "The same model and recipe, other dice: when does each find the anti-diagonal, and do all of them?",
        replace(base, train=base.train.replace(target=1.0)),
        {"seed": range(16)},
    )


def _rates() -> ReadySweep:
    base = preset("reverse-small")
    return ReadySweep(
        "rates",
        "Learning rate × seed",
        "Five learning rates, four seeds of each: where does the reverser learn in time, and where is it luck?",
        replace(base, train=base.train.replace(target=1.0, steps=500)),
        {"peak_lr": (0.0003, 0.001, 0.003, 0.01, 0.03), "seed": range(4)},
    )


def _generalise() -> ReadySweep:
    base = preset("modular")
    p = 43
    model = base.model.replace(vocab_size=p + 3, start_token=p + 2, end_token=p + 1)
    train = base.train.replace(steps=1_500, batch_size=256, held_out=512, decay="none", target=0.9)
    return ReadySweep(
        "generalise",
        "Weight decay × share of pairs",
        f"Addition modulo {p}, scored on pairs that training never showed: when is the rule found, not only the pairs?",
        replace(base, title=f"Addition modulo {p}", model=model, task=base.task.replace(symbols=p), train=train),
        {"weight_decay": (0.0, 0.3, 1.0), "train_share": (0.6, 0.7, 0.8, 0.9)},
    )


READY = {one.name: one for one in (_seeds(), _rates(), _generalise())}
