"""Models in other forms: wrapped, compiled, with adapters, in other precisions, without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # from PEFT's use of Transformers
WORDS = "the cat sat on the mat"


def llama() -> Any:
    return FAMILIES["Llama"].make()


def with_adapters() -> Any:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: its models were NOT tested")
    return peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))


def never(graph: Any, inputs: Any) -> Any:
    raise AssertionError("our hooks would be compiled")


def compiled_in_place() -> Any:
    model = llama()
    model.compile(backend=never)
    return model


WRAPPED: dict[str, Callable[[], Any]] = {
    "LoRA": with_adapters,
    "torch.compile": lambda: torch.compile(llama(), backend=never),
    "compiled in place": compiled_in_place,
    "DataParallel": lambda: nn.DataParallel(llama()),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_read_and_diagnosed_like_the_model_inside(name: str) -> None:
    model = WRAPPED[name]()
    reading = xformer.read(model, WORDS, tokenizer=tokenizer())
    inside = {"torch.compile": llama, "compiled in place": llama, "DataParallel": llama}.get(name, lambda: model)()
    with torch.no_grad():
        assert torch.allclose(reading.logits, inside(input_ids=reading.trace.tokens).logits, rtol=0, atol=1e-5)
    assert reading["decoder.1.attn.pattern"].shape == (1, 6, 6, 6)
    table = xformer.diagnose(model, WORDS, tokenizer(), ["causality"]).table
    assert table["verdict"].tolist() == ["holds"]


def test_virtual_tokens_are_part_of_the_model() -> None:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: its models were NOT tested")
    torch.manual_seed(0)
    model = peft.get_peft_model(llama(), peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")).eval()
    reading = xformer.read(model, WORDS, tokenizer=tokenizer())
    with torch.no_grad():
        assert torch.allclose(reading.logits, model(input_ids=reading.trace.tokens).logits, rtol=0, atol=1e-5)


def test_a_float64_model_that_computes_partly_in_float32_passes_all_checks() -> None:
    checks = ["causality", "backends", "right_padding", "batch", "packing", "position_shift", "rotary"]
    table = xformer.diagnose(llama().double(), WORDS, tokenizer(), checks).table
    assert set(table["verdict"]) <= {"holds", "not applicable"}, table[["check", "sentence"]]


def test_gradients_are_checked_within_inference_mode() -> None:
    model = llama()
    with torch.inference_mode():
        table = xformer.diagnose(model, WORDS, tokenizer(), ["gradients"]).table
    assert table["verdict"].tolist() == ["holds"]


def test_a_model_on_the_meta_device_is_rejected() -> None:
    with torch.device("meta"):
        model = type(llama())(llama().config)
    for use in (xformer.read, xformer.diagnose):
        with pytest.raises(InputError, match="LlamaForCausalLM has no weights"):
            use(model, WORDS, tokenizer=tokenizer())
