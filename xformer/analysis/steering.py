"""Steering: what a model goes on with while the difference of two of its own states is added to its stream.

    x_L  ←  x_L + scale · (x_L of one text − x_L of another)        after block L, at every position, at each step

The two states are those after the last token of either text (Turner et al. 2023, arXiv:2308.10248; Rimsky et al. 2024,
arXiv:2312.06681). A scale of 0 changes nothing; a negative one steers the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from xformer.decoding import Step
from xformer.edits import steer
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading


def direction(towards: Reading, away: Reading, *, layer: int) -> Float[Tensor, " d_model"]:
    """From the stream after the last token of one text to that of another, after block `layer`, counted from 0.

    Raises `UnavailableError` where there is no stream, `InputError` where there is no such layer.
    """
    name = _name(towards, layer)
    one, other = (reading[name][0, -1] for reading in (towards, away))
    if not bool((one != other).any()):
        raise InputError("Both texts leave the model in the same state, so there is no direction; change one of them.")
    return one - other


def steering_steps(
    reading: Reading, towards: Reading, away: Reading, *, layer: int, scale: float = 1.0, n: int = 16
) -> Iterator[Step]:
    """The `n` tokens that the model goes on with after `reading` while it is steered."""
    edit = steer(_name(reading, layer), direction(towards, away, layer=layer), scale)
    return islice(reading.subject.steps(reading.example, n, edits=[*reading.edits, edit]), n)


def steered(
    reading: Reading, towards: Reading, away: Reading, *, layer: int, scale: float = 1.0, n: int = 16
) -> pd.DataFrame:
    """Both texts step by step: step, says, probability, steered_says, steered_probability; layers count from 0."""
    own = islice(reading.subject.steps(reading.example, n, edits=reading.edits), n)
    other = steering_steps(reading, towards, away, layer=layer, scale=scale, n=n)
    labels = reading.subject.labels
    rows = []
    for index, steps in enumerate(zip_longest(own, other)):
        row: dict[str, object] = {"step": index}
        for name, step in zip(("", "steered_"), steps, strict=True):
            row |= {
                f"{name}says": None if step is None else labels[step.token],
                f"{name}probability": None if step is None else step.probabilities[step.token].item(),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def _name(reading: Reading, layer: int) -> str:
    shape, name = reading.subject.shape, f"{reading.output_stack}.{layer}.resid_post"
    if not 0 <= layer < shape.n_layers:
        raise InputError(f"{reading.subject.name} has layers 0 to {shape.n_layers - 1}, got {layer}.")
    if name not in reading:
        raise UnavailableError(
            f"No residual stream was found in {reading.subject.name}, so nothing can be added to it."
        )
    return name
