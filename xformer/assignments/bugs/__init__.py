"""Find the bug: small models with one planted fault each, from easy to hard, to be named and repaired.

`causal.py`, `cached.py` and `padded.py` are right. A bug is a change of their text. The student gets the changed
text, writes the name of the fault in `CAUSE`, and repairs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.assignments.bugs import cached, causal, padded
from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, module_with, weights_of

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PlantedBug:
    """A planted fault.

    Attributes:
        base: The right model.
        cause: The name of the fault.
        also: Other names that are right.
        symptom: What somebody who trains the model sees.
        where: The function to look at.
        old: The right text.
        new: The text in the student's file.
    """

    base: ModuleType
    cause: str
    symptom: str
    where: str
    old: str
    new: str
    also: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The student's file."""
        text = (FOLDER / f"{self.base.__name__.rpartition('.')[2]}.py").read_text(encoding="utf-8")
        assert text.count(self.old) == 1, (self.cause, text.count(self.old))
        head = f'"""Find the bug. {self.symptom} Repair the model, and write the name of the fault in CAUSE."""\n\n'
        return head + 'CAUSE = ""\n\n' + text.replace(self.old, self.new).partition("\n\n")[2]


_CAUSAL, _CACHED, _PADDED = "SelfAttention.forward", "GroupedAttention.forward", "FlatAttention"
_BUGS = (
    PlantedBug(causal, "scale_missing", "From the first step on, each token attends to one other token alone.", _CAUSAL,
        "        scores = scores / math.sqrt(d_head)\n", ""),
    PlantedBug(causal, "mask_not_applied", "The loss falls near 0 within minutes, but what it writes is nonsense.", _CAUSAL,
        "        scores = scores.masked_fill(future, -math.inf)", "        scores.masked_fill(future, -math.inf)"),
    PlantedBug(causal, "residual_missing", "Ten layers learn no better than two.", "Block.forward",
        "return x + self.down(h)", "return self.down(h)"),
    PlantedBug(causal, "softmax_over_queries", "The weights of a token do not add up to 1.", _CAUSAL,
        "F.softmax(scores, dim=-1)", "F.softmax(scores, dim=-2)"),
    PlantedBug(causal, "targets_not_shifted", "The loss falls to 0, and it only repeats its last token.", "Model.loss",
        "        logits = self(tokens)[:, :-1]\n        targets = tokens[:, 1:]\n",
        "        logits = self(tokens)\n        targets = tokens\n"),
    PlantedBug(causal, "mask_off_by_one", "Training looks too good, and the text too bad.", _CAUSAL, ".triu(1)", ".triu(2)"),
    PlantedBug(causal, "merge_without_transpose", "It learns short words, but confuses the order of long texts.", _CAUSAL,
        "z.transpose(1, 2).reshape(batch, n, d_model)", "z.reshape(batch, n, d_model)"),
    PlantedBug(causal, "residual_from_norm", "Deep models stop learning, although gradients flow.", "Block.forward",
        "        x = x + self.attention(self.norm1(x))\n",
        "        x = self.norm1(x)\n        x = x + self.attention(x)\n"),
    PlantedBug(padded, "padding_on_queries", "An answer depends on how much padding its batch has.", f"{_PADDED}.forward",
        "hidden = ~valid[:, None, :]", "hidden = ~valid[:, :, None]", ("padding_not_masked",)),
    PlantedBug(padded, "padding_in_head_order", "One text alone is answered well, and a batch badly.", f"{_PADDED}.forward",
        "hidden.repeat_interleave(self.n_heads, dim=0)", "hidden.repeat(self.n_heads, 1, 1)"),
    PlantedBug(padded, "sinusoid_exponent", "Texts of 500 tokens are treated like bags of words.", "sinusoids",
        "(-math.log(10000.0) / d_model)", "(-2 * math.log(10000.0) / d_model)"),
    PlantedBug(cached, "cache_offset", "It generates worse with the cache than without it.", _CACHED,
        "positions = torch.arange(n_past, n_past + n)", "positions = torch.arange(n)"),
    PlantedBug(cached, "cache_mask_misaligned", "With the cache, all new tokens look at the first ones only.", _CACHED,
        ".tril(n_past)", ".tril()", ("cache_evicted_early",)),
    PlantedBug(cached, "key_value_head_order", "Weights of the original model answer badly here.", _CACHED,
        "        keys = k.repeat_interleave(group, dim=1)\n        values = v.repeat_interleave(group, dim=1)\n",
        "        keys = k.repeat(1, group, 1, 1)\n        values = v.repeat(1, group, 1, 1)\n"),
    PlantedBug(cached, "rotary_pairs_mixed", "It learns, but attention to far tokens is random.", "rotate",
        "angle = torch.cat([angle, angle], dim=-1)", "angle = angle.repeat_interleave(2, dim=-1)"),
)  # fmt: skip


def _tokens(seed: int, *shape: int) -> Int[Tensor, "..."]:
    return torch.randint(1, 29, shape, generator=torch.Generator().manual_seed(seed))


def _cases(base: ModuleType) -> list[TaskCase]:
    given = {"sizes": (), "weights": weights_of(base.Model, 1)}
    valid = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    more = {"valid": valid} if base is padded else {}
    return [
        TaskCase("3 texts of 7 tokens", {**given, "tokens": _tokens(1, 3, 7), **more}),
        TaskCase("1 text of 3 tokens", {**given, "tokens": _tokens(2, 1, 3)}),
    ]


def _run(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The logits; also the loss, those of a text in pieces, or those with padding, of a model that has them."""
    tokens, valid = inputs["tokens"], inputs.get("valid")
    if valid is not None:
        return {"logits": model(tokens, valid) * valid[:, :, None]}
    returned = model(tokens)
    if not isinstance(returned, tuple):
        loss = {"loss": model.loss(tokens)} if hasattr(model, "loss") else {}
        return {"logits": returned, **loss}
    first, past = model(tokens[:, :1])
    return {
        "logits": returned[0],
        "logits before the cut": first,
        "logits after the cut": model(tokens[:, 1:], past)[0],
    }


def _task(at: int, bug: PlantedBug) -> AssignmentTask:
    names = ("logits", "logits before the cut", "logits after the cut")
    axes = {**dict.fromkeys(names, "batch pos vocab"), "loss": ""}
    part = TaskPart("Model", bug.base.Model, lambda: _cases(bug.base), axes, bug.symptom, (), _run, module_with)
    return AssignmentTask(f"bug_{at:02}", bug.symptom, [part])


BUGS: dict[str, AssignmentTask] = {f"bug_{at:02}": _task(at, bug) for at, bug in enumerate(_BUGS, 1)}
"""The tasks by name, which is also that of the file."""
PLANTED: dict[str, PlantedBug] = dict(zip(BUGS, _BUGS, strict=True))
"""The faults by the name of the task."""
