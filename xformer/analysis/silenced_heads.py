"""Which heads an input needs: what silencing each does to the loss, or to how far one token is ahead of another.

    measured     m(z_h = 0) − m            one run for each head
    estimated    −z_h · ∂m/∂z_h            all heads from one backward pass: the first step of the same
                                           (attribution patching, Syed et al. 2023, arXiv:2310.10348)

Without a position the measure is the loss where an answer is known; else the lead of the likeliest token over the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from xformer.analysis import minimal_pairs
from xformer.analysis.estimates import order_to_measure
from xformer.analysis.many_at_once import logits_with, rows_at_once
from xformer.errors import EditError, UnavailableError
from xformer.memory import free_bytes
from xformer.reading import Reading
from xformer.room import megabytes
from xformer.subjects.foreign.run_bytes import lengths, recorded_bytes
from xformer.subjects.gradients import Measure, gradients

Head = tuple[int, int]
"""The number of its attention layer, and its own, from 0."""


@dataclass(eq=False)
class SilencedHeads:
    """What silencing each head of a reading does, estimated for all and measured for some."""

    reading: Reading
    measure: Measure
    before: float
    estimated: dict[Head, float]
    measured: dict[Head, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of heads that are measured."""
        return len(self.measured)

    @property
    def to_do(self) -> int:
        """The number of heads in all."""
        return len(self.estimated)

    @property
    def is_final(self) -> bool:
        """Whether all are measured."""
        return self.done == self.to_do

    def silence(self, *heads: Head) -> None:
        """Measure heads in one run, each silenced by itself. Raises `EditError` where there is no such head."""
        if wrong := [head for head in heads if head not in self.estimated]:
            raise EditError(f"There is no head {wrong[0][1]} in attention layer {wrong[0][0]}; for example (0, 0).")
        heads = tuple(head for head in heads if head not in self.measured)
        if not heads:
            return
        parts = [(f"{self.reading.attention[layer].path}.z", (head,)) for layer, head in heads]
        for head, logits in zip(heads, logits_with(self.reading, parts), strict=True):
            self.measured[head] = float(self.measure(logits[None])) - self.before

    def silence_all(self) -> Iterator[SilencedHeads]:
        """Measure all in the order of `order_to_measure`; it yields itself before the first run and after each."""
        yield self
        heads = list(self.estimated)
        left = [heads[at] for at in order_to_measure(list(self.estimated.values())) if heads[at] not in self.measured]
        n_rows = rows_at_once(self.reading)
        for begin in range(0, len(left), n_rows):
            self.silence(*left[begin : begin + n_rows])
            yield self

    def frame(self) -> pd.DataFrame:
        """See `head_effects`."""
        rows = [
            {"layer": self.reading.attention[head[0]].path, "head": head[1], "estimated": estimated,
             "measured": self.measured.get(head)}
            for head, estimated in self.estimated.items()
        ]  # fmt: skip
        return pd.DataFrame(rows).astype({"measured": float})


def silenced_heads(
    reading: Reading, *, position: int | None = None, token: int | None = None, against: int | None = None
) -> SilencedHeads:
    """The estimates of all heads. Raises `UnavailableError` where no head can be silenced, or the graph takes too much room."""
    measure = minimal_pairs.of_run(reading, position, token, against)
    names = [name for site in reading.attention if (name := f"{site.path}.z") in reading]
    if not names:
        raise UnavailableError(
            f"What single heads of {reading.subject.name} say is not in this run, so none is silenced."
        )
    needed, free = 2 * recorded_bytes(reading.subject.shape, *lengths(reading.example)), free_bytes() // 2
    if needed > free:
        raise UnavailableError(
            f"Going back through this run takes about {megabytes(needed)} of memory, and {megabytes(free)} may be taken; type "
            "a shorter input."
        )
    found = gradients(reading.subject, reading.example, measure, names, reading.edits)
    estimated: dict[Head, float] = {}
    for layer, site in enumerate(reading.attention):
        if (name := f"{site.path}.z") in found:
            of_heads = -(found.activations[name][0] * found[name][0]).sum(dim=(1, 2))  # [head]
            estimated |= {(layer, head): effect for head, effect in enumerate(of_heads.tolist())}
    return SilencedHeads(reading, measure, float(measure(reading.logits)), estimated)


def head_effects(
    reading: Reading,
    *,
    position: int | None = None,
    token: int | None = None,
    against: int | None = None,
    exact: bool | Sequence[Head] = True,
) -> pd.DataFrame:
    """How much the measure grows without each head.

    Args:
        reading: The run.
        position: The output at which a lead is measured; without one the measure is the loss where an answer is known.
        token: The token whose logit is measured; without one the likeliest.
        against: The token it is compared with.
        exact: The heads (layer, head) to measure by a run each; True: all, False: none.

    Returns:
        A row for each head: layer, head (from 0), estimated, and measured, NaN where it is not.

    Raises:
        UnavailableError: If the run holds no heads, or the backward pass takes too much memory.
    """
    found = silenced_heads(reading, position=position, token=token, against=against)
    if exact is True:
        for _ in found.silence_all():
            pass
    for head in () if isinstance(exact, bool) else exact:
        found.silence(head)
    return found.frame()
