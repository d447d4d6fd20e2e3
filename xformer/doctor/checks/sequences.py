"""One sequence read in pieces, and several sequences read in one row."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import torch

from xformer.doctor.check import Exam, Outcome, Pair, check, not_applicable
from xformer.doctor.subject import Run
from xformer.errors import XformerError
from xformer.model import Transformer

N_TOKENS = 10
FIRST_SEGMENT = 5
"""Tokens of the document that stands first in a packed row."""


@check("cache", "going on from a cache of keys and values gives the outputs of the whole run, wherever it is split")
def cache(exam: Exam) -> Outcome:
    """Every split: the first part is cached, the rest is read at once."""
    subject = exam.subject
    if not subject.causal:
        return not_applicable("The model is not causal, so it keeps no cache.")
    if not subject.can("past"):
        return not_applicable("The model takes no cache.")
    if isinstance(subject.module, Transformer) and not subject.module.config.position_kind.keeps_keys:
        return not_applicable("Its positions change with the length of the text, so earlier keys cannot be kept.")
    base = subject.base.with_read(subject.base.read[:, :N_TOKENS])
    n = base.read.shape[1]
    if n < 2:
        return not_applicable("The input has one token; give at least two.")
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
def packing(exam: Exam) -> Outcome:
    """A document alone, and behind another one in a row."""
    subject = exam.subject
    if not subject.causal or subject.base.target is not None or not subject.has_output_by_position:
        return not_applicable("Rows of several documents are for causal models of one stream.")
    if not subject.can("segments") and not _reads_packed_positions(exam):
        return not_applicable("The model takes no numbers of documents.")
    tokens = subject.base.tokens[:, :N_TOKENS]
    before = subject.other_tokens(tokens)[:, :FIRST_SEGMENT]
    n_before, n = before.shape[1], tokens.shape[1]
    if n_before + n > subject.max_len:
        return not_applicable("The input is as long as the model allows, so there is no room for a second document.")
    segments = torch.tensor([[1] * n_before + [2] * n])
    positions = torch.tensor([[*range(n_before), *range(n)]]) if subject.can("positions") else None
    packed = Run(
        torch.cat([before, tokens], dim=1), positions=positions, segments=segments if subject.can("segments") else None
    )
    if packed.segments is None and not _blocks(exam, packed, n_before):
        return not_applicable("The model makes no mask from positions that start again.")
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
