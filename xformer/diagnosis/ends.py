"""Checks at the ends of a run: numbers that are none, positions that are missing, scores that are probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xformer.diagnosis.case import Case, Finding, error, relative
from xformer.trace import Trace

EQUAL_STREAMS = 1e-5


def check_finite(case: Case) -> Iterator[Finding]:
    """softmax-of-nothing · not-finite: the first activation that holds a NaN or an infinity (a masked score may be −∞)."""
    for name in case.trace:
        value = case[name]
        if not value.is_floating_point() or value.sum().isfinite():  # a NaN or an infinity is one in the sum too
            continue
        bad = ~value.isfinite()
        if name.endswith(".scores"):
            bad = bad & ~value.isneginf()
        if not bool(bad.any()):
            continue
        share = bad.double().mean().item()
        path, _, what = name.rpartition(".")
        if what == "pattern" and case.has(path, "scores"):
            empty = case[f"{path}.scores"].isneginf().all(dim=-1)  # [batch, head, query]
            if bool(empty[bad.any(dim=-1)].all()):
                yield error(
                    "softmax-of-nothing",
                    name,
                    "NaN first appears here, in rows whose every score is −∞: the softmax of nothing is 0/0.",
                    {"share": share},
                )
                return
        yield error("not-finite", name, "NaN or infinity first appears here.", {"share": share})
        return


def check_positions(case: Case) -> Iterator[Finding]:
    """no-positions: what goes into the first layer is the embedding alone, or its attention lacks angles or bias.

    Sums are compared exactly but for rounding: no position has a vector below 10⁻⁵ of an embedding.
    """
    kind = case.trace.config.position_kind
    for stack in dict.fromkeys(block.split(".")[0] for block in case.blocks):
        prefix = f"{stack}." if case.trace.config.architecture == "encoder-decoder" else ""
        embed, first = f"{prefix}embed", f"{stack}.0.resid_pre"
        if (
            kind.acts_on == "stream"
            and embed in case
            and first in case
            and relative(case[first] - case[embed], case[embed]) < EQUAL_STREAMS
        ):
            sentence = f"The first layer gets the embeddings as they are: no {kind.name} positions have been added."
            yield error("no-positions", first, sentence)
    for layer in case.layers:
        name, inside = kind.activation, kind.acts_on in ("queries and keys", "scores")
        if not inside or layer.is_cross or case[f"{layer.path}.pattern"].shape[-1] < 2:
            continue
        if f"{layer.path}.{name}" not in case or not bool(case[f"{layer.path}.{name}"].any()):
            sentence = (
                f"The configuration says positions={kind.name!r}, and nothing in this attention knows a position."
            )
            yield error("no-positions", layer.path, sentence)


def check_order(case: Case, rolled: Trace) -> Iterator[Finding]:
    """no-positions, by experiment: an encoder that reads its tokens moved round by one says the same, moved round by one.

    (Not backwards: distances alone, as ALiBi's, are the same in both directions.)
    """
    tokens = case.trace.tokens
    if case.trace.config.architecture != "encoder" or case.trace.config.causal:
        return
    if (
        not torch.equal(rolled.tokens, tokens.roll(1, dims=1))
        or torch.equal(rolled.tokens, tokens)
        or tokens.shape[1] < 3
    ):
        return
    apart = relative(rolled.logits.roll(-1, dims=1) - case.trace.logits, case.trace.logits)
    if apart < 1e-4:
        sentence = (
            "The tokens moved round give the output moved round: the model does not know the order of its tokens."
        )
        severity = "note" if case.trace.config.position_kind.acts_on == "nothing" else "error"
        yield Finding("no-positions", ("logits",), severity, sentence, {"apart": apart})


def check_logits(case: Case) -> Iterator[Finding]:
    """softmax-before-loss: scores that are none below 0 and sum to 1 at every position."""
    if "logits" not in case or case.trace.config.vocab_size < 2:
        return
    logits = case["logits"].double()
    sums = logits.sum(dim=-1)
    if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        yield error(
            "softmax-before-loss",
            "logits",
            "What should be scores are probabilities already: a loss that takes the softmax itself cannot come near 0.",
            {"sum": sums.mean().item(), "least": logits.min().item()},
        )
