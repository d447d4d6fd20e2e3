"""With the same weights the model equals transformers' Llama and Mistral: logits, attention patterns, hidden states.

Both use RMSNorm, SwiGLU, rotary positions and grouped key/value heads; Mistral adds the sliding window.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.layers.reference import randomise

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "architecture": "decoder", "vocab_size": 31, "d_model": 24, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "d_head": 8,
    "d_ff": 37, "max_len": 32, "norm": "pre", "norm_kind": "rms", "norm_eps": 1e-3, "positions": "rotary",
    "position_base": 500.0, "activation": "swiglu", "ffn_bias": False, "output_bias": False,
}  # fmt: skip
WINDOW = 4


def halves_first(weight: Tensor, d_head: int) -> Tensor:
    """Reorder the rows of each head from pairs (2i, 2i + 1) to pairs (i, i + d_head / 2), which transformers rotates."""
    heads = weight.unflatten(0, (-1, d_head))  # [head, d_head, d_model]
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1).flatten(0, 1)


def named_as_theirs(model: xformer.Transformer) -> dict[str, Tensor]:
    """Return the weights of a model under the names of `LlamaForCausalLM`."""
    config = model.config
    state: dict[str, Tensor] = {"model.embed_tokens.weight": model.embedding.get_parameter("token")}
    decoder: Any = model.decoder
    for number, block in enumerate(decoder.blocks):
        at = f"model.layers.{number}"
        q, k, v = block.attn.weight_in.split(block.attn.rows)
        state |= {
            f"{at}.self_attn.q_proj.weight": halves_first(q, config.d_head),
            f"{at}.self_attn.k_proj.weight": halves_first(k, config.d_head),
            f"{at}.self_attn.v_proj.weight": v,
            f"{at}.self_attn.o_proj.weight": block.attn.weight_out,
            f"{at}.mlp.gate_proj.weight": block.ffn.weight_gate,
            f"{at}.mlp.up_proj.weight": block.ffn.weight_in,
            f"{at}.mlp.down_proj.weight": block.ffn.weight_out,
            f"{at}.input_layernorm.weight": block.attn_residual.norm.weight,
            f"{at}.post_attention_layernorm.weight": block.ffn_residual.norm.weight,
        }
    output = model.unembedding.get_parameter("weight")
    return state | {"model.norm.weight": decoder.norm.weight, "lm_head.weight": output}


def theirs_of(model: xformer.Transformer) -> Any:
    """Return the same model as a transformers model."""
    config, window = model.config, model.config.window
    common = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.d_head,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.position_base},
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }
    if window:
        made = transformers.MistralForCausalLM(transformers.MistralConfig(**common, sliding_window=window))
    else:
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    made.load_state_dict(named_as_theirs(model), strict=True)
    return made.eval()


@pytest.fixture(params=[0, WINDOW], ids=["llama", "mistral"])
def model(request: pytest.FixtureRequest) -> xformer.Transformer:
    more = {"mask": "sliding_window", "window": request.param} if request.param else {}
    return randomise(xformer.Transformer(xformer.ModelConfig(**SIZES, **more)).double()).eval()


def test_logits_patterns_and_streams_equal_those_of_transformers(model: xformer.Transformer) -> None:
    model = model.float()
    tokens = torch.randint(0, 31, (3, 13), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = theirs_of(model)(tokens, output_attentions=True, output_hidden_states=True)
        fused = model(tokens)
    trace = xformer.record(model, tokens)
    assert theirs.logits.abs().max() > 1
    torch.testing.assert_close(fused, theirs.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(trace.logits, theirs.logits, rtol=0, atol=1e-5)
    for layer, (pattern, stream) in enumerate(zip(theirs.attentions, theirs.hidden_states, strict=False)):
        ours = trace[f"decoder.{layer}.attn.pattern"]
        torch.testing.assert_close(ours, pattern, rtol=0, atol=1e-5)
        assert torch.equal(ours == 0, pattern == 0)
        torch.testing.assert_close(trace[f"decoder.{layer}.resid_pre"], stream, rtol=0, atol=1e-5)
        seen = (ours[0, 0] > 0).sum(dim=-1).tolist()
        assert seen == [min(i + 1, model.config.window or 13) for i in range(13)]


def test_the_gradient_of_each_weight_equals_that_of_transformers(model: xformer.Transformer) -> None:
    theirs = theirs_of(model).double()
    theirs.load_state_dict(named_as_theirs(model), strict=True)
    tokens = torch.randint(0, 31, (3, 13), generator=torch.Generator().manual_seed(1))
    weight = torch.randn(3, 13, 31, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (model(tokens) * weight).sum().backward()
    (theirs(tokens).logits * weight).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
    for name, expected in theirs.named_parameters():
        ours = named_as_theirs(model)[name]
        # Transformers computes rotations and the mean in RMSNorm in float32.
        torch.testing.assert_close(ours, expected.grad, rtol=0, atol=1e-4 * float(expected.grad.abs().max()), msg=name)
