"""Gradients with respect to activations agree with finite differences, and computing them does not change the model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer import ModelConfig, Transformer, edits
from xformer.adapters import ModelAdapter, huggingface
from xformer.adapters.adapter import gradients
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis import minimal_pairs
from xformer.errors import EditError, InputError
from xformer.reading import adapter_of
from xformer.tasks.task import Example

SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "n_heads": 3, "d_ff": 20, "max_len": 8, "activation": "gelu"}


def own(architecture: str = "decoder", dtype: torch.dtype = torch.float32) -> tuple[ModelAdapter, Example]:
    torch.manual_seed(0)
    n_layers = 1 if architecture == "encoder-decoder" else 2
    model = Transformer(ModelConfig(architecture=architecture, n_layers=n_layers, **SIZES)).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)
    adapter = adapter_of(model.to(dtype))
    return adapter, adapter.to_example("1 5 2 8 > 3 4 9" if architecture == "encoder-decoder" else "1 5 2 8")


def external(family: str, dtype: torch.dtype = torch.float32) -> tuple[ModelAdapter, Example]:
    adapter = HuggingFaceModel.open(FAMILIES[family].make().to(dtype), tokenizer(), family)
    return adapter, adapter.to_example(
        "the cat sat >> a bird" if adapter.shape.is_encoder_decoder else "the cat sat on the mat"
    )


def measure(logits: Tensor) -> Tensor:
    return logits[0, -1, 3] - logits[0, 1, 2]


def assert_slopes(adapter: ModelAdapter, example: Example, names: list[str], step: float, within: float) -> None:
    """Compare the gradient at each activation with the slope of the measure along an arbitrary direction.

    The slope is a four-point difference. Its error is of order step⁴, plus the rounding of a run divided by step.
    """
    found = gradients(adapter, example, measure, names)
    assert found.measure == pytest.approx(float(measure(adapter.record(example).logits)), rel=within)
    draw = torch.Generator().manual_seed(0)
    for name, gradient in found.items():
        value = found.activations[name]
        assert gradient.shape == value.shape
        direction = torch.randn(value.shape, generator=draw, dtype=value.dtype)
        direction = torch.where(value.isfinite(), direction, 0) * value[value.isfinite()].std()

        def at(steps: int, name: str = name, value: Tensor = value, direction: Tensor = direction) -> float:
            moved = edits.replace(name, value + steps * step * direction)
            return float(measure(adapter.record(example, edits=[moved], keep=("logits",)).logits))

        slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=within, abs=within), name


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_gradients_of_our_own_models_match_finite_differences(architecture: str) -> None:
    adapter, example = own(architecture, torch.float64)
    names = ["*.z", "*.q", "*.k", "*.v", "*.pattern", "*.scores", "*.out", "*.post", "*.resid_*", "*embed"]
    assert_slopes(adapter, example, names, step=1e-3, within=1e-6)


@pytest.mark.parametrize("family", ["ALBERT", "BART", "BLOOM"])
def test_gradients_of_external_models_match_finite_differences(family: str) -> None:
    adapter, example = external(family, torch.float64)
    names = ["*.0.*.pattern", "*.0.*.out", "*.0.resid_p*"]  # the output of layer 0 flows through all later layers
    if adapter.opened.backend == "attention_function":  # type: ignore[attr-defined]
        names += [f"*.0.*.{name}" for name in "qkvz"]
    # external models compute their softmax in single precision
    assert_slopes(adapter, example, names, step=1e-2, within=1e-4)


def test_edits_are_applied_before_gradients_and_block_them() -> None:
    adapter, example = own()
    ablated = edits.ablate_head("decoder.0.attn", 1)
    found = gradients(adapter, example, measure, ["decoder.0.attn.z", "decoder.0.attn.pattern"], [ablated])
    assert not found.activations["decoder.0.attn.z"][:, 1].any()
    assert found["decoder.0.attn.z"][:, 1].any()  # an ablated z of 0 still has a gradient
    assert not found["decoder.0.attn.pattern"][:, 1].any()
    assert found["decoder.0.attn.pattern"][:, 0].any()


def test_threads_get_the_same_gradients_and_leave_the_model_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "LARGE_BYTES", 0)  # activations are recomputed on demand
    adapter, example = external("Llama")
    module = adapter.opened.module  # type: ignore[attr-defined]
    flags = [weight.requires_grad for weight in module.parameters()]
    alone = gradients(adapter, example, measure, ["*.z"])
    plain = adapter.record(example).logits

    def work(index: int) -> list[tuple[Tensor, Tensor]]:
        if index % 2:
            return [(adapter.record(example).logits, plain)]
        mine = gradients(adapter, example, measure, ["*.z"])
        return [(mine[name], alone[name]) for name in alone]

    with ThreadPoolExecutor(4) as pool:
        results = [pair for pairs in pool.map(work, range(12)) for pair in pairs]
    for got, wanted in results:
        torch.testing.assert_close(got, wanted)
        assert not got.requires_grad
    assert [weight.requires_grad for weight in module.parameters()] == flags
    assert all(weight.grad is None for weight in module.parameters())


def test_a_frozen_model_has_the_same_gradients_and_a_trace_keeps_no_graph() -> None:
    adapter, example = own()
    assert not any(value.requires_grad for value in adapter.record(example).activations.values())
    wanted = gradients(adapter, example, measure, ["*.z"])
    adapter.model.requires_grad_(False)  # type: ignore[attr-defined]
    for name, gradient in gradients(adapter, example, measure, ["*.z"]).items():
        torch.testing.assert_close(gradient, wanted[name])
    assert not any(weight.requires_grad for weight in adapter.model.parameters())  # type: ignore[attr-defined]


def test_activations_and_measures_without_a_gradient_are_rejected() -> None:
    adapter, example = own()
    with pytest.raises(EditError, match="No activation of this run matches"):
        gradients(adapter, example, measure, ["decoder.7.attn.z"])
    with pytest.raises(EditError, match="has a gradient; use a name like"):
        gradients(adapter, example, measure, ["decoder.0.attn.mask"])
    found = gradients(adapter, example, minimal_pairs.Logit(0, 3), ["decoder.1.resid_post"])["decoder.1.resid_post"]
    assert found[0, 0].any()
    assert not found[0, 1:].any()  # it does not reach the measure
    for wrong in (lambda logits: logits[0, -1], lambda logits: logits[0, 0, 0].detach(), lambda logits: 7.0):
        with pytest.raises(
            InputError, match=r"A measure must return one number.*got a (Tensor of shape \[.*\]|float)\.$"
        ):
            gradients(adapter, example, wrong, ["*.z"])


def test_measures_agree_with_the_reading() -> None:
    adapter, example = external("Llama")
    from xformer.reading import Reading

    reading = Reading(adapter, example, adapter.record(example))
    assert float(minimal_pairs.Loss(example)(reading.logits)) == pytest.approx(reading.loss)
    at = reading.logits[0, -1]
    assert float(minimal_pairs.Logit(-1, 5)(reading.logits)) == float(at[5])
    assert float(minimal_pairs.Logit(-1, 5, 8)(reading.logits)) == float(at[5] - at[8])
    with pytest.raises(InputError, match="There are logits at 6 positions, got position 6"):
        minimal_pairs.Logit(6, 5, 8)(reading.logits)
    example = own()[1]
    with pytest.raises(InputError, match="there is no loss; measure a logit"):
        minimal_pairs.Loss(example)
