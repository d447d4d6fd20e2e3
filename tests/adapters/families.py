"""Tiny models of many families with arbitrary weights, and where each keeps the matrix that maps its heads to the stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SIZES = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {
    "vocab_size": 97, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How a tiny model of a family is made."""

    model: str
    config: str
    sizes: dict[str, Any]
    back: Callable[[Any], nn.Module]
    """The module whose matrix maps the heads of the first attention to be silenced back to the stream."""
    backend: str = "attention_function"
    silenced: str = "decoder.0.attn"

    def make(self) -> Any:
        import transformers

        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = getattr(transformers, self.config)(**self.sizes)
            config._attn_implementation = "eager"
            model = getattr(transformers, self.model)(config).eval()
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data.normal_(0, 0.2)
        return model


def _llama(model: Any) -> nn.Module:
    return model.model.layers[0].self_attn.o_proj


GROUPED = {**SIZES, **SPECIAL, "num_key_value_heads": 2}
FAMILIES = {
    "GPT-2": Family(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 97, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
        lambda model: model.transformer.h[0].attn.c_proj,
    ),
    "GPT-NeoX": Family(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, **SPECIAL, "max_position_embeddings": 64},
        lambda model: model.gpt_neox.layers[0].attention.dense,
    ),
    "OPT": Family(
        "OPTForCausalLM", "OPTConfig",
        {"vocab_size": 97, "hidden_size": 24, "ffn_dim": 44, "num_hidden_layers": 2, "num_attention_heads": 6,
         "word_embed_proj_dim": 24, "max_position_embeddings": 64, **SPECIAL},
        lambda model: model.model.decoder.layers[0].self_attn.out_proj,
    ),
    "Llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, _llama),
    "Qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, _llama),
    "Gemma2": Family("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8, "sliding_window": 4}, _llama),
    "Mistral": Family("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4}, _llama),
    "Mixtral": Family("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}, _llama),
    "Granite": Family(
        "GraniteForCausalLM", "GraniteConfig", {**GROUPED, "residual_multiplier": 0.22, "logits_scaling": 8.0}, _llama
    ),
    "GPT-OSS": Family(
        "GptOssForCausalLM", "GptOssConfig",
        {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}, _llama,
    ),
    "BERT": Family(
        "BertForMaskedLM", "BertConfig", {**SIZES, **SPECIAL, "max_position_embeddings": 64},
        lambda model: model.bert.encoder.layer[0].attention.output.dense, silenced="encoder.0.attn",
    ),
    "ALBERT": Family(
        "AlbertForMaskedLM", "AlbertConfig",
        {**SIZES, **SPECIAL, "num_hidden_layers": 3, "embedding_size": 10, "max_position_embeddings": 64},
        lambda model: model.albert.encoder.albert_layer_groups[0].albert_layers[0].attention.dense,
        silenced="encoder.*.attn",
    ),
    "RoBERTa": Family(
        "RobertaForMaskedLM", "RobertaConfig", {**SIZES, **SPECIAL, "max_position_embeddings": 64},
        lambda model: model.roberta.encoder.layer[0].attention.output.dense, silenced="encoder.0.attn",
    ),
    "DistilBERT": Family(
        "DistilBertForMaskedLM", "DistilBertConfig",
        {"vocab_size": 97, "dim": 24, "hidden_dim": 44, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 64},
        lambda model: model.distilbert.transformer.layer[0].attention.out_lin, silenced="encoder.0.attn",
    ),
    "T5": Family(
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": 97, "d_model": 24, "d_kv": 4, "d_ff": 44, "num_layers": 2, "num_heads": 6, "decoder_start_token_id": 0},
        lambda model: model.decoder.block[0].layer[1].EncDecAttention.o, silenced="decoder.0.cross_attn",
    ),
    "BART": Family(
        "BartForConditionalGeneration", "BartConfig",
        {**PAIR, **SPECIAL, "max_position_embeddings": 64, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
        lambda model: model.model.decoder.layers[0].encoder_attn.out_proj, silenced="decoder.0.cross_attn",
    ),
    "Marian": Family(
        "MarianMTModel", "MarianConfig",
        {**PAIR, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
         "forced_eos_token_id": 2},
        lambda model: model.model.encoder.layers[0].self_attn.out_proj, silenced="encoder.0.attn",
    ),
    "ViT": Family(
        "ViTForImageClassification", "ViTConfig",
        {"hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6, "image_size": 12,
         "patch_size": 4},
        lambda model: model.vit.layers[0].attention.o_proj, silenced="encoder.0.attn",
    ),
    "Whisper": Family(
        "WhisperForConditionalGeneration", "WhisperConfig",
        {**PAIR, **SPECIAL, "num_mel_bins": 8, "max_source_positions": 13, "max_target_positions": 32,
         "decoder_start_token_id": 1},
        lambda model: model.model.decoder.layers[0].self_attn.out_proj, silenced="decoder.0.self_attn",
    ),
    "DeBERTa": Family(
        "DebertaV2ForMaskedLM", "DebertaV2Config",
        {**SIZES, "max_position_embeddings": 64, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        lambda model: model.deberta.encoder.layer[0].attention.output.dense, backend="softmax", silenced="encoder.0.attn",
    ),
    "BLOOM": Family(
        "BloomForCausalLM", "BloomConfig", {"vocab_size": 97, "hidden_size": 24, "n_layer": 2, "n_head": 6, **SPECIAL},
        lambda model: model.transformer.h[0].self_attention.dense, backend="softmax",
    ),
    "GPT-J": Family(
        "GPTJForCausalLM", "GPTJConfig",
        {"vocab_size": 97, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 64, "rotary_dim": 4, "bos_token_id": 1,
         "eos_token_id": 2},
        lambda model: model.transformer.h[0].attn.out_proj, backend="softmax",
    ),
    "Falcon": Family(
        "FalconForCausalLM", "FalconConfig",
        {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "bos_token_id": 1,
         "eos_token_id": 2},
        lambda model: model.transformer.h[0].self_attention.dense, backend="softmax",
    ),
}  # fmt: skip


def cut_head(matrix: nn.Module, head: int, n_heads: int) -> None:
    """Take what one head says out of the matrix that maps the heads back to the stream."""
    weight = matrix.get_parameter("weight").data
    heads: Tensor = weight if type(matrix).__name__ == "Conv1D" else weight.T  # [head · d_head, d_model]
    width = heads.shape[0] // n_heads
    heads[head * width : (head + 1) * width] = 0


def shown(model: Any, returned: Any) -> Tensor:
    """The output that is shown of what a stock model returned."""
    from xformer.adapters.huggingface_opening import OUTPUT_OF, example_inputs, output_kind

    return OUTPUT_OF[output_kind(model, returned, example_inputs(model, 0))](returned)
