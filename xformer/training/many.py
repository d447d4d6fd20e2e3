"""Train many models of one shape together: many seeds, or a grid of settings.

On a GPU the forward pass is one `torch.func.vmap` over the stacked parameters of all models, so each operation is launched once
for all of them. On a CPU, where launching costs little and the stack of sixteen models exceeds the caches, the models take
their steps in turns. Each model keeps its own data, recipe, optimiser and files: between two steps it is an ordinary `Run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from xformer.checkpoints import Checkpoint, load
from xformer.errors import QuotaExceededError, TrainingError
from xformer.files import is_finished
from xformer.presets import Preset
from xformer.presets import preset as preset_named
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED, cross_entropy
from xformer.training.evaluate import Progress
from xformer.training.limits import check_memory
from xformer.training.loop import Run, Stopped, choose_device
from xformer.training.recipe import learning_rate, update
from xformer.training.sweeps import check_alike


@dataclass(frozen=True)
class ReportOfOne:
    """A report of one of the models. Each model's last report has `done` set or has a `failure`."""

    number: int
    """The index of the model among the presets, from 0."""
    progress: Progress | None
    failure: str = ""
    """One sentence on why the model failed (its loss is not finite); empty if it did not. The other models continue."""

    @property
    def is_last(self) -> bool:
        return bool(self.failure) or (self.progress is not None and self.progress.done)


def train_many(
    presets: Sequence[Preset | str], *, out: str | Path | None = None, device: str = "auto", resume: bool = False
) -> list[Checkpoint | None]:
    """Train presets of one model shape and one task together, and return their checkpoints.

    Each model equals the one that `train` returns for its preset: bit for bit on a CPU, within rounding on a GPU.

    Args:
        presets: Presets that differ in seed, learning rate, weight decay, steps or other training settings; see `sweep`.
        out: A folder. The files of each model are written to `out/000`, `out/001`, … as by `train`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the unfinished models in `out`.

    Returns:
        The checkpoint of each preset; None if its loss became non-finite.

    Raises:
        ConfigError: The models cannot be trained together, or need more memory than is free.

    Example:
        >>> models = train_many(sweep("reverse-small", seed=range(16)))  # doctest: +SKIP
    """
    runs, folders = _runs_of(presets, out, device, resume)
    given_up = {report.number for report in reports(runs) if report.failure}
    found: list[Checkpoint | None] = []
    for number, folder in enumerate(folders):
        if number not in runs:  # finished before
            assert folder is not None
            found.append(load(folder))
        else:
            found.append(None if number in given_up else runs[number].checkpoint())
    return found


def iter_train_many(
    presets: Sequence[Preset | str], *, out: str | Path | None = None, device: str = "auto", resume: bool = False
) -> Generator[ReportOfOne]:
    """Train presets together and yield the reports of all models as they become available.

    Closing the generator early writes the states of the unfinished models.

    Args:
        presets: Presets, or names of presets, that differ in training settings only; see `sweep`.
        out: A folder. The files of each model are written to `out/000`, `out/001`, …
        device: "auto", "cpu", "cuda" or "cuda:1".
        resume: Continue the interrupted models in `out`.

    Returns:
        A generator of reports with the `number` of a model and its `progress`.

    Raises:
        ConfigError: The models cannot be trained together, or need more memory than is free.

    Example:
        >>> import xformer
        >>> report = next(xformer.iter_train_many(xformer.sweep("reverse-small", seed=range(2)), device="cpu"))
        >>> report.number
        0
    """
    return reports(_runs_of(presets, out, device, resume)[0])


def _runs_of(
    presets: Sequence[Preset | str], out: str | Path | None, device: str, resume: bool
) -> tuple[dict[int, Run], list[Path | None]]:
    chosen = [preset_named(preset) for preset in presets]
    check_alike(chosen)
    torch_device = choose_device(device)
    Task(chosen[0].task).check_fits(chosen[0].model)
    check_memory(chosen[0], torch_device.type, n_models=len(chosen))
    folders = [None if out is None else Path(out) / f"{number:03d}" for number in range(len(chosen))]
    made = [Run(one, Task(one.task), torch_device, folder) for one, folder in zip(chosen, folders, strict=True)]
    runs = dict(enumerate(made))
    if resume:
        runs = {number: run for number, run in runs.items() if run.out is None or not is_finished(run.out)}
        for run in runs.values():
            run.restore()
    return runs, folders


