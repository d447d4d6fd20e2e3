"""Training with a bug in: the ordinary loop with a broken model in it, beside the same loop with the right one.

    right, wrong = lab_run(preset, steps=300), lab_run(preset, BUGS["no-scale"], steps=300)
    for progress in wrong.reports(): …

Both see the same batches from the same first weights, one sequence per row and the short ones padded (packed rows would mix
two sequences where a bug ignores the mask).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from xformer.bugs.bug import Bug
from xformer.errors import InputError
from xformer.presets import Preset
from xformer.tasks import Batch, Score, Task, score
from xformer.training.device import choose_device
from xformer.training.loop import Run
from xformer.training.recipe import adamw


class LabRun(Run):
    """A training run that keeps nothing on disk, of a model that may be broken. `model` is the model, `reports` trains it."""

    def __init__(self, preset: Preset, bug: Bug | None, device: torch.device) -> None:
        task = Task(preset.task)
        super().__init__(preset, task, device, None)
        self.bug = bug
        self.packed = False
        self.held_out = task.sample(
            self.config.held_out, seed=self.config.seed, purpose="held-out", packed=False, device=device
        )
        if bug is not None:
            self.model = bug.broken(self.model).to(device).train()
            self.optimiser = adamw(self.model, self.config)

    def _held_out_score(self) -> Score:
        """Given the right tokens before each: what a bug does to decoding is another matter, and some cannot decode at all."""
        with torch.no_grad():
            return score(self.held_out.logits(self.model), self.held_out)

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        if self.bug is None or not self.bug.counts_padding:
            return batch
        pad = self.preset.model.pad_token
        return replace(batch, labels=batch.labels.masked_fill(batch.output_segments == 0, pad))


def lab_run(preset: Preset, bug: Bug | None = None, *, steps: int | None = None, device: str = "auto") -> LabRun:
    """A run of `preset`, with `bug` in the model or in the training; `steps` in place of the preset's.

    Raises `InputError` where the model cannot have the bug, `ConfigError` where the settings do not fit each other.
    """
    Task(preset.task).check_fits(preset.model)
    if bug is not None and not bug.applies_to(preset.model):
        raise InputError(f"The bug “{bug.title}” does not fit this model. It needs {bug.rule}.")
    changes: dict[str, object] = {"snapshot_every": 0}
    if steps is not None:
        changes["steps"] = steps
    if bug is not None:
        changes |= dict(bug.train_changes)
    return LabRun(replace(preset, train=preset.train.replace(**changes)), bug, choose_device(device))
