"""What players say to many sampled inputs at once: the likeliest token at every output, given the right answer so far.

All players get the same inputs, each framed for its architecture. A row is an input, a column the k-th token of its answer
(an end token included where the architecture writes one), −1 beyond it. Tokens are indices of the joint labels.

A decoder that could see what comes later, as under a lifted causal mask, would read the answer off its own input. It gets
one run for every token of the answer, over what stands before that token: `sees_ahead` tells for whom this must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.analysis.players import Player, looks_back_only, to_joint, while_it_grows
from xformer.errors import InputError
from xformer.greedy import questions, reads_ahead
from xformer.memory import rows_that_fit
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED
from xformer.trace import record

NOTHING = -1


@dataclass(frozen=True, eq=False)
class Answers:
    """One player's answers to one batch of inputs."""

    sources: Int[Tensor, "input pos"]
    """The tokens read, padding and special tokens included (this player's own numbers)."""
    right: Int[Tensor, "input place"]
    said: Int[Tensor, "input place"]
    probability: Float[Tensor, "input place"]
    """What the model gives the token it says; 0 beyond the answer."""


def inputs_for(player: Player, task: Task) -> Task:
    """The inputs of `task` as this player reads them.

    Raises `InputError` when the player was made for other tokens, `ConfigError` when they are too long for it.
    """
    own = player.task.config
    laid_out = task.for_architecture(own.architecture, end_token=own.end_token)
    if laid_out.config.name != own.name or laid_out.vocabulary.labels != player.task.vocabulary.labels:
        raise InputError(
            f"{player.name} was made for {own.name} with {own.symbols} symbols, got inputs of {task.config.name} with "
            f"{task.config.symbols}; compare players of one task."
        )
    laid_out.check_fits(player.model.config)
    return laid_out


CELLS = 800_000
"""Cells of attention, queries by keys, that a head may have in one forward pass: so much takes about a second."""


def portions(task: Task, n: int, players: Sequence[Player] = (), *, one_by_one: bool = False) -> list[range]:
    """The rows of a batch of n inputs, in portions that one forward pass can take, or one for every token of an answer.

    So few at once that also the widest of the models stays within bounds (see `rows_that_fit`).
    """
    longest = max(task.longest)
    cells = longest**3 // 3 if one_by_one else longest**2
    size = max(1, CELLS // max(1, cells))
    copies = longest if one_by_one else 1  # an input is read once for each token of its answer
    for player in players:
        size = min(size, max(1, rows_that_fit(player.model.config, longest) // copies))
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def sees_ahead(player: Player, task: Task) -> bool:
    """Whether a right answer that stands in its input would help this player: by what is changed in it, or found by trying."""
    if player.model.config.architecture == "encoder":
        return False
    if not looks_back_only(player):
        return True
    few = inputs_for(player, task).sample(TRIED, seed=0, device=player.model.device)
    return reads_ahead(player.model, few, places=TRIED)


TRIED = 4
"""Inputs, and places in the answer of each, on which it is tried whether a model sees ahead."""


@torch.no_grad()
def answers(
    player: Player,
    task: Task,
    n: int,
    *,
    seed: int,
    step: int,
    labels: tuple[str, ...],
    rows: range | None = None,
    one_by_one: bool = False,
) -> Answers:
    """Batch number `step` of n inputs (never trained on), or some of its rows, and what the player says.

    One forward pass; `one_by_one` as many as an answer has tokens, for a player that sees ahead.
    """
    batch = inputs_for(player, task).sample(n, seed=seed, step=step, device=player.model.device)
    if rows is not None:
        batch, n = batch.rows(rows.start, rows.stop), len(rows)
    logits = _logits_one_by_one(player, batch) if one_by_one else _logits(player, batch)
    likeliest = logits.softmax(dim=-1).max(dim=-1)  # [input, out]
    sources, labels_typed = _as_typed(batch, player.task)
    labelled = labels_typed != IGNORED  # [input, out]
    width = int(labelled.sum(dim=1).max())
    place = (labelled.cumsum(dim=1) - 1).masked_fill(
        ~labelled, width
    )  # [input, out]: unlabelled ones go to a spare column
    joint = to_joint(player, labels).to(batch.labels.device)

    def gathered(cells: Tensor, nothing: int) -> Tensor:
        return cells.new_full((n, width + 1), nothing).scatter(1, place, cells)[:, :width].cpu()

    return Answers(
        sources=sources.cpu(),
        right=gathered(joint[batch.labels.clamp(min=0)], NOTHING),
        said=gathered(joint[likeliest.indices], NOTHING),
        probability=gathered(likeliest.values, 0),
    )


def _as_typed(batch: Batch, task: Task) -> tuple[Int[Tensor, "input pos"], Int[Tensor, "input out"]]:
    """The inputs as a person would type them, and the answers that there are then.

    A piece of a text that is typed has no answer after its last character; an encoder-decoder is given both halves of it.
    """
    if not task.rule.is_open_ended:
        return batch.tokens, batch.labels
    if batch.target is not None:
        return torch.cat((batch.tokens, batch.labels), dim=1), batch.labels
    labels = batch.labels.clone()
    labels[:, -1] = IGNORED
    return batch.tokens, labels


def _logits(player: Player, batch: Batch) -> Float[Tensor, "input out vocab"]:
    if not player.edits:
        return batch.logits(player.model)
    pad = player.task.vocabulary.special.pad
    trace = record(
        player.model,
        batch.tokens,
        batch.target,
        edits=player.edits,
        keep=("logits",),
        valid=batch.valid,
        target_valid=None if batch.target is None else batch.target != pad,
    )
    return trace.logits


def _logits_one_by_one(player: Player, batch: Batch) -> Float[Tensor, "input out vocab"]:
    """The logits of every labelled output out of a run that ends there: 0 at the others."""
    logits = torch.zeros_like(_logits(player, batch))  # this run refuses an edge that not even the longest input has
    edits = while_it_grows(player.edits)
    for question in questions(batch):
        rows = question.rows
        first = question.prompt.shape[1] - 1 if batch.target is None else 0
        for place in range(first, first + question.answer.shape[1]):
            if batch.target is None:
                read = (batch.tokens[rows, : place + 1],)
            else:
                read = (question.prompt, batch.target[rows, : place + 1])
            run = record(player.model, *read, edits=edits, keep=("logits",)).logits if edits else player.model(*read)
            logits[rows, place] = run[:, -1]
    return logits
