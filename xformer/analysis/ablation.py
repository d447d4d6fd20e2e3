"""The effect of ablating each head (setting its output to zero) on the loss, or on a difference of two logits.

    measured     m(z_h = 0) − m            one run for each head
    estimated    −z_h · ∂m/∂z_h            all heads from one backward pass, to first order
                                           (attribution patching, Syed et al. 2023, arXiv:2310.10348)

By default the measure m is the loss; without labels it is the logit of the likeliest token minus that of the second likeliest.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from xformer.adapters import BareModel
from xformer.adapters.adapter import Measure, gradients
from xformer.adapters.any_module import AnyModule
from xformer.adapters.on_demand import lengths, recorded_bytes
from xformer.analysis import minimal_pairs
from xformer.analysis.attention_patterns import notable_heads
from xformer.arguments import Count
from xformer.disk_quota import megabytes
from xformer.edits import ReplaceParts
from xformer.errors import EditError, UnavailableError
from xformer.memory import BYTES_PER_FLOAT, LAYER_BYTES, free_bytes
from xformer.reading import Reading
from xformer.tasks.task import Example
from xformer.trace import repeat_first

Head = tuple[int, int]
"""(attention layer, head), both counted from 0."""


@dataclass(eq=False)
class HeadEffects:
    """The effects of ablating the heads of a run: estimated for all of them, measured for some."""

    reading: Reading
    measure: Measure
    before: float
    estimated: dict[Head, float]
    measured: dict[Head, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of heads measured so far."""
        return len(self.measured)

    @property
    def to_do(self) -> int:
        """The total number of heads."""
        return len(self.estimated)

    @property
    def is_final(self) -> bool:
        """Whether every head is measured."""
        return self.done == self.to_do

    def measure_heads(self, *heads: Head) -> None:
        """Measure the given heads. Raises `EditError` if a head does not exist."""
        if wrong := [head for head in heads if head not in self.estimated]:
            if not isinstance(wrong[0], tuple) or len(wrong[0]) != 2:
                raise EditError(f"A head is (attention layer, head), like (0, 0), got {wrong[0]!r:.100}.")
            raise EditError(f"There is no head {wrong[0][1]} in attention layer {wrong[0][0]}; for example (0, 0).")
        for _ in self._measuring(heads):
            pass

    def measure_all(self) -> Iterator[HeadEffects]:
        """Measure all heads in the order of `order_to_measure`; yield `self` before the first head and after each one."""
        yield self
        heads = list(self.estimated)
        yield from self._measuring([heads[at] for at in order_to_measure(list(self.estimated.values()))])

    def _measuring(self, heads: Sequence[Head]) -> Iterator[HeadEffects]:
        left = [head for head in heads if head not in self.measured]
        parts = [(f"{self.reading.attention[layer].path}.z", (head,)) for layer, head in left]
        for head, logits in zip(left, logits_with_replacements(self.reading, parts), strict=True):
            self.measured[head] = float(self.measure(logits[None])) - self.before
            yield self

    def table(self) -> pd.DataFrame:
        """Return the table of `head_effects`."""
        rows = [
            (self.reading.attention[layer].path, head, estimated, self.measured.get((layer, head)))
            for (layer, head), estimated in self.estimated.items()
        ]
        return pd.DataFrame(rows, columns=["layer", "head", "estimated", "measured"]).astype({"measured": float})


def estimate_head_effects(
    reading: Reading, *, position: int | None = None, token: int | None = None, against: int | None = None
) -> HeadEffects:
    """Estimate all heads. Raises `UnavailableError` if none can be ablated, or if the backward pass needs too much memory."""
    measure = minimal_pairs.of_run(reading, position, token, against)
    names = [name for site in reading.attention if (name := f"{site.path}.z") in reading]
    if not names:
        model = reading.adapter.name
        raise UnavailableError(f"The outputs of single heads of {model} are not in this run, so none can be ablated.")
    needed, free = 2 * recorded_bytes(reading.adapter.shape, *lengths(reading.example)), free_bytes() // 2
    if needed > free:
        raise UnavailableError(
            f"The backward pass of this run needs about {megabytes(needed)} of memory, and {megabytes(free)} are available; "
            "type a shorter input."
        )
    found = gradients(reading.adapter, reading.example, measure, names, reading.edits)
    estimated: dict[Head, float] = {}
    for layer, site in enumerate(reading.attention):
        if (name := f"{site.path}.z") in found:
            of_heads = -(found.activations[name][0] * found[name][0]).sum(dim=(1, 2))  # [head]
            estimated |= {(layer, head): effect for head, effect in enumerate(of_heads.tolist())}
    return HeadEffects(reading, measure, float(measure(reading.logits)), estimated)


