"""Tiny readings of every kind: own models, models of Transformers by task and input, adapters, and other modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES, GPT, GROUPED, IMAGE, SPECIAL, tiny_model
from tests.adapters.test_any_module import Hidden
from tests.adapters.test_attachment import Written
from tests.adapters.zoo import DUAL, SOUND, TEXT_SIZES
from tests.training.tiny import random_model
from xformer.reading import Reading

T5 = FAMILIES["T5"].sizes


def ids(n_batch: int, n: int = 6, least: int = 3, most: int = 9) -> Tensor:
    """Token ids [batch, pos]; tokens repeat, and rows differ."""
    return torch.randint(least, most, (n_batch, n), generator=torch.Generator().manual_seed(n_batch))


def numbers(*shape: int) -> Tensor:
    """Arbitrary numbers of a shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _hf(name: str, sizes: dict[str, Any], inputs: Callable[[int], Any] = ids) -> Callable[[int], Reading]:
    model = cache(lambda: tiny_model(name, sizes))
    return lambda n: xformer.read(model(), inputs(n))


class Named(nn.Module):
    """A hand-written model that returns its logits by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Written()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(x)}


class Two(nn.Module):
    """Queries from one stream, keys from another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return x + self.attention(x, memory, memory)[0]


def _module(make: Callable[[], nn.Module], inputs: Callable[[int], Any]) -> Callable[[int], Reading]:
    @cache
    def module() -> nn.Module:
        torch.manual_seed(0)
        return make().eval()

    return lambda n: xformer.read(module(), inputs(n))


def _peft(kind: str, **options: Any) -> Callable[[int], Reading]:
    @cache
    def model() -> nn.Module:
        import peft

        torch.manual_seed(0)
        adapter = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
        return peft.get_peft_model(FAMILIES["Llama"].make(), adapter).eval()

    return lambda n: xformer.read(model(), ids(n))


def _rows(*texts: str) -> Callable[[int], Any]:
    return lambda n: texts[0] if n == 1 else [*texts, *texts][:n]


def _shipped(name: str, *texts: str) -> Callable[[int], Reading]:
    return lambda n: xformer.read(f"checkpoints/{name}", _rows(*texts)(n))


def _own(architecture: str, **options: Any) -> Callable[[int], Reading]:
    def inputs(n: int) -> Any:
        if architecture == "encoder-decoder":
            pairs = [(ids(1, 5).tolist()[0], ids(1, 4 + at).tolist()[0]) for at in range(n)]
            return pairs[0] if n == 1 else pairs
        return ids(n)

    model = random_model(architecture, **options)
    return lambda n: xformer.read(model, inputs(n))


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 20, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def padded(n: int) -> dict[str, Any]:
    padding = torch.zeros(n, 6, dtype=torch.bool)
    padding[-1, 4:] = True
    return {"src": numbers(n, 6, 16), "src_key_padding_mask": padding}


READINGS: dict[str, Callable[[int], Reading]] = {
    "own encoder": _own("encoder", positions="learned"),
    "own decoder": _own("decoder", positions="rotary", norm="post"),
    "own pair": _own("encoder-decoder"),
    "task": _shipped("reverse-small", "3 7 12 9", "1 2 3"),
    "task of a decoder": _shipped("reverse-decoder", "3 7 12 9", "1 2 3"),
    "task of a pair": _shipped("reverse-seq2seq", "3 7 12 9", "1 2 3"),
    "digits": _shipped("digits", "test 3", "test 4"),
    "text": _shipped("characters", "import os", "def f"),
    "mirror": _shipped("reverse-mirror", "3 7 12 9", "1 2 3"),
    "GPT-2": _hf("GPT2LMHeadModel", {**GPT, "pad_token_id": 0}),
    "Llama padded": _hf("LlamaForCausalLM", GROUPED,
                        lambda n: {"input_ids": ids(n), "attention_mask": torch.ones(n, 6, dtype=torch.long).triu(-1)}),
    "Mixtral": _hf("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "Llama classifier": _hf("LlamaForSequenceClassification", {**GROUPED, "num_labels": 3}),
    "BERT masked": _hf("BertForMaskedLM", TEXT_SIZES),
    "BERT headless": _hf("BertModel", TEXT_SIZES),
    "BERT classifier": _hf("BertForSequenceClassification", {**TEXT_SIZES, "num_labels": 3}),
    "BERT tokens": _hf("BertForTokenClassification", {**TEXT_SIZES, "num_labels": 3}),
    "BERT span": _hf("BertForQuestionAnswering", TEXT_SIZES),
    "DeBERTa": _hf("DebertaV2ForMaskedLM", FAMILIES["DeBERTa"].sizes),
    "BLOOM": _hf("BloomForCausalLM", FAMILIES["BLOOM"].sizes),
    "T5": _hf("T5ForConditionalGeneration", {**T5, **SPECIAL},
              lambda n: {"input_ids": ids(n), "decoder_input_ids": ids(n, 4)}),
    "T5 encoder": _hf("T5EncoderModel", {**T5, **SPECIAL}),
    "ViT": _hf("ViTForImageClassification", {**IMAGE, "num_labels": 3}, lambda n: numbers(n, 3, 12, 12)),
    "CLIP": _hf("CLIPModel", {**DUAL, "projection_dim": 10},
                lambda n: {"input_ids": ids(n), "pixel_values": numbers(n, 3, 12, 12)}),
    "CLIP vision": _hf("CLIPVisionModel", IMAGE, lambda n: numbers(n, 3, 12, 12)),
    "Whisper": _hf("WhisperForConditionalGeneration", FAMILIES["Whisper"].sizes,
                   lambda n: {"input_features": numbers(n, 8, 26), "decoder_input_ids": ids(n, 4)}),
    "Wav2Vec2": _hf("Wav2Vec2ForCTC", SOUND, lambda n: {"input_values": numbers(n, 400)}),
    "LoRA": _peft("LoraConfig", r=2, target_modules=["q_proj"], init_lora_weights=False),
    "soft prompt": _peft("PromptTuningConfig", num_virtual_tokens=3),
    "hand-written": _module(Written, ids),
    "dict output": _module(Named, ids),
    "two streams": _module(Two, lambda n: (numbers(n, 4, 16), numbers(n, 6, 16))),
    "returned weights": _module(Hidden, lambda n: {"ids": ids(n)}),
    "nn encoder": _module(encoder, lambda n: numbers(n, 6, 16)),
    "nn encoder padded": _module(encoder, padded),
    "nn layer": _module(lambda: nn.TransformerEncoderLayer(16, 2, 20, batch_first=True), lambda n: numbers(n, 6, 16)),
    "nn attention": _module(lambda: nn.MultiheadAttention(16, 2, batch_first=True), lambda n: (numbers(n, 6, 16),) * 3),
    "nn.Transformer": _module(lambda: nn.Transformer(16, 2, 1, 1, 20, batch_first=True),
                              lambda n: (numbers(n, 6, 16), numbers(n, 4, 16))),
}  # fmt: skip
