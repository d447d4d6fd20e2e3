"""Tiny models of many families with arbitrary weights, and the path of each one's attention output projection."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SIZES = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLACES = {"max_position_embeddings": 64}
IMAGE = {"image_size": 12, "patch_size": 4, **{name: n for name, n in SIZES.items() if name != "vocab_size"}}
PAIR = {
    "vocab_size": 97, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44,
}  # fmt: skip
GPT = {
    "vocab_size": 97,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, **SPECIAL, "num_key_value_heads": 2}
TEXT_SIZES = {**SIZES, **SPECIAL, **PLACES}


def tiny_model(class_name: str, sizes: dict[str, Any], attention: str = "eager") -> Any:
    """A model of a Transformers class in eval mode. Each call gives the same weights."""
    import transformers

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(transformers, class_name)
        model = kind(kind.config_class(**sizes, attn_implementation=attention)).eval()
    for name, weight in model.named_parameters():
        # Frozen sine tables keep their values, as they are recomputed on loading.
        if (weight.dim() > 1 or name.endswith("bias")) and weight.requires_grad:
            weight.data.normal_(0, 0.2)
    return model


@dataclass(frozen=True)
class Family:
    """The class and sizes of a tiny model of a family."""

    model: str
    sizes: dict[str, Any]
    projection: str
    """The output projection of the attention `ablated`."""
    ablated: str = "decoder.0.attn"
    """The path of the attention whose heads the tests ablate."""
    backend: str = "attention_function"

    def make(self) -> Any:
        return tiny_model(self.model, self.sizes)


LLAMA = "model.layers.0.self_attn.o_proj"
FAMILIES = {
    "GPT-2": Family("GPT2LMHeadModel", GPT, "transformer.h.0.attn.c_proj"),
    "GPT-NeoX": Family("GPTNeoXForCausalLM", TEXT_SIZES, "gpt_neox.layers.0.attention.dense"),
    "Llama": Family("LlamaForCausalLM", GROUPED, LLAMA),
    "Qwen3": Family("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}, LLAMA),
    "Gemma2": Family("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 4}, LLAMA),
    "Mistral": Family("MistralForCausalLM", {**GROUPED, "sliding_window": 4}, LLAMA),
    "Mixtral": Family("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}, LLAMA),
    "Granite": Family(
        "GraniteForCausalLM",
        {**GROUPED, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_bias": True, "mlp_bias": True}, LLAMA,
    ),
    "GPT-OSS": Family(
        "GptOssForCausalLM",
        {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}, LLAMA,
    ),
    "BERT": Family("BertForMaskedLM", TEXT_SIZES, "bert.encoder.layer.0.attention.output.dense", "encoder.0.attn"),
    "ALBERT": Family(
        "AlbertForMaskedLM", {**TEXT_SIZES, "num_hidden_layers": 3, "embedding_size": 10},
        "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.dense", "encoder.*.attn",
    ),
    "DistilBERT": Family(
        "DistilBertForMaskedLM", {"vocab_size": 97, "dim": 24, "hidden_dim": 44, "n_layers": 2, "n_heads": 6, **PLACES},
        "distilbert.transformer.layer.0.attention.out_lin", "encoder.0.attn",
    ),
    "T5": Family(
        "T5ForConditionalGeneration",
        {"vocab_size": 97, "d_model": 24, "d_kv": 4, "d_ff": 44, "num_layers": 2, "num_heads": 6, "decoder_start_token_id": 0},
        "decoder.block.0.layer.1.EncDecAttention.o", "decoder.0.cross_attn",
    ),
    "BART": Family(
        "BartForConditionalGeneration",
        {**PAIR, **SPECIAL, **PLACES, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
        "model.decoder.layers.0.encoder_attn.out_proj", "decoder.0.cross_attn",
    ),
    "ViT": Family("ViTForImageClassification", IMAGE, "vit.layers.0.attention.o_proj", "encoder.0.attn"),
    "Whisper": Family(
        "WhisperForConditionalGeneration",
        {**PAIR, **SPECIAL, "num_mel_bins": 8, "max_source_positions": 13, "max_target_positions": 32,
         "decoder_start_token_id": 1},
        "model.decoder.layers.0.self_attn.out_proj", "decoder.0.self_attn",
    ),
    "DeBERTa": Family(
        "DebertaV2ForMaskedLM", {**SIZES, **PLACES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "deberta.encoder.layer.0.attention.output.dense", "encoder.0.attn", "softmax",
    ),
    "BLOOM": Family(
        "BloomForCausalLM", {"vocab_size": 97, "hidden_size": 24, "n_layer": 2, "n_head": 6, **SPECIAL},
        "transformer.h.0.self_attention.dense", backend="softmax",
    ),
    "GPT-J": Family("GPTJForCausalLM", {**GPT, "rotary_dim": 4}, "transformer.h.0.attn.out_proj", backend="softmax"),
    "Falcon": Family(
        "FalconForCausalLM",
        {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "bos_token_id": 1,
         "eos_token_id": 2},
        "transformer.h.0.self_attention.dense", backend="softmax",
    ),
}  # fmt: skip


def cut_head(matrix: nn.Module, head: int, n_heads: int) -> None:
    """Zero the weights of one head in an attention output projection."""
    weight = matrix.get_parameter("weight").data
    heads: Tensor = weight if type(matrix).__name__ == "Conv1D" else weight.T  # [head · d_head, d_model]
    width = heads.shape[0] // n_heads
    heads[head * width : (head + 1) * width] = 0


def shown(model: Any, returned: Any) -> Tensor:
    """The part of a stock model's return value that xformer shows."""
    from xformer.adapters.huggingface_opening import OUTPUT_OF, example_inputs, output_kind

    return OUTPUT_OF[output_kind(model, returned, example_inputs(model, 0))](returned)


def returned_patterns(output: Any, stack: str) -> dict[str, Tensor]:
    """The attention weights that Transformers itself returns, by layer path. `stack` is the stack of a model with one."""
    paths = {
        "attentions": f"{stack}.{{}}.attn",
        "encoder_attentions": "encoder.{}.attn",
        "decoder_attentions": "decoder.{}.self_attn",
        "cross_attentions": "decoder.{}.cross_attn",
    }
    return {path.format(at): one for name, path in paths.items() for at, one in enumerate(output.get(name) or ())}