def head_effects(
    reading: Reading,
    *,
    position: int | None = None,
    token: int | None = None,
    against: int | None = None,
    exact: bool | Sequence[Head] = True,
) -> pd.DataFrame:
    """Compute how much the measure grows when each head is ablated.

    Args:
        reading: The run.
        position: The output position, from 0, at which logits are measured; by default the last. If neither `position` nor
            `token` is given and the run has labels, the measure is the loss.
        token: The id of the token whose logit is measured; by default the likeliest.
        against: The id of the token whose logit is subtracted; by default none if `token` is given, else the second likeliest.
        exact: The heads (layer, head) to measure with one run each. True measures all of them, False none.

    Returns:
        A row per head: layer (its path), head (from 0), estimated and measured, both in nats of loss or in logits; measured is
        NaN for heads that were not measured.

    Raises:
        EditError: If `exact` names a head that does not exist.
        UnavailableError: If the run has no outputs of single heads, or the backward pass needs too much memory.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.head_effects(reading)
        >>> list(table.columns)
        ['layer', 'head', 'estimated', 'measured']
    """
    found = estimate_head_effects(reading, position=position, token=token, against=against)
    found.measure_heads(*(found.estimated if exact is True else exact or ()))
    return found.table()


MAX_MEASURED = 4096
"""Heads × tokens. Up to this product `heads_worth_seeing` also ablates each head."""


def heads_worth_seeing(reading: Reading, n: Count = 5) -> pd.DataFrame:
    """Rank the heads to look at first: those with a known pattern and an effect, then an effect alone, then a pattern alone.
    For small models of xformer's own, each head is ablated to measure its effect; for other models the order is that of
    `notable_heads`.

    Args:
        reading: The run.
        n: The largest number of heads.

    Returns:
        The columns of `notable_heads` (pattern is "" for a head that has an effect but no known pattern), effect (by how much
        the measure of `head_effects` grows when the head is ablated) and right (how many predictions are then right). effect
        and right are NaN where they were not measured.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
        >>> xformer.analysis.heads_worth_seeing(reading, n=1)[["layer", "head", "right"]].values.tolist()
        [['encoder.2.attn', 0, 5]]
    """
    found = notable_heads(reading, n=10_000)
    heads = [(site.path, head) for site in reading.attention for head in range(reading.adapter.shape.heads[site.path])]
    n_tokens = reading.example.input_ids.shape[1]
    if not isinstance(reading.adapter, BareModel) or len(heads) * n_tokens > MAX_MEASURED or not reading.has_logits:
        return found.assign(effect=math.nan, right=math.nan).head(n)
    measure, at = minimal_pairs.of_run(reading), list(reading.target_positions)
    before, labels = float(measure(reading.logits)), reading.example.labels[0, at]
    rows = []
    runs = logits_with_replacements(reading, [(f"{path}.z", (head,)) for path, head in heads])
    for (layer, head), logits in zip(heads, runs, strict=True):
        right = int((logits[at].argmax(dim=-1) == labels).sum()) if reading.has_right_answer else math.nan
        rows.append((layer, head, float(measure(logits[None])) - before, right))
    effects = pd.DataFrame(rows, columns=["layer", "head", "effect", "right"])
    both = effects.merge(found, on=["layer", "head"], how="left").fillna({"pattern": ""})
    size = both["effect"].abs()
    matters, is_clear = size >= WORTH_SEEING, both["pattern"] != ""
    worth = both.assign(worth=2 * matters + (is_clear & matters), size=size).loc[matters | is_clear]
    worth = worth.sort_values(by=["worth", "size"], ascending=False, kind="stable", ignore_index=True)
    return worth.loc[:, [*found.columns, "effect", "right"]].head(n)


WORTH_SEEING = 0.1
"""Nats. A head whose ablation changes the loss by at least this much is worth seeing, even without a pattern."""


AT_ONCE = 256
"""Tokens per forward pass: larger batches are no faster per token, and progress is reported less often."""

Where = tuple[Any, ...]
"""The index of a part in an activation, without the batch axis."""


