"""Every planted fault is found by its check, in the right layer and head; correct models have no findings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doctor import llama as of_transformers
from tests.doctor.checking import decoder
from tests.doctor.llama import llama
from tests.doctor.plain_gpt import FAULTS, LAYER, OPTIONS, PlainGPT
from xformer.doctor.diagnose import Diagnosis, diagnose
from xformer.doctor.faults import BUGS
from xformer.layers.attention import Attention, Scores
from xformer.layers.masks import LayerMask

TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])


class ScaledByLength(Attention):
    """Attention with scores that depend on the number of keys."""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Scores:
        return super().score(q, k, v) * (math.log(k.shape[2] + 1) / math.log(16))


class WrongKernel(Attention):
    """Attention whose fast path scales the scores twice."""

    has_kernel = True

    def kernel(self, q: Tensor, k: Tensor, v: Tensor, mask: LayerMask, position_bias: Tensor | None) -> Tensor:
        return super().kernel(q / 2, k, v, mask, position_bias)


def own(fault: str = "", window: int = 5) -> nn.Module:
    """Return an xformer decoder, optionally with a fault in layer `LAYER`."""
    model = decoder(n_layers=3, n_kv_heads=2, positions="rotary", mask="sliding_window", window=window)
    if fault:
        model.get_submodule(f"decoder.blocks.{LAYER}.attn").__class__ = WrongKernel
    return model


MODELS: dict[str, Callable[..., nn.Module]] = {"plain": PlainGPT, "llama": llama, "own": own}
PLANTED = {"plain": {*FAULTS}, "llama": of_transformers.HERE, "own": {"scale_of_kernel"}}
CASES = [(model, fault) for model in MODELS for fault in FAULTS if fault in PLANTED[model]]
NOT_ASKED = {"special_tokens", "conversion", "cross_attention", "reference"}
"""Checks that need a tokenizer, an original, an encoder or a reference."""
RIGHT: list[tuple[str, dict[str, Any], set[str]]] = [
    ("plain", {"window": 5}, {"equations"}),
    ("llama", {}, {"equations", "window", "packing"}),  # it reads documents from positions only without a cache
    ("own", {"window": 5}, {"causality_with_attention", "position_shift", "loss", "accumulation", "tied_weights"}),
]
"""Models without a fault, and the checks that do not apply to each."""


class Tokenizer:
    """A tokenizer with a start token."""

    bos_token, bos_token_id, all_special_tokens = "<s>", 1, ("<s>",)

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        assert text == self.bos_token
        return {"input_ids": [self.bos_token_id]}


def diagnosed(model: str, fault: str, checks: list[str]) -> Diagnosis:
    """Diagnose a model with a fault; two of the faults also need special inputs or an original."""
    options = OPTIONS.get(fault, {})
    if fault == "first_token_twice":
        tokens = torch.cat([torch.ones(1, 2, dtype=torch.long), TOKENS], dim=1)
        return diagnose(MODELS[model](**options), tokens, Tokenizer(), checks)
    if fault == "rows_of_queries_moved":  # as a conversion between two RoPE conventions might
        converted = MODELS[model](**options)
        with torch.no_grad():
            rows = converted.get_parameter(f"blocks.{LAYER}.attention.query.weight")
            rows.copy_(rows.roll(1, dims=0))
        return diagnose(converted, TOKENS, checks=checks, original=MODELS[model](**options))
    return diagnose(MODELS[model](fault, **options), TOKENS, checks=checks)


@pytest.mark.parametrize(("model", "options", "not_applicable"), RIGHT)
def test_correct_models_pass_and_are_not_changed(model: str, options: dict[str, Any], not_applicable: set[str]) -> None:
    right = MODELS[model](**options).train()
    weights, state = {name: one.clone() for name, one in right.named_parameters()}, torch.random.get_rng_state()
    diagnosis = diagnose(right, TOKENS)
    assert diagnosis.ok, repr(diagnosis)
    table = diagnosis.table
    assert set(table[table["verdict"] != "holds"]["check"]) == not_applicable | NOT_ASKED
    assert "could not run" not in set(table["verdict"])
    assert right.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(weights[name], one) and one.grad is None for name, one in right.named_parameters())
    assert not any(module._forward_hooks for module in right.modules())


@pytest.mark.parametrize(("model", "fault"), CASES)
def test_each_fault_is_found_at_its_location(model: str, fault: str) -> None:
    check, where = FAULTS[fault]
    row = diagnosed(model, fault, [check]).table.iloc[0]
    assert row["verdict"] == "broken", row["sentence"]
    layer = where.get("layer", LAYER)
    assert layer is None or row["layer"] == layer
    assert "head" not in where or row["head"] == where["head"]
    assert "cell" not in where or where["cell"](row["query"], row["key"])
    assert row["remedy"]


def test_a_finding_is_shown_with_its_cell() -> None:
    shown = diagnose(PlainGPT("one_too_far"), TOKENS, checks=["causality"])._repr_html_()
    assert "Layer 1, head 2: query" in shown
    assert shown.count("outline:3px solid") == 1


def test_a_nondeterministic_model_is_not_checked_further() -> None:
    checks = ["determinism", "causality", "position_shift"]
    table = diagnose(PlainGPT("dropout_always"), TOKENS, checks=checks).table.set_index("check")
    wanted = {"determinism": "broken", "causality": "could not run", "position_shift": "could not run"}
    assert table["verdict"].to_dict() == wanted


def test_a_fault_in_the_decoder_of_an_encoder_decoder_is_located() -> None:
    given = {"tokens": [[5, 14, 12, 1, 7, 20, 3]], "decoder_input_ids": torch.tensor([[2, 9, 4, 17, 8, 11]])}
    right = decoder(architecture="encoder-decoder", causal=True)
    scaled = copy.deepcopy(right)
    scaled.get_submodule(f"decoder.blocks.{LAYER}.cross_attn").__class__ = ScaledByLength
    for broken, check, where in (
        (BUGS["causal_off_by_one"].broken(right), "causality", "decoder.0.self_attn"),
        (scaled, "right_padding", f"decoder.{LAYER}.cross_attn"),
    ):
        assert diagnose(right, given, checks=[check]).findings[0].verdict == "holds"
        (finding,) = diagnose(broken, given, checks=[check]).findings
        assert finding.verdict == "broken", finding.sentence
        assert finding.place is not None
        assert finding.place.name.startswith(where)
