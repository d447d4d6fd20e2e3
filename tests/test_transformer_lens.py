"""TransformerLens names give the tensors of a stock GPT-2, in TransformerLens's order of axes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import xformer
from tests.layers.reference import model_config
from xformer import edits
from xformer.errors import ActivationError, EditError
from xformer.model_shape import ModelShape

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 2, 3, 3, 1]])
CLOSE = {"rtol": 0.0, "atol": 1e-5}
BLOCK = ["hook_resid_pre", *(f"attn.hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z"))]
BLOCK += ["hook_attn_out", "hook_resid_mid", "mlp.hook_pre", "mlp.hook_post", "hook_mlp_out", "hook_resid_post"]


@pytest.fixture(scope="module")
def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_embd=24, n_layer=2, n_head=3, n_positions=16, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module")
def reading(gpt2: Any) -> xformer.Reading:
    return xformer.read(gpt2, IDS)


def stock(gpt2: Any) -> dict[str, torch.Tensor]:
    """The activations of the first block by TransformerLens name, computed with the Hugging Face modules alone."""
    body = gpt2.transformer
    block = body.h[0]
    with torch.no_grad():
        embed, pos = body.wte(IDS), body.wpe(torch.arange(5))
        x = embed + pos  # [batch, pos, d_model]
        q, k, v = (part.unflatten(-1, (3, 8)) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        pattern = scores.softmax(-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        attn_out = block.attn.c_proj(z.flatten(2))
        mid = x + attn_out
        pre = block.mlp.c_fc(block.ln_2(mid))
        post = block.mlp.act(pre)
        mlp_out = block.mlp.c_proj(post)
        last = body(IDS).last_hidden_state
    values = [x, q, k, v, scores, pattern, z, attn_out, mid, pre, post, mlp_out, mid + mlp_out]
    there = {f"blocks.0.{name}": value for name, value in zip(BLOCK, values, strict=True)}
    ends = {"hook_embed": embed, "hook_pos_embed": pos.expand(2, 5, 24), "ln_final.hook_normalized": last}
    return ends | there


def test_each_name_has_the_same_meaning_as_in_transformer_lens(gpt2: Any, reading: xformer.Reading) -> None:
    wanted = stock(gpt2)
    for name, value in wanted.items():
        assert name in reading
        torch.testing.assert_close(reading[name], value, **CLOSE)
    second = [name.replace("blocks.0", "blocks.1") for name in wanted if name.startswith("blocks")]
    assert set(reading.names("transformer_lens")) == {*wanted, *second}
    assert set(reading.names()) == set(reading)


def test_a_batch_of_one_keeps_its_axes() -> None:
    reading = xformer.read("checkpoints/reverse-decoder", "5 3 9 1")
    assert reading["hook_pos_embed"].shape == (1, 9, 64)
    assert reading["blocks.1.attn.hook_z"].shape == (1, 9, 2, 32)
    torch.testing.assert_close(reading["blocks.1.attn.hook_z"][:, :, 1], reading["decoder.1.attn.z"][:, 1])


def test_an_unknown_name_suggests_similar_ones(reading: xformer.Reading) -> None:
    with pytest.raises(ActivationError, match=r"no activation 'blocks\.7\.attn\.hook_z'; did you mean blocks"):
        reading["blocks.7.attn.hook_z"]
    absent = "blocks.0.attn.hook_result"
    with pytest.raises(KeyError, match=rf"no activation '{absent}' here; did you mean blocks\.0\.attn\.hook_"):
        reading[absent]
    assert "blocks.7.attn.hook_z" not in reading
    assert reading.get(absent) is None
    assert absent not in reading
    assert reading["ln_final"] is reading["final_norm"]
    assert "ln_final" in reading


def test_rotary_models_have_names_for_rotated_queries_only() -> None:
    config = model_config(architecture="decoder", positions="rotary")
    reading = xformer.read(xformer.Transformer(config), [3, 4, 5])
    torch.testing.assert_close(reading["blocks.0.attn.hook_rot_q"], reading["decoder.0.attn.q"].transpose(1, 2))
    with pytest.raises(ActivationError, match=r"rotates it by position.*attn\.hook_rot_k"):
        reading["blocks.0.attn.hook_k"]
    assert not ModelShape.of(config.replace(positions="learned")).rotates


def test_names_are_rejected_for_models_with_two_stacks() -> None:
    reading = xformer.read("checkpoints/reverse-seq2seq", "5 3 9 1")
    for look_up in (lambda: reading["blocks.0.attn.hook_z"], lambda: reading.names("transformer_lens")):
        with pytest.raises(ActivationError, match="an encoder and a decoder"):
            look_up()
    assert "blocks.0.attn.hook_z" not in reading
    with pytest.raises(EditError, match="an encoder and a decoder"):
        xformer.read("checkpoints/reverse-seq2seq", "5 3 9 1", keep=["blocks.*.attn.hook_z"])


def test_edits_by_transformer_lens_name_get_its_order_of_axes(gpt2: Any, reading: xformer.Reading) -> None:
    seen: list[tuple[int, ...]] = []

    def ablate_head_2(z: torch.Tensor) -> torch.Tensor:  # [batch, pos, head, d_head]
        seen.append(tuple(z.shape))
        z[:, :, 2] = 0.0
        return z

    wanted = xformer.read(gpt2, IDS, edits=[edits.ablate_head("decoder.1.attn", 2)]).logits
    assert not torch.allclose(wanted, reading.logits, **CLOSE)
    z = reading["blocks.1.attn.hook_z"].clone()
    z[:, :, 2] = 0.0
    for edit in (edits.apply("blocks.1.attn.hook_z", ablate_head_2), edits.replace("blocks.1.attn.hook_z", z)):
        torch.testing.assert_close(xformer.read(gpt2, IDS, edits=[edit]).logits, wanted, **CLOSE)
    assert seen == [(2, 5, 3, 8)]
    everywhere = xformer.read(gpt2, IDS, edits=[edits.scale("blocks.*.hook_mlp_out", 0.0)]).logits
    ours = xformer.read(gpt2, IDS, edits=[edits.scale("decoder.*.ffn.out", 0.0)]).logits
    torch.testing.assert_close(everywhere, ours)
    with pytest.raises(EditError, match=r"hook_z must return the shape \[2, 5, 3, 8\], got \[2, 3, 5, 8\]"):
        xformer.read(gpt2, IDS, edits=[edits.apply("blocks.1.attn.hook_z", lambda z: z.transpose(1, 2))])
    shifted = xformer.read(gpt2, IDS, edits=[edits.apply("hook_pos_embed", lambda pos: pos.roll(1, dims=1))])
    torch.testing.assert_close(shifted["hook_pos_embed"], reading["hook_pos_embed"].roll(1, dims=1))


def test_keep_accepts_transformer_lens_names(gpt2: Any) -> None:
    reading = xformer.read(gpt2, IDS, keep=["blocks.*.attn.hook_pattern"])
    assert set(reading) == {"decoder.0.attn.pattern", "decoder.1.attn.pattern", "logits"}
