"""Models in other forms: wrapped, compiled, with adapters, in other precisions, without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_attachment import Written
from tests.adapters.test_huggingface import tokenizer
from xformer.errors import InputError, UnavailableError

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


def with_virtual_tokens(kind: str, name: str = "Llama", task: str = "CAUSAL_LM") -> Any:
    """A family's model with three virtual tokens with arbitrary vectors."""
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: its models were NOT tested")
    torch.manual_seed(0)
    options = {"encoder_hidden_size": 8} if kind == "PromptEncoderConfig" else {}
    config = getattr(peft, kind)(num_virtual_tokens=3, task_type=task, **options)
    model = peft.get_peft_model(FAMILIES[name].make(), config).eval()
    for path, weight in model.named_parameters():
        if "prompt_encoder" in path:
            weight.data.normal_()
    return model


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig"])
def test_outputs_stand_at_the_positions_of_the_stream_after_virtual_tokens(kind: str) -> None:
    model, ids = with_virtual_tokens(kind), torch.tensor([[5, 9, 14, 3, 22, 8]])
    for inputs in (ids, {"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        reading = xformer.read(model, inputs)
        assert reading.tokens == ("added 1", "added 2", "added 3", "5", "9", "14", "3", "22", "8")
        assert reading.target_positions == (2, 3, 4, 5, 6, 7)  # the last virtual token predicts the first token
        with torch.no_grad():
            own = model(input_ids=ids, labels=ids)
        assert torch.allclose(reading.logits, own.logits, rtol=0, atol=1e-5)
        assert abs(reading.loss - float(own.loss)) < 1e-5
    assert reading.adapter.shape.is_causal
    lens = xformer.analysis.lens(reading)
    last = lens[lens["depth"] == lens["depth"].max()]
    assert last["position"].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert last["answer_probability"].tolist()[:6] == pytest.approx(reading.probability_of_answer, abs=1e-5)
    cells = xformer.analysis.attention(reading, layer=0, head=0)
    assert cells["key"].tolist()[:4] == ["0 · added 1", "1 · added 2", "2 · added 3", "3 · 5"]
    named = xformer.read(model, {"input_ids": ids}, tokens=list("abcdef"))
    assert named.tokens == ("added 1", "added 2", "added 3", *"abcdef")
    steps = [step.token for step in reading.adapter.steps(reading.example, 2)]
    with torch.no_grad():
        first = int(model(input_ids=ids).logits[0, -1].argmax())
        second = int(model(input_ids=torch.cat([ids, torch.tensor([[first]])], dim=1)).logits[0, -1].argmax())
    assert steps == [first, second]


def test_a_prefix_adds_keys_and_leaves_a_model_causal() -> None:
    model, ids = with_virtual_tokens("PrefixTuningConfig"), torch.tensor([[5, 9, 14, 3, 22, 8]])
    reading = xformer.read(model, {"input_ids": ids})
    assert reading.attention[0].path == "decoder.0.attn"
    assert reading.output == "next_token"
    with torch.no_grad():
        assert abs(reading.loss - float(model(input_ids=ids, labels=ids).loss)) < 1e-5
    cells = xformer.analysis.attention(reading, layer=0, head=0)
    assert cells["key"].tolist()[:5] == ["0 · earlier 1", "1 · earlier 2", "2 · earlier 3", "3 · 5", "4 · 9"]
    scores = xformer.analysis.head_scores(reading)
    own = reading["decoder.0.attn.pattern"][0, 0, :, 3:]  # [query, key]
    assert scores["diagonal"][0] == pytest.approx(float(own.diagonal().mean()), abs=1e-6)
    assert scores["previous"][0] == pytest.approx(float(own.diagonal(-1).mean()), abs=1e-6)
    with pytest.raises(UnavailableError, match="Rollout needs"):
        xformer.analysis.rollout(reading)


@pytest.mark.parametrize("name", ["BERT", "T5"])
def test_virtual_tokens_of_an_encoder_are_labelled(name: str) -> None:
    task = {"BERT": "FEATURE_EXTRACTION", "T5": "SEQ_2_SEQ_LM"}[name]
    model, ids = with_virtual_tokens("PromptTuningConfig", name, task), torch.tensor([[5, 9, 14]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids + 3} if name == "T5" else {})
    reading = xformer.read(model, inputs)
    assert reading.tokens_of("encoder") == ("added 1", "added 2", "added 3", "5", "9", "14")
    with torch.no_grad():
        assert torch.allclose(reading.logits, model(**inputs).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("where", ["memory", "disk", "both"])
def test_an_offloaded_model_is_read_and_analysed_like_the_model_itself(where: str, tmp_path: Path) -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model, ids = llama(), torch.tensor([[5, 6, 7, 8]])
    wanted = xformer.read(llama(), ids)
    if where == "memory":
        model = accelerate.cpu_offload(model)
    elif where == "disk":
        model = accelerate.disk_offload(model, str(tmp_path))
    else:
        places = {"model": "cpu", "model.layers.1": "disk", "lm_head": "disk", "model.norm": "disk"}
        places = {**{f"model.{name}": "cpu" for name in ("embed_tokens", "layers.0", "rotary_emb")}, **places}
        del places["model"]
        model = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path))
    reading = xformer.read(model, ids)
    assert torch.equal(reading.logits, wanted.logits)
    for name, options in {
        "lens": {}, "attribution": {"position": 2}, "head_effects": {}, "neighbours": {"token": 5},
        "promotion": {"layer": 1, "position": 2}, "score_attribution": {"layer": 1, "head": 0, "query": 3, "key": 1},
    }.items():  # fmt: skip
        found, table = (getattr(xformer.analysis, name)(run, **options) for run in (reading, wanted))
        pd.testing.assert_frame_equal(found, table, atol=1e-5)
    assert {weight.device.type for weight in model.model.layers[1].parameters()} == {"meta"}


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec:FutureWarning")  # from torch.export itself
def test_an_exported_program_is_refused_by_name() -> None:
    model, ids = Written().eval(), torch.tensor([[5, 6, 7, 8]])
    program: Any = torch.export.export(model, (ids,))
    for exported in (program, program.module(), torch.export.unflatten(program)):
        with pytest.raises(UnavailableError, match="read the module that it was exported from"):
            xformer.read(exported, ids)
