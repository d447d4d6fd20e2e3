"""What the other tokens and rows of a call may not change: later tokens, padding, a cache, another document."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import torch
import torch.nn.functional as F

from xformer.doctor.check import Exam, Finding, NotApplicableError, Pair, assume, check
from xformer.doctor.localise import first_not_finite
from xformer.doctor.subject import Run
from xformer.errors import XformerError
from xformer.model import Transformer

N_CHANGED = 6
"""The number of positions whose token is changed, spread over the input."""
LONGEST = 32
"""Tokens of the input that are looked at."""
FULL = "The input is as long as the model allows, so there is no room for"
REMEDY = (
    "Look at how the mask is made and whether it reaches the scores: it must be −∞ above the diagonal (torch.triu with "
    "diagonal=1), be added before the softmax, and apply on every path."
)


def later_tokens(exam: Exam, base: Run) -> list[Pair]:
    """For some positions, the run and the same run with another token there; everything before it should agree."""
    tokens = base.read[:, :LONGEST]
    base, n = base.with_read(tokens), tokens.shape[1]
    other = exam.subject.other_tokens(tokens)
    at = sorted({1 + round(i * (n - 2) / max(1, min(N_CHANGED, n - 1) - 1)) for i in range(min(N_CHANGED, n - 1))})
    pairs = []
    for position in at:
        changed = tokens.clone()
        changed[:, position] = other[:, position]
        title = f"token {position} changed from {int(tokens[0, position])} to {int(other[0, position])}"
        pairs.append(Pair(base, base.with_read(changed), range(position), title=title))
    return pairs


def _assume_causal(exam: Exam) -> None:
    subject = exam.subject
    assume(subject.causal, "The model is not causal: every token may see every other.")
    assume(subject.base.read.shape[1] >= 2, "The input has one token; give at least two.")
    assume(subject.has_output_by_position, "The model has one output for the whole input.")


@check("causality", "changing a later token changes no earlier output")
def causality(exam: Exam) -> Finding:
    """Outputs before a changed token stay."""
    _assume_causal(exam)
    pairs = later_tokens(exam, exam.subject.base)
    return exam.compare(
        pairs,
        f"Changing a later token changes no earlier output ({len(pairs)} positions).",
        "With {title}, earlier outputs change by {size}: the model sees the future.",
        REMEDY,
    )


@check(
    "causality_with_attention", "the same while the attention weights are returned, and outputs stay as without them"
)
def causality_with_attention(exam: Exam) -> Finding:
    """As `causality`, on the path that returns attention weights."""
    _assume_causal(exam)
    subject = exam.subject
    assume(subject.can("attention"), "The model cannot be asked for its attention weights.")
    base = replace(subject.base, with_attention=True)
    found = exam.compare(
        later_tokens(exam, base),
        "While attention is returned, changing a later token changes no earlier output.",
        "While attention is returned, {title} changes earlier outputs by {size}: the mask is lost on that path.",
        "Look at the branch that returns attention weights: it must use the same mask as the other.",
    )
    if found.verdict == "holds":
        at = range(subject.base.read.shape[1])
        found = exam.compare(
            [Pair(subject.base, base, at, title="asking for attention weights")],
            found.sentence,
            "Asking for attention weights changes the outputs by {size}.",
            "Look at the branch that returns attention weights: it must compute the same as the other.",
        )
    if found.verdict == "broken" and causality(exam).verdict == "broken":
        raise NotApplicableError("The model sees the future on every path; see causality.")
    return found


PADDED_TOKENS = 6
"""Tokens of the padded input: many lengths are tried, so few."""
MOST_PADS = 40
MASK_REMEDY = (
    "Look at how the mask of padding is made and combined with the causal mask: padded keys must be −∞ in every layer and "
    "head, for every length."
)


def _padded(exam: Exam, run: Run, n: int, *, left: bool, content: int | None = None) -> Run:
    """A run with `n` more tokens of padding; positions go on being counted from the first token, where they can be given."""
    sides = (n, 0) if left else (0, n)
    content = exam.subject.pad if content is None else content
    valid = F.pad(torch.ones_like(run.tokens), sides).bool()
    positions = None
    if exam.subject.can("positions") and run.target is None:
        positions = (valid.long().cumsum(dim=1) - 1).clamp(min=0)
    return replace(run, tokens=F.pad(run.tokens, sides, value=content), valid=valid, positions=positions)


def _short(exam: Exam, n: int = PADDED_TOKENS) -> Run:
    """The first tokens of the input, with positions where they can be given."""
    base = exam.subject.base
    tokens = base.tokens[:, :n]
    positions = torch.arange(tokens.shape[1])[None] if exam.subject.can("positions") and base.target is None else None
    return replace(base, tokens=tokens, positions=positions)


def _assume_padding(exam: Exam) -> None:
    assume(exam.subject.can("valid"), "The model takes no mask of padding.")


def _pair(exam: Exam, base: Run, padded: Run, n_before: int, title: str) -> Pair:
    """Outputs at the tokens should agree; of an encoder-decoder all of the target's, of a classifier the only one."""
    n = base.read.shape[1]
    if not exam.subject.has_output_by_position:
        return Pair(base, padded, [0], title=title)
    if base.target is not None:
        return Pair(base, padded, range(n), title=title)
    return Pair(base, padded, range(n), range(n_before, n_before + n), title=title)


