"""A model and a broken copy side by side: read on one input, or trained from the same weights on the same batches.

    right, wrong = read_both("checkpoints/reverse", "3 7 12 9", "no_scale")
    train_both("checkpoints/reverse", "no_scale", steps=200).rows

Training uses one padded sequence per row: with packed rows, a bug that ignores the mask would mix two sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from xformer.adapters import TaskModel, own_task_model
from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.doctor.faults import BUGS, Bug
from xformer.edits import set_causal
from xformer.errors import XformerError
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.reading import Reading, adapter_of, prepare_inputs
from xformer.tasks import Batch, Score, Task, score
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import record
from xformer.training.evaluate import Progress
from xformer.training.loop import Run, choose_device
from xformer.training.recipe import adamw


class LabRun(Run):
    """A training run, without files, of a model that may have a bug. `reports` trains `model`."""

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
        """Score under teacher forcing, because some broken models cannot decode."""
        with torch.no_grad():
            return score(self.held_out.logits(self.model), self.held_out)

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        if self.bug is None or not self.bug.counts_padding:
            return batch
        pad = self.preset.model.pad_token
        return replace(batch, labels=batch.labels.masked_fill(batch.output_segments == 0, pad))


def lab_run(preset: Preset, bug: Bug | None = None, *, steps: int | None = None, device: str = "auto") -> LabRun:
    """Return a run of `preset` with `bug` in the model or in the training; `steps` overrides the preset's.

    Raises `InputError` if the bug does not apply to the model, `ConfigError` if the settings do not fit each other.
    """
    Task(preset.task).check_fits(preset.model)
    changes = {"snapshot_every": 0, "steps": preset.train.steps if steps is None else steps}
    changes |= dict(bug.train_changes) if bug else {}
    return LabRun(replace(preset, train=preset.train.replace(**changes)), bug, choose_device(device))


HELD_OUT = 64
"""Number of unseen inputs on which both models are scored."""


@dataclass(frozen=True)
class PairedTraining:
    """The progress of both runs: one row per report, and the reason if the run with the bug ended early."""

    rows: list[dict[str, float]] = field(repr=False)
    step: int
    steps: int
    problem: str = ""
    code: str = ""
    """The call that repeats the training, if known."""

    @property
    def is_final(self) -> bool:
        return self.step >= self.steps


def train_both(
    where: str | Path, bug: str, *, steps: int, peak_lr: float = 3e-3, batch_size: int = 32, until: int | None = None
) -> PairedTraining:
    """Train two fresh models of a checkpoint's size and task, one of them with a bug.

    Args:
        where: The checkpoint.
        bug: The name of the bug in `BUGS`.
        steps: The number of training steps.
        peak_lr: The peak learning rate.
        batch_size: Sequences per step.
        until: Stop at the report after this many steps; None trains to the end.

    Returns:
        The progress of both runs.
    """
    own = own_task_model(adapter_of(where))
    preset = lab_preset(own.model.config, own.task.config, steps, peak_lr, batch_size)
    return next(found for found in paired_training(preset, BUGS[bug], steps) if found.is_final or found.step == until)


def paired_training(preset: Preset, bug: Bug, steps: int) -> Iterator[PairedTraining]:
    """Train both models, and yield after each report; if the broken run fails, the other continues."""
    right = lab_run(preset, steps=steps, device="cpu").reports()
    wrong: Iterator[Progress] | None = lab_run(preset, bug, steps=steps, device="cpu").reports()
    rows: list[dict[str, float]] = []
    problem = ""
    for progress in right:
        row = {"step": float(progress.step)} | _figures(progress, "right")
        if wrong is not None:
            try:
                row |= _figures(next(wrong), "wrong")
            except XformerError as error:
                wrong, problem = None, str(error)
        rows.append(row)
        yield PairedTraining(list(rows), progress.step, steps, problem)


def lab_preset(model: ModelConfig, task: TaskConfig, steps: int, peak_lr: float, batch_size: int) -> Preset:
    """Return a preset that trains a model of this size on this task, briefly."""
    every = min(20, max(1, steps // 20))
    train = TrainConfig(
        steps=steps, batch_size=batch_size, peak_lr=peak_lr, log_every=every, held_out=HELD_OUT, snapshot_every=0
    )
    return Preset("lab", "lab", "", model, task, train)


def _figures(progress: Progress, side: str) -> dict[str, float]:
    return {
        f"loss_{side}": progress.loss,
        f"tokens_{side}": progress.held_out.token_accuracy,
        f"gradient_{side}": progress.gradient_norm,
    }


PADDING = 3
"""Number of padding tokens after the input, for bugs that are visible only with padding."""

FRESH_SEED = 0


def right_and_wrong(model: Transformer, bug: str) -> tuple[Transformer, Transformer]:
    """Return the model without the bug (with fresh weights, if the bug concerns them) and with it."""
    if BUGS[bug].shows == "when fresh":
        model = Transformer(model.config, torch.Generator().manual_seed(FRESH_SEED)).eval()
    return model, BUGS[bug].broken(model)


def read_both(
    where: str | Path | TaskModel,
    typed: str | Sequence[int],
    bug: str,
    *,
    causal: bool | None = None,
    edits: str = "",
    models: tuple[Transformer, Transformer] | None = None,
) -> list[Reading]:
    """Read an input with a model without and with a bug.

    Args:
        where: The checkpoint.
        typed: The input.
        bug: The name of the bug in `BUGS`.
        causal: Impose a causal or a full mask; None: the model's own.
        edits: Edits in the form used in links, see `xformer.edit_links`.
        models: The result of `right_and_wrong`, if it exists already.

    Returns:
        The reading without the bug, and the one with it.

    Raises:
        XformerError: `read` would raise it, or the edits do not fit the broken model.
    """
    adapter = own_task_model(adapter_of(where))
    mask = [] if causal is None else [set_causal(causal)]
    config, (_, example, changes) = adapter.model.config, prepare_inputs(adapter, typed, [*mask, edits])
    n = min(PADDING, config.max_len - example.input_ids.shape[1]) if BUGS[bug].shows == "with padding" else 0
    valid = torch.arange(example.input_ids.shape[1] + n)[None] < example.input_ids.shape[1] if n else None
    example = _padded(example, n, config.pad_token)
    has_right_answer, found = adapter.has_right_answer(example), []
    for model in models or right_and_wrong(adapter.model, bug):
        trace = record(model, example.input_ids, example.target, edits=changes, valid=valid)
        found.append(Reading(replace(adapter, model=model), example, trace, has_right_answer))
    return found


def _padded(example: Example, n: int, pad: int) -> Example:
    own = example.target is None  # the labels are those of the stream itself
    labels = F.pad(example.labels, (0, n), value=IGNORED) if own else example.labels
    return replace(example, input_ids=F.pad(example.input_ids, (0, n), value=pad), labels=labels)