def reports(
    runs: Mapping[int, Run], between: Callable[[], None] = lambda: None, *, stacked: bool | None = None
) -> Generator[ReportOfOne]:
    """Train runs to their ends together. Closing the generator early writes the states of the unfinished runs.

    Args:
        runs: Runs of one model shape and one task, by number.
        between: Called before every step of all runs; may raise `Stopped`.
        stacked: Whether all runs take a step as one computation, or in turns; None means stacked on a GPU.
    """
    active = dict(runs)
    if stacked is None:
        stacked = all(run.device.type != "cpu" for run in runs.values())
    try:
        while active:
            for number, run in list(active.items()):
                try:
                    progress = run.due()
                except TrainingError as error:
                    del active[number]
                    yield ReportOfOne(number, None, str(error))
                    continue
                if progress is not None:
                    if progress.done:
                        del active[number]
                    yield ReportOfOne(number, progress)
            if not active:
                return
            between()
            steps = stacked_step(list(active.values())) if stacked else [run.train_step for run in active.values()]
            for (number, _), step in zip(list(active.items()), steps, strict=True):
                try:
                    step()
                except TrainingError as error:
                    del active[number]
                    yield ReportOfOne(number, None, str(error))
    except (GeneratorExit, KeyboardInterrupt, Stopped, QuotaExceededError):
        for run in active.values():
            if not run.updating:
                run.save_state()
        raise


def stacked_step(runs: Sequence[Run]) -> list[Callable[[], None]]:
    """Take one training step of all runs. Returns a function for each run that counts its step; see `Run.finish_step`."""
    clock = time.perf_counter()
    batches = [run.batch(run.step) for run in runs]
    losses, norms = find_gradients(runs, batches)
    rates = [learning_rate(run.config, run.step + 1) for run in runs]
    for run in runs:
        run.updating = True
    for run, lr in zip(runs, rates, strict=True):
        update(run.optimiser, lr)
    figures = zip(runs, losses.tolist(), norms.tolist(), batches, strict=True)
    share = (time.perf_counter() - clock) / len(runs)
    for run in runs:
        run.seconds += share
    return [partial(run.finish_step, loss, norm, batch.tokens.numel()) for run, loss, norm, batch in figures]


def find_gradients(runs: Sequence[Run], batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Store the clipped gradient of each run's batch in its parameters.

    Returns:
        The losses [model], and the norms of the gradients before clipping [model].
    """
    model = runs[0].model
    names = [name for name, _ in model.named_parameters()]
    parameters = list(zip(*(run.model.parameters() for run in runs), strict=True))  # [parameter][model]
    stacked = {
        name: torch.stack([p.detach() for p in of_all]).requires_grad_()  # [model, …]
        for name, of_all in zip(names, parameters, strict=True)
    }
    template, tensors = stack_batches(batches, pad=runs[0].task.vocabulary.special.pad)

    def loss_of(weights: dict[str, Tensor], cells: list[Tensor]) -> Tensor:
        rest = iter(cells)
        batch = template.map(lambda _: next(rest))
        arguments = (batch.tokens, batch.target)
        layouts = {"layout": batch.layout, "target_layout": batch.target_layout}
        return cross_entropy(functional_call(model, weights, arguments, layouts), batch.labels)

    with sdpa_kernel(SDPBackend.MATH):  # vmap does not support PyTorch's other attention kernels
        losses = vmap(loss_of)(stacked, tensors)
    gradients = torch.autograd.grad(losses.sum(), list(stacked.values()))
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)  # [model]
    limits = norms.new_tensor([run.config.clip_norm or torch.inf for run in runs])
    scale = (limits / (norms + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
    for gradient, of_all in zip(gradients, parameters, strict=True):
        scaled = gradient * scale.view(-1, *[1] * (gradient.dim() - 1))
        # The fused AdamW reads gradients in memory order, so a transposed gradient would be applied incorrectly.
        for p, own in zip(of_all, scaled.contiguous().unbind(), strict=True):
            p.grad = own
    return losses.detach(), norms


def stack_batches(batches: Sequence[Batch], pad: int) -> tuple[Batch, list[Tensor]]:
    """Stack the tensors of batches of one kind.

    Returns a template batch, whose `map` rebuilds a batch from its tensors, and the stacked tensors [model, batch, pos] in the
    order of `Batch.tensors`. Shorter rows are padded to the longest: with the pad token, the ignored label, or 0 for positions
    and segments.
    """
    template, stacked, is_padded = batches[0], [], False
    fillers = {id(template.labels): IGNORED, id(template.tokens): pad, id(template.target): pad}
    for of_all in zip(*(batch.tensors() for batch in batches), strict=True):
        width, filler = max(one.shape[-1] for one in of_all), fillers.get(id(of_all[0]), 0)
        is_padded |= any(one.shape[-1] < width for one in of_all)
        stacked.append(torch.stack([F.pad(one, (0, width - one.shape[-1]), value=filler) for one in of_all]))

    def layout(name: str) -> Any:
        layouts = [getattr(batch, name) for batch in batches]
        if layouts[0] is None:
            return None
        return replace(layouts[0], padded=is_padded or any(layout.padded for layout in layouts))

    return replace(template, layout=layout("layout"), target_layout=layout("target_layout")), stacked
