"""What contenders say to many sampled inputs at once: the likeliest token at every output, given the right answer so far.

All contenders get the same inputs, each framed for its architecture. A row is an input, a column the k-th token of its answer
(an end token included where the architecture writes one), −1 beyond it. Tokens are indices of the joint labels.

A decoder that could see what comes later, as under a lifted causal mask, would read the answer off its own input. It gets
one run for every token of the answer, over what stands before that token: `sees_ahead` tells for whom this must be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.analysis.contender import Contender, joint_labels, looks_back_only, to_joint, while_it_grows
from xformer.errors import InputError
from xformer.greedy import prefixes, reads_ahead
from xformer.memory import rows_that_fit
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED
from xformer.trace import record

NO_TOKEN = -1
CELLS_AT_ONCE = 800_000
"""Cells of attention, queries by keys, that a head may have in one forward pass: so much takes about a second."""
TRIED = 4
"""Inputs, and places in the answer of each, on which it is tried whether a model sees ahead."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """One contender's answers to one batch of inputs."""

    sources: Int[Tensor, "input pos"]
    """The tokens read, padding and special tokens included (this contender's own numbers)."""
    right: Int[Tensor, "input place"]
    predicted: Int[Tensor, "input place"]
    probability: Float[Tensor, "input place"]
    """What the model gives the token that it predicts; 0 beyond the answer."""


def predictions(
    contenders: Sequence[Contender], n: int, *, seed: int, chunk: int
) -> Iterator[tuple[int, list[Predictions]]]:
    """What all of them say to n inputs of the first one's task that nobody was trained on, a forward pass at a time.

    Yields how many have been read so far and what each contender says to the latest. The inputs are drawn `chunk` at a time:
    those of `evaluate` where it is as many there.

    Raises `InputError` when a contender was made for other tokens, `ConfigError` when they are too long for it.
    """
    task, labels = contenders[0].task, joint_labels(contenders)
    tasks = [inputs_for(contender, task) for contender in contenders]
    ahead = [sees_ahead(contender, own) for contender, own in zip(contenders, tasks, strict=True)]
    for step, start in enumerate(range(0, n, chunk)):
        size = min(chunk, n - start)
        batches = [
            own.sample(size, seed=seed, step=step, device=contender.model.device)
            for contender, own in zip(contenders, tasks, strict=True)
        ]
        for rows in portions(task, size, contenders, one_by_one=any(ahead)):
            yield (
                start + rows.stop,
                [
                    _predictions(contender, batch.rows(rows.start, rows.stop), labels, one_by_one)
                    for contender, batch, one_by_one in zip(contenders, batches, ahead, strict=True)
                ],
            )


def inputs_for(contender: Contender, task: Task) -> Task:
    """The inputs of `task` as this contender reads them; raises as `predictions` does."""
    own = contender.task.config
    laid_out = task.for_architecture(own.architecture, end_token=own.end_token)
    if laid_out.config.name != own.name or laid_out.vocabulary.labels != contender.subject.labels:
        raise InputError(
            f"{contender.name} was made for {own.name} with {own.symbols} symbols, got inputs of {task.config.name} with "
            f"{task.config.symbols}; compare players of one task."
        )
    laid_out.check_fits(contender.model.config)
    return laid_out


def portions(task: Task, n: int, contenders: Sequence[Contender] = (), *, one_by_one: bool = False) -> list[range]:
    """The rows of a batch of n inputs, in portions that one forward pass can take, or one for every token of an answer.

    So few at once that also the widest of the models stays within bounds (see `rows_that_fit`).
    """
    longest = max(task.longest)
    cells = longest**3 // 3 if one_by_one else longest**2
    size = max(1, CELLS_AT_ONCE // max(1, cells))
    copies = longest if one_by_one else 1  # an input is read once for each token of its answer
    for contender in contenders:
        size = min(size, max(1, rows_that_fit(contender.model.config, longest) // copies))
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def sees_ahead(contender: Contender, task: Task) -> bool:
    """Whether a right answer that stands in its input would help it: by what is changed in it, or found by trying.

    `task` is laid out for this contender.
    """
    if not contender.writes:
        return False
    if not looks_back_only(contender):
        return True
    few = task.sample(TRIED, seed=0, device=contender.model.device)
    return reads_ahead(contender.model, few, places=TRIED)


@torch.no_grad()
def _predictions(contender: Contender, batch: Batch, labels: tuple[str, ...], one_by_one: bool) -> Predictions:
    """One forward pass; `one_by_one` as many as an answer has tokens."""
    logits = _logits_one_by_one(contender, batch) if one_by_one else _logits(contender, batch)
    likeliest = logits.softmax(dim=-1).max(dim=-1)  # [input, out]
    sources, labels_typed = contender.task.rule.as_typed(batch.tokens, batch.labels, is_pair=batch.target is not None)
    labelled = labels_typed != IGNORED  # [input, out]
    width = int(labelled.sum(dim=1).max())
    # [input, out]: unlabelled ones go to a spare column
    place = (labelled.cumsum(dim=1) - 1).masked_fill(~labelled, width)
    joint = to_joint(contender, labels).to(batch.labels.device)

    def gathered(cells: Tensor, nothing: int) -> Tensor:
        return cells.new_full((len(cells), width + 1), nothing).scatter(1, place, cells)[:, :width].cpu()

    return Predictions(
        sources=sources.cpu(),
        right=gathered(joint[batch.labels.clamp(min=0)], NO_TOKEN),
        predicted=gathered(joint[likeliest.indices], NO_TOKEN),
        probability=gathered(likeliest.values, 0),
    )


def _logits(contender: Contender, batch: Batch) -> Float[Tensor, "input out vocab"]:
    if not contender.edits:
        return batch.logits(contender.model)
    pad = contender.task.vocabulary.special.pad
    trace = record(
        contender.model,
        batch.tokens,
        batch.target,
        edits=contender.edits,
        keep=("logits",),
        valid=batch.valid,
        target_valid=None if batch.target is None else batch.target != pad,
    )
    return trace.logits


def _logits_one_by_one(contender: Contender, batch: Batch) -> Float[Tensor, "input out vocab"]:
    """The logits of every labelled output out of a run that ends there: 0 at the others."""
    logits = torch.zeros_like(_logits(contender, batch))  # this run refuses an edge that not even the longest input has
    edits, model = while_it_grows(contender.edits), contender.model
    for rows, place, read in prefixes(batch):
        run = record(model, *read, edits=edits, keep=("logits",)).logits if edits else model(*read)
        logits[rows, place] = run[:, -1]
    return logits
