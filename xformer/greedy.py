"""Greedy decoding of many prompts at once: what `decode` says to each of them, with one key/value cache for all.

    for question in questions(batch):                                  # the prompts of one length, with their right answers
        said = greedy(model, question.prompt, question.answer.shape[1])
        right = (said == question.answer).all(dim=1)

Exact match of a decoder means this. Under teacher forcing the model reads the right answer while it is asked for it, and
where anything lets a position see what comes after it (a mask lifted, a bug, positions that count from the end), it copies.
`reads_ahead` tells whether a model can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.decoding import first_read, reader
from xformer.edits import AnyEdit
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.tasks.batch import IGNORED, Batch

SAME_LOGITS = 1e-4
"""Logits this close, as a share of the largest, differ by rounding alone: products of other shapes add up in another order."""


@dataclass(frozen=True, eq=False)
class Question:
    """Prompts of one length and their right answers, end token included: a source each for an encoder-decoder."""

    prompt: Int[Tensor, "row pos"]
    answer: Int[Tensor, "row out"]
    rows: Int[Tensor, " row"]
    """Which rows of their batch they are."""


@torch.no_grad()
def greedy(
    model: Transformer, prompt: Int[Tensor, "batch pos"], n: int, *, edits: Sequence[AnyEdit] = ()
) -> Int[Tensor, "batch n"]:
    """The n likeliest tokens after each prompt, each said after those before it; what comes after an end token means nothing.

    Under `edits` every step is a whole run, because an edit may change any earlier position.

    Raises `InputError` for an encoder.
    """
    if model.config.architecture == "encoder":
        raise InputError("An encoder answers all at once, so there is nothing to decode; take a decoder.")
    was_training = model.training
    model.eval()
    read, next_logits = first_read(model, prompt), reader(model, prompt, edits)
    begin = read.shape[1]
    for _ in range(n):
        read = torch.cat((read, next_logits(read).argmax(dim=-1, keepdim=True)), dim=1)
    model.train(was_training)
    return read[:, begin:]


def questions(batch: Batch) -> Iterator[Question]:
    """What a batch asks, without the answers in it. Raises `InputError` for packed rows, which hold more than one example."""
    segments = batch.layout.segments
    if segments is not None and int(segments.max()) > 1:
        raise InputError("Packed rows hold several examples; sample them with packed=False to decode them.")
    labelled = batch.labels != IGNORED  # [batch, out]
    if batch.target is None:
        lengths = labelled.long().argmax(dim=1) + 1  # a decoder is asked first at the last token of its prompt
    elif segments is None:
        lengths = labelled.new_full((len(labelled),), batch.tokens.shape[1], dtype=torch.long)
    else:
        lengths = segments.sum(dim=1)
    sizes = torch.stack((lengths, labelled.sum(dim=1)), dim=1)  # [batch, 2]
    for length, n in sizes.unique(dim=0).tolist():
        rows = (sizes == sizes.new_tensor((length, n))).all(dim=1).nonzero()[:, 0]
        answer = batch.labels[rows][labelled[rows]].view(len(rows), n)
        yield Question(batch.tokens[rows, :length], answer, rows)


def greedy_answers(model: Transformer, batch: Batch, *, edits: Sequence[AnyEdit] = ()) -> Int[Tensor, "batch out"]:
    """What greedy decoding says where `batch` has labels, and `IGNORED` elsewhere. Raises `InputError` for packed rows."""
    said = torch.full_like(batch.labels, IGNORED)
    for question in questions(batch):
        cells = (batch.labels[question.rows] != IGNORED).nonzero()  # row by row, as many in each
        answers = greedy(model, question.prompt, question.answer.shape[1], edits=edits)
        said[question.rows[cells[:, 0]], cells[:, 1]] = answers.flatten()
    return said


def is_right(model: Transformer, question: Question) -> Bool[Tensor, " row"]:
    """For each prompt, whether greedy decoding says its whole answer and stops there."""
    return (greedy(model, question.prompt, question.answer.shape[1]) == question.answer).all(dim=1)


@torch.no_grad()
def reads_ahead(model: Transformer, batch: Batch, *, places: int | None = None) -> bool:
    """Whether any labelled output of a decoder changes when what comes after it is cut off.

    With `places` no more of each answer are looked at, evenly spread. If none changes, teacher forcing and greedy decoding
    find the same answers right: they agree up to the first mistake. An encoder is asked for everything at once, so nothing
    of its answer is there to be read.
    """
    if model.config.architecture == "encoder":
        return False
    labelled = batch.labels != IGNORED
    whole = batch.logits(model)  # [batch, out, vocab]
    scale = float(whole[labelled].abs().max())
    for rows, place, read in prefixes(batch, places):
        if float((model(*read)[:, -1] - whole[rows, place]).abs().max()) > SAME_LOGITS * scale:
            return True
    return False


def prefixes(
    batch: Batch, places: int | None = None
) -> Iterator[tuple[Int[Tensor, " row"], int, tuple[Int[Tensor, "row pos"], ...]]]:
    """For each labelled output of a decoder its rows, its place, and what the model reads where nothing stands after that.

    With `places` no more of each answer, evenly spread.
    """
    for question in questions(batch):
        rows, first = question.rows, question.prompt.shape[1] - 1 if batch.target is None else 0
        each = range(first, first + question.answer.shape[1])
        for place in each[:: 1 if places is None else max(1, -(-len(each) // places))]:
            if batch.target is None:
                yield rows, place, (batch.tokens[rows, : place + 1],)
            else:
                yield rows, place, (question.prompt, batch.target[rows, : place + 1])
