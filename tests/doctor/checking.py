"""Helpers that run one check on one model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import xformer
from xformer.doctor.check import CHECKS, CheckContext, FaultLocation, Finding
from xformer.doctor.diagnose import run_check, token_model_of

TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])


def found(check: str, model: nn.Module) -> Finding:
    return run_check(CheckContext(token_model_of(model, TOKENS)), CHECKS[check])


def broken_place(check: str, model: nn.Module, fragment: str = "") -> FaultLocation:
    """Return the location of a finding that must be broken, with `fragment` in its sentence."""
    finding = found(check, model)
    assert finding.verdict == "broken", finding.sentence
    assert fragment in finding.sentence
    assert finding.place is not None
    return finding.place


def decoder(**choices: Any) -> xformer.Transformer:
    """Return a small xformer model."""
    shape: dict[str, Any] = {"architecture": "decoder", "vocab_size": 53, "d_model": 24, "n_layers": 2, "n_heads": 6}
    shape |= {"d_ff": 28, "max_len": 128, "norm": "pre", "init": "normal", "init_scale": 0.3}
    return xformer.Transformer(xformer.ModelConfig(**(shape | choices)), torch.Generator().manual_seed(0)).eval()
