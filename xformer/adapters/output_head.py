"""From the last state of the stream to the logits: the parts that a model calls after its last block, in their order.

They are found in a watched run, each reading what the one before it gave; what is left at the end may be a constant factor, a
bias for each token, or a soft cap. What does not come out at the model's own logits is no output head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.probe import Call, Probe, running
from xformer.errors import InputError

CLOSE = 1e-4
"""How far the logits may be from the model's own, as a share of the largest."""


@dataclass(frozen=True, eq=False)
class OutputHead:
    """logits = cap · tanh(factor · parts(stream) / cap) + bias"""

    parts: tuple[nn.Module, ...]
    factor: float = 1.0
    bias: Tensor | None = None
    softcap: float | None = None

    @torch.no_grad()
    def __call__(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The logits that a place of the stream would have if it were the last."""
        with running(None):
            for part in self.parts:
                stream = part(stream)
        logits = stream * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits if self.bias is None else logits + self.bias

    @property
    def norm(self) -> nn.Module | None:
        """The last norm, where the head is that and one matrix and nothing else: then logits are sums of what was added."""
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def output_matrix(self) -> Float[Tensor, "vocab d_model"] | None:
        """The matrix of a head that is a norm and a matrix, with its factor, capped or not; None where it is more."""
        weight = getattr(self.parts[-1], "weight", None)
        is_linear = len(self.parts) <= 2 and isinstance(weight, Tensor) and weight.dim() == 2
        if not is_linear or weight is None:
            return None
        return weight.detach() if self.factor == 1.0 else weight.detach() * self.factor


def find_output_head(seen: Probe, last: str, logits: Tensor, softcap: float | None) -> OutputHead:
    """The head behind the module `last`. Raises `InputError` where the logits do not follow from its output alone."""
    calls = [call for call in seen.calls if call.path == last]
    value = calls[-1].given if calls else None
    if value is None:
        raise InputError("This model's last state cannot be told from the rest.")
    parts: list[nn.Module] = []
    start, after, factor = value, calls[-1].end, 1.0
    while value.shape != logits.shape:
        step = next((call for call in seen.calls if call.begin > after and _share(call, value) is not None), None)
        if step is None or step.given is None:
            raise InputError("This model's logits do not follow from the last state of its stream alone.")
        factor *= _share(step, value) or 1.0
        if not torch.equal(step.given, value):  # a dropout does nothing here
            parts.append(step.module)
        value, after = step.given, step.end
    for head in _endings(tuple(parts), factor, value, logits, softcap):
        if _close(head(start), logits):
            return head
    raise InputError("This model does more to its logits than can be followed.")


def _share(call: Call, value: Tensor) -> float | None:
    """The constant c, mostly 1, with which a part reads c · value; None where it reads something else."""
    if call.taken is None or call.taken.shape != value.shape:
        return None
    if torch.equal(call.taken, value):
        return 1.0
    factor = float((value * call.taken).sum() / (value * value).sum())
    return factor if factor > 0 and _close(factor * value, call.taken) else None


def _endings(
    parts: tuple[nn.Module, ...], factor: float, value: Tensor, logits: Tensor, softcap: float | None
) -> Iterator[OutputHead]:
    """What may stand between the last part and the logits, the simplest first."""
    yield OutputHead(parts, factor, softcap=softcap)
    yield OutputHead(parts, factor * float((value * logits).sum() / (value * value).sum()))
    yield OutputHead(parts, factor, bias=(logits - value)[0, 0])


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= CLOSE * float(other.abs().max())