@check("left_padding", "padding on the left changes nothing, at every length")
def left_padding(exam: Exam) -> Finding:
    """All lengths from 0 to 40: some mistakes show at few of them only (alignment to 8, 16 or 32)."""
    _assume_padding(exam)
    base = _short(exam)
    room = min(MOST_PADS, exam.subject.max_len - base.tokens.shape[1])
    pairs = [
        _pair(exam, base, _padded(exam, base, n, left=True), n, f"{n} pads on the left")
        for n in range(max(0, room) + 1)
    ]
    found = exam.compare(
        pairs,
        f"Padding on the left changes no output ({len(pairs)} lengths).",
        "With {title}, outputs of the tokens change by {size}.",
        MASK_REMEDY + " Positions must be counted from the first token.",
    )
    cannot_be_told = not exam.subject.can("positions") and not isinstance(exam.subject.module, Transformer)
    if found.verdict == "broken" and cannot_be_told:
        raise NotApplicableError("The model cannot be given positions, so padding on the left moves its tokens.")
    return found


@check("right_padding", "padding on the right changes nothing, with any content")
def right_padding(exam: Exam) -> Finding:
    """Several lengths, filled with the padding token and with others."""
    _assume_padding(exam)
    base, subject = _short(exam), exam.subject
    room = subject.max_len - base.tokens.shape[1]
    other = int(subject.other_tokens(base.tokens)[0, 0])
    contents = [subject.pad] if not subject.has_output_by_position else [subject.pad, other]
    pairs = [
        _pair(exam, base, _padded(exam, base, n, left=False, content=content), 0, f"{n} pads ({content}) on the right")
        for n in (1, 3, 7)
        if n <= room
        for content in contents
    ]
    assume(pairs, f"{FULL} padding.")
    return exam.compare(
        pairs,
        "Padding on the right changes no output, with any content.",
        "With {title}, outputs of the tokens change by {size}.",
        MASK_REMEDY,
    )


@check("batch", "an input gives the same alone and in a batch of unequal lengths")
def batch(exam: Exam) -> Finding:
    """The input alone, and beside a longer and a shorter one; of one length where no padding can be given."""
    subject = exam.subject
    base = subject.base if subject.reads_images else _short(exam, 12)
    n = base.tokens.shape[1]
    other = subject.other_tokens(base.tokens, seed=1)
    can_pad = subject.can("valid") and subject.has_output_by_position
    longer = min(3, subject.max_len - n) if can_pad else 0
    rows = [base.tokens, torch.cat([other, other[:, :longer]], dim=1), other[:, : max(1, n - 2)] if can_pad else other]
    width = n + longer
    tokens = torch.cat([F.pad(row, (0, width - row.shape[1]), value=subject.pad) for row in rows])
    valid = torch.cat([F.pad(torch.ones_like(row), (0, width - row.shape[1])) for row in rows]).bool()
    target = None if base.target is None else base.target.expand(3, -1)
    positions = None if base.positions is None else torch.arange(width).expand(3, -1)
    whole = Run(tokens, valid if can_pad else None, positions, target=target)
    pairs = []
    for number, row in enumerate(rows):
        one = replace(base, tokens=row, positions=None if positions is None else positions[:1, : row.shape[1]])
        pair = _pair(exam, one, whole, 0, f"row {number}")
        pairs.append(replace(pair, row_second=number))
    return exam.compare(
        pairs,
        "An input gives the same output alone and in a batch of 3" + (" of unequal lengths." if can_pad else "."),
        "In a batch of 3, the outputs of {title} change by {size}.",
        "Look for what mixes the rows: statistics over the batch (BatchNorm), a reshape that takes the batch for another axis, "
        "or a mask that is made for the first row only.",
    )