def rows_at_once(reading: Reading) -> int:
    """Return how many copies of this input to run per batch, limited by time and memory; 1 for `AnyModule`.

    A module is called only with inputs of the shape that it was given.
    """
    given = (reading.example.arguments or {}).values()
    if isinstance(reading.adapter, AnyModule) or not all(isinstance(one, Tensor | bool | int | float) for one in given):
        return 1  # a cache among the arguments has one row
    shape = reading.adapter.shape
    n_pos, n_tokens = max(reading.example.input_ids.shape[1], reading.logits.shape[1]), reading.logits.shape[2]
    widest = n_pos * max(n_tokens, 8 * shape.d_model, 4 * n_pos * shape.n_heads)
    return max(1, min(AT_ONCE // n_pos, LAYER_BYTES // (BYTES_PER_FLOAT * widest)))


def logits_with_replacements(
    reading: Reading, parts: Sequence[tuple[str, Where]], by: Mapping[str, Tensor] | None = None
) -> Iterator[Float[Tensor, "pos vocab"]]:
    """Yield the logits of a reading's first input with one part replaced at a time; the reading's own edits stay in place.

    Models of xformer's own keep their padding and mask. `rows_at_once` parts share a forward pass.

    Args:
        reading: The run.
        parts: The name of an activation and the index of the part in it, for each replacement.
        by: Activations of one input to take the parts from; without them the parts are set to 0.
    """
    adapter, example, at_once = reading.adapter, reading.example, rows_at_once(reading)
    for begin in range(0, len(parts), at_once):
        some = parts[begin : begin + at_once]
        changes = []
        for name in dict.fromkeys(name for name, _ in some):
            places = tuple((row, where) for row, (part, where) in enumerate(some) if part == name)
            changes.append(ReplaceParts(name, places, None if by is None else by[name]))
        if isinstance(adapter, BareModel):
            run = repeat_first(adapter.model, reading.trace, len(some), edits=changes, keep=("logits",), fused=True)
        else:
            run = adapter.record(
                _repeated(example.one(0), len(some)), edits=[*reading.edits, *changes], keep=("logits",)
            )
        yield from run.logits[: len(some)].cpu()


def _repeated(example: Example, n: int) -> Example:
    """Return a batch of n times the same input, with its padding and its arguments."""
    given = {name: _rows(value, n) for name, value in (example.arguments or {}).items()}
    names = ("input_ids", "target", "valid", "target_valid")
    return replace(example, arguments=given or None, **{name: _rows(getattr(example, name), n) for name in names})


def _rows(value: Any, n: int) -> Any:
    is_row = isinstance(value, Tensor) and value.dim() > 0 and len(value) == 1
    return value.expand(n, *value.shape[1:]) if is_row else value


NOTHING = 1e-3
"""A part that changes the measure by less counts as having no effect."""

FEWEST = 10
"""The fewest parts from which an agreement is computed."""

TOP = 6
"""The largest number of top estimates that an agreement compares."""

ENOUGH = 0.75
"""The share of the largest effects that the largest estimates must recover."""


def order_to_measure(estimates: Sequence[float]) -> list[int]:
    """Return the order in which to measure parts: alternately the largest remaining estimate and a random part.

    The random parts show whether the estimates miss large effects.
    """
    by_size = sorted(range(len(estimates)), key=lambda at: -abs(estimates[at]))
    at_random = random.Random(0).sample(by_size, len(by_size))
    return list(dict.fromkeys(itertools.chain.from_iterable(zip(by_size, at_random, strict=True))))


@dataclass(frozen=True)
class RankAgreement:
    """How well the estimates rank the measured parts."""

    rho: float
    """Spearman's rank correlation."""
    n: int
    """The number of measured parts whose estimated or measured effect is at least `NOTHING`."""
    top: int
    """The number of largest estimates that are compared."""
    found: float
    """The summed |effect| of the parts with the `top` largest estimates, as a share of that of the `top` largest effects."""

    @property
    def is_near_chance(self) -> bool:
        """Whether a random order would reach this correlation in one of forty trials: ρ √(n − 1) < 2."""
        return self.rho * math.sqrt(self.n - 1) < 2

    @property
    def is_poor(self) -> bool:
        """Whether the estimates should not be used to choose parts: near chance, or large effects are missed."""
        return self.is_near_chance or self.found < ENOUGH


def agreement(table: pd.DataFrame) -> RankAgreement | None:
    """Compare the columns estimated and measured over the measured rows.

    Returns:
        The agreement; None if fewer than `FEWEST` measured parts have an effect, or if all estimates or all effects are equal.
    """
    two = table.filter(["estimated", "measured"]).dropna()
    two = two.loc[(two.abs() >= NOTHING).any(axis=1)].reset_index(drop=True)
    if len(two.columns) < 2 or len(two) < FEWEST:
        return None
    rho = float(two.corr("spearman").to_numpy()[0, 1])
    if math.isnan(rho):
        return None
    top, sizes = min(TOP, len(two) // 3), two.abs()
    chosen, largest = (float(sizes.nlargest(top, column)["measured"].sum()) for column in ("estimated", "measured"))
    return RankAgreement(rho, len(two), top, chosen / largest if largest else 0.0)
