"""A tiny Llama of the Transformers library, into which one mistake can be put."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as family

LAYER, HEAD = 1, 2
VOCAB = 59


class Attention(family.LlamaAttention):
    """Llama's attention with a mistake named by `fault`."""

    fault: str = ""
    window: int | None = None
    cos0: Any = None
    sin0: Any = None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> Any:
        fault, n = self.fault, hidden_states.shape[1]
        if fault == "mean_of_batch":
            hidden_states = hidden_states - 0.1 * hidden_states.mean(dim=0, keepdim=True)
        q, k, v = (
            layer(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )  # [batch, head, pos, d_head]
        cos, sin = position_embeddings
        if fault == "angles_in_half_precision" and q.dtype == torch.bfloat16:
            rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
            angles = more["position_ids"][..., None].to(q.dtype) * rates.to(q.dtype)
            cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        if fault == "scaling_ignored":
            angles = more["position_ids"][..., None] * 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
            cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        if fault == "pairing":
            half = cos.shape[-1] // 2
            cos, sin = (one[..., :half].repeat_interleave(2, dim=-1) for one in (cos, sin))
        q_turned, k_turned = family.apply_rotary_pos_emb(q, k, cos, sin)
        if fault == "keys_counted_from_0":
            _, k_turned = family.apply_rotary_pos_emb(
                q, k, cos[:, :1] * 0 + self.cos0[:, :n], sin * 0 + self.sin0[:, :n]
            )
        q, k = q_turned, k_turned
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        n_key = k.shape[2]
        backend = str(self.config._attn_implementation)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(backend, family.eager_attention_forward)
        scaling, mask = self.scaling, attention_mask
        lower = torch.ones(n, n_key).tril(n_key - n).bool()
        if mask is None:
            mask = torch.zeros(1, 1, n, n_key).masked_fill(~lower, torch.finfo(q.dtype).min).to(q.dtype)
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)
        mask = mask.expand(-1, self.config.num_attention_heads, -1, -1).clone()
        if fault == "one_too_far":
            mask[:, HEAD] = mask[:, HEAD].masked_fill(torch.eye(n_key)[-n:].roll(1, dims=1).bool() & ~lower, 0.0)
        if fault == "mask_lost_with_attention" and more.get("output_attentions"):
            mask = torch.zeros_like(mask)
        if fault == "padding_lost_at_33" and n_key % 32 == 1:
            mask = torch.zeros_like(mask).masked_fill(~lower, torch.finfo(q.dtype).min)
        if fault == "segments_lost":
            mask = torch.zeros_like(mask).masked_fill(~lower, torch.finfo(q.dtype).min)
        if fault == "window_one_more" and self.window:
            seen = (torch.arange(n_key) > torch.arange(n)[:, None] + n_key - n - self.window - 1) & lower
            mask = torch.zeros_like(mask).masked_fill(~seen, torch.finfo(q.dtype).min)
        if fault == "scale_by_length":
            scaling *= math.log(n_key + 1) / math.log(16)
        if fault == "scale_of_kernel" and backend != "eager":
            scaling /= 2
        if fault == "rows_of_nothing":
            mask = mask.masked_fill(mask < -1e9, float("-inf"))
        if fault == "weak_mask":
            mask[:, HEAD] = mask[:, HEAD].clamp(min=-4.0)
        if fault == "groups_in_turn":
            k, v = (one.repeat(1, self.num_key_value_groups, 1, 1) for one in (k, v))
        elif fault in ("mask_too_late", "dropout_always"):
            k, v = (one.repeat_interleave(self.num_key_value_groups, dim=1) for one in (k, v))
        if fault in ("groups_in_turn", "mask_too_late", "dropout_always"):
            scores = q @ k.transpose(-2, -1) * scaling
            late = fault == "mask_too_late"
            pattern = scores.softmax(-1).masked_fill(mask < 0, 0.0) if late else (scores + mask).softmax(-1)
            pattern = F.dropout(pattern, 0.1, training=True) if fault == "dropout_always" else pattern
            z = (pattern @ v).transpose(1, 2)
        else:
            z, pattern = attention(self, q, k, v, mask, dropout=0.0, scaling=scaling, is_causal=False, **more)
        return self.o_proj(z.reshape(*hidden_states.shape[:-1], -1).contiguous()), pattern


class Detached(nn.Module):
    """A feed-forward layer whose gradient is cut."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).detach()


class Llama(LlamaForCausalLM):
    """With a loss that can be the mean of each row's mean."""

    fault = ""

    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:  # pyright: ignore
        returned: Any = super().forward(input_ids=input_ids, labels=None, **more)
        if labels is not None:
            pairs = zip(returned.logits[:, :-1].float(), labels[:, 1:], strict=True)
            returned.loss = torch.stack([F.cross_entropy(one, own) for one, own in pairs]).mean()
        return returned


def llama(fault: str = "", *, window: int | None = None, scaling: float = 1.0, seed: int = 0) -> LlamaForCausalLM:
    """A Llama of three layers with 4 heads over 2 key/value heads, and a mistake in layer `LAYER`."""
    torch.manual_seed(seed)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if scaling != 1.0:
        rope |= {"rope_type": "linear", "factor": scaling}
    options: dict[str, Any] = {"attn_implementation": "eager"}
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_parameters=rope,
        tie_word_embeddings=True,
        **options,
        initializer_range=0.4,
    )
    model: Any = (Llama if fault == "mean_of_rows" else LlamaForCausalLM)(config).eval()
    layer: Any = model.model.layers[LAYER]
    if fault == "head_not_tied":
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.4)
    elif fault == "detached":
        layer.mlp = Detached(layer.mlp)
    elif fault == "cache_starts_again":
        model.model.register_forward_pre_hook(_positions_from_0, with_kwargs=True)
    elif fault and fault != "mean_of_rows":
        layer.self_attn.__class__ = Attention
        layer.self_attn.fault, layer.self_attn.window = fault, window
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(128)[None])
        layer.self_attn.cos0, layer.self_attn.sin0 = cos, sin
    return model


def _positions_from_0(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    past = kwargs.get("past_key_values")
    if past is not None and past.get_seq_length():
        kwargs["position_ids"] = torch.arange(kwargs["input_ids"].shape[1])[None]
    return args, kwargs
