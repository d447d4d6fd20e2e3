"""Checks of a run of an external model: those that need no configuration of xformer.

    check_reading(xformer.read("models/SmolLM2", "France is")).findings

Rows of attention may sum to less than 1: attention sinks take the rest (GPT-OSS, arXiv:2309.17453).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from xformer.diagnosis.case import Case, Finding, error
from xformer.diagnosis.ends import check_finite
from xformer.errors import InputError
from xformer.reading import Reading

TOLERANCE = 1e-4
"""For sums of attention weights that a model may have computed in half precision and stored in single precision."""


@dataclass(frozen=True)
class ReadingReport:
    """What was found in one run, and the number of places of each check."""

    findings: list[Finding]
    looked: dict[str, int]


@torch.no_grad()
def check_reading(reading: Reading) -> ReadingReport:
    """Check that all activations are finite, that attention weights are a distribution, and that no query sees the future.

    Args:
        reading: A run of any model. Its first input is checked.

    Returns:
        The findings, with what was checked. After a number that is not finite nothing else is checked.

    Raises:
        InputError: No attention pattern was recorded.
    """
    sites = reading.sites
    if not sites:
        raise InputError("A diagnosis needs the attention patterns; record with keep=('*',), which is the default.")
    case = Case(reading.trace, torch.ones_like(reading.trace.tokens).bool(), None)
    looked = {"every activation is a finite number": len(reading)}
    if broken := list(check_finite(case)):
        return ReadingReport(broken, looked)
    looked["each query's attention weights are from 0 to 1 and sum to at most 1"] = len(sites)
    causal = [site for site in sites if site.stack == "decoder" and not site.is_cross]
    if causal:
        looked["no query attends to later positions"] = len(causal)
    found = [finding for site in sites for finding in _weights(reading, site.path)]
    return ReadingReport([*found, *(finding for site in causal for finding in _future(reading, site.path))], looked)


def _weights(reading: Reading, path: str) -> Iterator[Finding]:
    pattern = reading[f"{path}.pattern"][0]  # [head, query, key]
    least, most = float(pattern.min()), float(pattern.sum(dim=-1).max())
    if least < -TOLERANCE or most > 1 + TOLERANCE:
        numbers = {"least_weight": least, "row_sum_most": most}
        yield error("rows-not-one", path, f"Weights are down to {least:.3g} and rows sum to up to {most:.3g}.", numbers)


def _future(reading: Reading, path: str) -> Iterator[Finding]:
    pattern = reading[f"{path}.pattern"][0]  # [head, query, key]
    later = float(pattern.triu(diagonal=1 + pattern.shape[-1] - pattern.shape[-2]).sum(dim=-1).max())
    if later > TOLERANCE:
        yield error(
            "causal-ignored", path, f"A query gives {later:.3g} of its attention to later positions.", {"later": later}
        )
