"""Diagnosis: what is wrong with a transformer, from a trace of one run alone, with the reason and the numbers.

    diagnose(record(model, tokens)).findings            [] for a right model, fresh or trained
    diagnose(record(broken, tokens)).findings[0].kind   the bug's name in `xformer.bugs`, where that has it

Each check stands with its derivation in a file of this room: first the mistakes that have a name, then every step computed
again (`identities`). Most are identities that a right run fulfils but for rounding,
whatever its weights are (rows that sum to 1, S = QKᵀ/√d_head, x + f(x), …); where there are none (the size of fresh weights),
the limit follows from the distribution that is written there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from xformer.diagnosis.attention import check_future, check_padding, check_scores, check_softmax, check_window
from xformer.diagnosis.case import Case, Finding, tokens_that_count
from xformer.diagnosis.ends import check_finite, check_logits, check_order, check_positions
from xformer.diagnosis.identities import check_identities
from xformer.diagnosis.projections import check_clones, check_projections
from xformer.diagnosis.report import Report
from xformer.diagnosis.stream import check_additions, check_norms, check_residual
from xformer.diagnosis.weights import check_gate, check_heads, check_init, check_neurons, check_start
from xformer.errors import InputError
from xformer.model import Transformer
from xformer.trace import Trace

__all__ = ["Finding", "diagnose", "findings_frame", "too_few_rows"]

CHECKS = (
    check_softmax,
    check_projections,
    check_scores,
    check_future,
    check_window,
    check_padding,
    check_residual,
    check_norms,
    check_gate,
    check_positions,
    check_logits,
    check_neurons,
    check_init,
    check_start,
    check_heads,
    check_clones,
    check_additions,
)
"""In the order in which a cause comes before what follows from it."""

OF_THE_WEIGHTS = {
    "init-too-large", "init-too-small", "saturated-at-start", "identical-heads", "uniform-heads", "dead-neurons",
    "cloned-layers", "adds-nothing", "constant-stream",
}  # fmt: skip
"""Findings that explain no broken step: right code with such weights does every step rightly."""

RANK = {"error": 0, "warning": 1, "note": 2}


@torch.no_grad()
def diagnose(
    trace: Trace,
    *,
    valid: Bool[Tensor, "batch pos"] | None = None,
    target_valid: Bool[Tensor, "batch target"] | None = None,
    causal: bool | None = None,
    weights_fresh: bool | None = None,
    rolled: Trace | None = None,
    model: Transformer | None = None,
) -> Report:
    """What is wrong with the run, errors first, one finding for each kind with all the places it was found at; and what was
    looked at, and what was not.

    `valid` says which tokens are no padding; without it the trace says so, and where that does not, runs of the
    configuration's padding token at the ends of a row are padding. `causal` overrules the configuration where a mask was
    lifted or imposed on purpose. `weights_fresh` says whether the weights are as drawn; without it, that is read off the
    first norm. `rolled` is a second run, of tokens.roll(1, dims=1), for an encoder whose sense of order is in doubt. A check
    whose activations were not kept, or whose rows are too few to tell, says nothing; a padded batch of different inputs tells
    most.

    With `model`, each step is computed again with its weights; without it, with any weights that fit.

    Once a number is NaN everything after it is, so then that is the only finding.

    Raises `InputError` when `valid` does not fit the tokens or the trace has no attention pattern.
    """
    if not trace.attention_layers():
        raise InputError("A diagnosis needs the attention patterns; record with keep=('*',), which is the default.")
    pad = trace.config.pad_token
    if trace.config.image:  # its positions are the class token and the patches, and all of them count
        valid = torch.ones(len(trace.tokens), trace.config.max_len, dtype=torch.bool, device=trace.tokens.device)
    else:
        valid = _fit(trace.valid if valid is None else valid, trace.tokens, "valid", pad)
    kept = trace.target_valid if target_valid is None else target_valid
    target_valid = None if trace.target is None else _fit(kept, trace.target, "target_valid", pad)
    case = Case(trace, valid, target_valid, causal, weights_fresh, None if model is None else model.state_dict())
    if broken := list(check_finite(case)):
        return Report(broken, {}, model is not None)
    found = [finding for check in CHECKS for finding in check(case)]
    steps, looked = check_identities(case)
    found += [finding for finding in steps if not _is_explained(finding, found)]
    if rolled is not None:
        found += check_order(case, rolled)
    return Report(sorted(_by_kind(found), key=lambda finding: RANK[finding.severity]), looked, model is not None)


def too_few_rows(trace: Trace) -> bool:
    """Whether the tokens are too few to tell what q, k and v are made from: no more of them than d_model + 1."""
    sizes = [trace.tokens.numel(), *([] if trace.target is None else [trace.target.numel()])]
    return min(sizes) <= trace.config.d_model + 1


def findings_frame(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row a finding: severity, kind, where, finding, numbers (as text)."""
    rows = [
        {
            "severity": finding.severity,
            "kind": finding.kind,
            "where": ", ".join(finding.where),
            "finding": finding.sentence,
            "numbers": ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in finding.numbers.items()),
        }
        for finding in findings
    ]
    return pd.DataFrame(rows, columns=["severity", "kind", "where", "finding", "numbers"])


def _fit(valid: Tensor | None, tokens: Tensor, name: str, pad: int) -> Tensor:
    if valid is None:
        return tokens_that_count(tokens, pad)
    if valid.shape != tokens.shape or valid.dtype != torch.bool:
        raise InputError(
            f"{name} must be boolean and shaped like the tokens, {list(tokens.shape)}, got {valid.dtype} "
            f"{list(valid.shape)}; for example {name} = tokens != 0."
        )
    return valid


def _is_explained(step: Finding, found: list[Finding]) -> bool:
    """Whether a mistake that has a name was found at the same place: then the broken step is that mistake."""
    place = step.where[0]
    return any(
        where == place or where.startswith(f"{place}.") or place.startswith(f"{where}.")
        for finding in found
        if finding.kind not in OF_THE_WEIGHTS
        for where in finding.where
    )


def _by_kind(found: list[Finding]) -> list[Finding]:
    """One finding a kind: the first one, with all the places."""
    kinds: dict[str, Finding] = {}
    for finding in found:
        earlier = kinds.setdefault(finding.kind, finding)
        kinds[finding.kind] = replace(earlier, where=tuple(dict.fromkeys((*earlier.where, *finding.where))))
    return list(kinds.values())
