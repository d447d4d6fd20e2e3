"""A tiny Llama of the Transformers library, optionally with one fault."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama as family

from tests.doctor.plain_gpt import LAYER

VOCAB = 59
HERE = {"mask_lost_with_attention", "scale_of_kernel", "cache_starts_again", "head_not_tied"}
"""The faults planted here: those for which checks treat Transformers models specially."""


class Attention(family.LlamaAttention):
    """Llama's attention with the named fault."""

    fault: str = ""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> Any:
        fault, n = self.fault, hidden_states.shape[1]
        n_key = n + (0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx))
        lower, lowest = torch.ones(n, n_key).tril(n_key - n).bool(), torch.finfo(hidden_states.dtype).min
        causal = torch.zeros(1, 1, n, n_key, dtype=hidden_states.dtype).masked_fill(~lower, lowest)
        mask = causal if attention_mask is None else attention_mask
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=hidden_states.dtype).masked_fill(~mask, lowest)
        mask = mask.expand(-1, self.config.num_attention_heads, -1, -1).clone()
        if fault == "mask_lost_with_attention" and more.get("output_attentions"):
            mask = torch.zeros_like(mask)
        is_halved = fault == "scale_of_kernel" and self.config._attn_implementation != "eager"
        self.scaling = self.head_dim**-0.5 / (2 if is_halved else 1)
        return super().forward(hidden_states, position_embeddings, mask, past_key_values, **more)


def llama(fault: str = "") -> LlamaForCausalLM:
    """Return a Llama of three layers with 4 heads and 2 key/value heads, and a fault in layer `LAYER`."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    options: dict[str, Any] = {"attn_implementation": "eager", "initializer_range": 0.4}
    config = LlamaConfig(**sizes, tie_word_embeddings=True, **options)
    model: Any = LlamaForCausalLM(config).eval()
    layer: Any = model.model.layers[LAYER]
    if fault == "head_not_tied":
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.4)
    elif fault == "cache_starts_again":
        model.model.register_forward_pre_hook(_positions_from_0, with_kwargs=True)
    elif fault:
        layer.self_attn.__class__ = Attention
        layer.self_attn.fault = fault
    return model


def _positions_from_0(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    past = kwargs.get("past_key_values")
    if past is not None and past.get_seq_length():
        kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]
    return args, kwargs
