"""Hand-written models in several styles: no finding in correct ones, and each planted fault in its layer by every check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS, found
from tests.doctor.llama import llama
from tests.doctor.styles import (
    LAYER,
    WIDTH,
    BatchSecond,
    CachedGPT,
    ContextGPT,
    LectureBlock,
    LectureGPT,
    PaddedGPT,
    Pair,
    UnknownMask,
    WithoutPositions,
)
from xformer.adapters.any_module import AnyModule
from xformer.doctor.check import FaultLocation
from xformer.doctor.checks.training import _is_unused
from xformer.doctor.diagnose import Diagnosis

PAIR = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, 3:12]}
EQUAL = {"input_ids": TOKENS, "decoder_input_ids": TOKENS.flip(1)}
STYLES: list[tuple[Callable[..., nn.Module], Any]] = [
    (LectureGPT, TOKENS),
    (CachedGPT, TOKENS),
    (ContextGPT, TOKENS),
    (Pair, PAIR),
    (Pair, EQUAL),
]
FAULTS: list[tuple[Callable[..., nn.Module], Any, str, set[str]]] = [
    (LectureGPT, TOKENS, "mask_lost", {"causality"}),
    (LectureGPT, TOKENS, "weights_scaled", {"attention_rows"}),
    (LectureGPT, TOKENS, "positions_mixed", {"causality"}),
    (LectureGPT, TOKENS, "stream_detached", {"gradients"}),
    (CachedGPT, TOKENS, "cache_replaced", {"cache"}),
    (CachedGPT, TOKENS, "cache_in_wrong_order", {"cache"}),
    (CachedGPT, TOKENS, "values_not_cached", {"cache"}),
    (CachedGPT, TOKENS, "mask_lost_with_cache", {"cache"}),
    (ContextGPT, TOKENS, "mask_lost", {"causality"}),
    (Pair, PAIR, "mask_lost", {"causality"}),
    (Pair, EQUAL, "mask_lost", {"causality"}),
    (Pair, PAIR, "keys_of_decoder", {"causality"}),
    (Pair, EQUAL, "keys_of_decoder", {"causality"}),
    (Pair, PAIR, "padding_seen_by_encoder", {"right_padding", "batch"}),
    (Pair, PAIR, "padding_seen_by_decoder", {"right_padding", "batch"}),
]


CHECKED = ["backends", "causality", "right_padding", "batch", "cache", "attention_rows", "gradients"]


def failures(diagnosis: Diagnosis) -> list[str]:
    return [f"{one.check}: {one.whole_sentence}" for one in (*diagnosis.broken, *diagnosis.could_not_run)]


@pytest.mark.parametrize(("style", "inputs"), STYLES)
def test_correct_models_have_no_finding_and_every_check_runs(style: Callable[..., nn.Module], inputs: Any) -> None:
    diagnosis = xformer.diagnose(style(), inputs)
    assert failures(diagnosis) == []
    assert diagnosis.ok


@pytest.mark.parametrize(("style", "inputs", "fault", "checks"), FAULTS)
def test_every_check_names_the_layer_of_the_fault(
    style: Callable[..., nn.Module], inputs: Any, fault: str, checks: set[str]
) -> None:
    diagnosis = xformer.diagnose(style(fault), inputs, checks=CHECKED)
    assert {one.check for one in diagnosis.broken} == checks, failures(diagnosis)
    assert [one.place.layer for one in diagnosis.broken if one.place is not None] == [LAYER] * len(checks)
    assert diagnosis.could_not_run == ()


def test_attention_over_the_rows_of_a_batch_is_found() -> None:
    finding = found("batch", BatchSecond())
    assert finding.verdict == "broken", finding.sentence
    assert "over the rows of the batch" in finding.whole_sentence


def test_a_block_that_raises_out_of_context_is_not_the_output_head() -> None:
    model: Any = llama()
    model.model.layers[1].self_attn.register_forward_pre_hook(_mask_of_zeros, with_kwargs=True)
    finding = found("causality", model)
    assert finding.verdict == "broken"
    assert finding.place is not None
    assert (finding.place.layer, finding.place.cause) == (1, "mask")
    assert AnyModule.open(ContextGPT(), TOKENS).opened.head is None


def _mask_of_zeros(_: nn.Module, args: Any, more: Any) -> Any:
    n = more["hidden_states"].shape[1]
    return args, more | {"attention_mask": torch.zeros(1, 1, n, n)}


def test_the_verdict_is_kept_where_the_fault_cannot_be_located(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("no such module")

    monkeypatch.setattr("xformer.doctor.diagnose.localise", fail)
    diagnosis = xformer.diagnose(LectureGPT("mask_lost"), TOKENS, checks=["causality"])
    assert [one.place for one in diagnosis.broken] == [None]
    assert not diagnosis.ok


def test_findings_closest_to_the_cause_come_first() -> None:
    diagnosis = xformer.diagnose(LectureGPT("mask_lost"), TOKENS, checks=["finite", "gradients", "causality"])
    first, last = diagnosis.broken[0], replace(diagnosis.broken[0], place=None, check="backends")
    later = replace(first, place=FaultLocation("", "norm", LAYER + 1), check="cache")
    assert Diagnosis((last, later, first)).broken == (first, later, last)


def test_a_check_that_could_not_run_is_part_of_the_verdict() -> None:
    model = UnknownMask()
    diagnosis = xformer.diagnose(model, TOKENS, checks=["causality", "right_padding"])
    assert not diagnosis.broken
    assert not diagnosis.ok
    assert repr(diagnosis).startswith("0 of 1 checks are broken, 1 could not run\n  right_padding: ")
    assert "The meaning of the argument pad_mask is not known" in diagnosis.could_not_run[0].sentence


def test_padding_on_the_left_is_checked_as_a_caller_would_call() -> None:
    finding = found("left_padding", PaddedGPT())
    assert finding.verdict == "broken"
    assert "Positions count the padding, unless position_ids is given." in finding.sentence
    assert found("left_padding", WithoutPositions()).verdict == "not applicable"


def test_ignored_labels_are_those_of_the_model() -> None:
    assert found("accumulation", LectureGPT()).verdict == "holds"


def test_all_parameters_without_a_gradient_are_counted() -> None:
    model = LectureGPT("stream_detached")
    n = 2 + sum(len(list(block.parameters())) for block in list(model.blocks)[: LAYER + 1])
    assert found("gradients", model).sentence.startswith(f"{n} parameters get no gradient")


class Gated(nn.Module):
    """A gated network, optionally with a gate that it does not use, or beside experts that another input uses."""

    def __init__(self, *, is_gated: bool = True, n_experts: int = 0) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(n_experts))
        self.is_gated = is_gated

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu((self.gate if self.is_gated else self.up)(x)) * self.up(x))


class GatedBlock(LectureBlock):
    def __init__(self, **network: Any) -> None:
        super().__init__("")
        self.mlp = Gated(**network)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.mlp(x)


def test_a_gate_is_a_router_only_beside_experts() -> None:
    model = LectureGPT()
    model.blocks = nn.Sequential(*(GatedBlock() for _ in range(2)))
    assert (
        found("gradients", model).sentence
        == f"All {len(list(model.parameters()))} parameters of the layers get a gradient."
    )
    model.blocks = nn.Sequential(*(GatedBlock(is_gated=False) for _ in range(2)))
    assert found("gradients", model).sentence.startswith("4 parameters get no gradient: blocks.0.mlp.gate.weight")
    model.blocks = nn.Sequential(*(GatedBlock(is_gated=False, n_experts=2) for _ in range(2)))
    n = len(list(model.parameters())) - 2 * (2 + 2 * 2)  # the router and the experts are not looked at
    assert found("gradients", model).sentence == f"All {n} parameters of the layers get a gradient."


def test_gradients_are_not_checked_with_one_token() -> None:
    for n in (1, 3):
        verdict = xformer.diagnose(LectureGPT(), TOKENS[:, :n], checks=["gradients"]).findings[0].verdict
        assert verdict == ("holds" if n == 3 else "not applicable")


@pytest.mark.parametrize("name", ["k.bias", "key.bias", "k_proj.bias", "to_k.bias", "b_K", "q.bias", "k_norm.bias"])
def test_only_a_bias_of_keys_may_get_no_gradient(name: str) -> None:
    is_bias_of_keys = name not in ("q.bias", "k_norm.bias")
    assert _is_unused(f"a.0.{name}", []) == is_bias_of_keys


def test_no_check_exceeds_a_mask_of_fixed_size() -> None:
    longest = 0

    def measure(_: nn.Module, args: Any) -> None:
        nonlocal longest
        longest = max(longest, args[0].shape[1])

    model = ContextGPT()
    model.embed.register_forward_pre_hook(measure)
    xformer.diagnose(model, TOKENS)
    assert longest == TOKENS.shape[1]  # nothing declares more


def test_a_permutation_model_is_bidirectional() -> None:
    from transformers import XLNetConfig, XLNetLMHeadModel

    torch.manual_seed(0)
    model = XLNetLMHeadModel(XLNetConfig(vocab_size=53, d_model=24, n_layer=2, n_head=2, d_inner=32)).eval()
    finding = found("causality", model)
    assert finding.verdict == "not applicable", finding.sentence


def test_the_screen_says_that_a_check_could_not_run() -> None:
    from pages.bug_lab.your_model import DiagnosisJob, _headline
    from xformer.doctor.check import CHECKS, Finding

    findings = [Finding("holds", "It holds.", check=name) for name in CHECKS]
    job, model = DiagnosisJob("a model", (), findings), Any
    assert "No errors found" in _headline(job, Diagnosis(tuple(findings)), model)  # pyright: ignore[reportArgumentType]
    findings[3] = Finding("could not run", "The check could not run: KeyError: 'x'", check=findings[3].check)
    found = _headline(job, Diagnosis(tuple(findings)), model)  # pyright: ignore[reportArgumentType]
    assert found.startswith("**1 check could not run**")