@check("masked_row", "a query that may look at nothing gives finite numbers")
def masked_row(exam: Exam) -> Finding:
    """Padding on the left of a causal model, or a row of padding alone."""
    _assume_padding(exam)
    base, subject = _short(exam), exam.subject
    assume(base.tokens.shape[1] + 3 <= subject.max_len, f"{FULL} padding.")
    run = _padded(exam, base, 3, left=True)
    if not subject.causal or base.target is not None:
        assume(subject.has_output_by_position, "The model has one output for the whole input.")
        run = replace(run, valid=torch.zeros_like(run.tokens).bool())
    logits = subject.logits(run)
    if bool(logits.isfinite().all()):
        return Finding("holds", "A query that may look at nothing gives finite numbers.")
    n = int((~logits[0].isfinite()).any(dim=-1).sum())
    return Finding(
        "broken",
        f"Where a query may look at nothing (padding on the left), {n} outputs are not finite numbers.",
        "Look at the softmax of a row in which every key is masked: −∞ everywhere gives NaN, which spreads in the next layer "
        "and in every gradient. Mask with a finite number, or set such rows to 0.",
        float("inf"),
        exam.floor,
        place=first_not_finite(subject, run),
    )


N_TOKENS = 10
FIRST_SEGMENT = 5
"""Tokens of the document that stands first in a packed row."""


@check("cache", "going on from a cache of keys and values gives the outputs of the whole run, wherever it is split")
def cache(exam: Exam) -> Finding:
    """Every split: the first part is cached, the rest is read at once."""
    subject = exam.subject
    assume(subject.causal, "The model is not causal, so it keeps no cache.")
    assume(subject.can("past"), "The model takes no cache.")
    keeps_keys = not isinstance(subject.module, Transformer) or subject.module.config.position_kind.keeps_keys
    assume(keeps_keys, "Its positions change with the length of the text, so earlier keys cannot be kept.")
    base = subject.base.with_read(subject.base.read[:, :N_TOKENS])
    n = base.read.shape[1]
    assume(n >= 2, "The input has one token; give at least two.")
    pairs = [
        Pair(base, replace(base, n_cached=split), range(split, n), title=f"a cache of {split} tokens")
        for split in range(1, n)
    ]
    return exam.compare(
        pairs,
        f"Going on from a cache gives the outputs of the whole run ({n - 1} splits).",
        "With {title}, the outputs of the rest change by {size}.",
        "Look at the positions of the new tokens (they start at the length of the cache), at the causal mask of several new "
        "tokens, and at how keys and values are appended.",
    )


@check("packing", "documents in one row do not see each other")
def packing(exam: Exam) -> Finding:
    """A document alone, and behind another one in a row."""
    subject = exam.subject
    is_one_stream = subject.base.target is None and subject.has_output_by_position
    assume(subject.causal and is_one_stream, "Rows of several documents are for causal models of one stream.")
    assume(subject.can("segments") or _reads_packed_positions(exam), "The model takes no numbers of documents.")
    tokens = subject.base.tokens[:, :N_TOKENS]
    before = subject.other_tokens(tokens)[:, :FIRST_SEGMENT]
    n_before, n = before.shape[1], tokens.shape[1]
    assume(n_before + n <= subject.max_len, f"{FULL} a second document.")
    segments = torch.tensor([[1] * n_before + [2] * n])
    positions = torch.tensor([[*range(n_before), *range(n)]]) if subject.can("positions") else None
    packed = Run(
        torch.cat([before, tokens], dim=1), positions=positions, segments=segments if subject.can("segments") else None
    )
    is_told = packed.segments is not None or _blocks(exam, packed, n_before)
    assume(is_told, "The model makes no mask from positions that start again.")
    return exam.compare(
        [Pair(Run(tokens), packed, range(n), range(n_before, n_before + n), title="another document before it")],
        "A document gives the same alone and behind another one in a row.",
        "With {title} in the row, outputs change by {size}: the documents see each other.",
        "Look at how the mask is made from the segments (or from positions that start again): it must be block-diagonal, and "
        "positions must start at 0 in each document.",
    )


def _blocks(exam: Exam, packed: Run, n_before: int) -> bool:
    """Whether some layer keeps the second document from the first."""
    try:
        recorded = exam.subject.record(packed)
    except XformerError:
        return False
    patterns = [value for name, value in recorded.items() if name.endswith("attn.pattern")]
    return any(float(pattern[:, :, n_before:, :n_before].abs().max()) == 0 for pattern in patterns)


def _reads_packed_positions(exam: Exam) -> bool:
    """Whether a model of Transformers finds documents by positions that start again, as its shared masks do."""
    subject = exam.subject
    if not subject.is_transformers or not subject.can("positions"):
        return False
    kinds = set(getattr(subject.config, "layer_types", None) or ["full_attention"])
    family = import_module(type(subject.module).__module__)
    return hasattr(family, "create_causal_mask") and kinds <= {"full_attention", "sliding_attention"}
