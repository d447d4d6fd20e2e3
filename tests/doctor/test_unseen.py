"""Mistakes that the checks were not written for: those that break a rule are named, in their layer."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xformer.config import ModelConfig
from xformer.doctor.diagnosis import Finding, diagnose
from xformer.layers.attention import Attention as OurAttention
from xformer.layers.masks import Mask
from xformer.model import Transformer

LAYER = 1
VOCAB, WIDTH, N_HEADS, D_HEAD, N_LAYERS = 53, 30, 5, 6, 3

UNSEEN: dict[str, str] = {
    "softmax_over_queries": "causality",
    "attention_over_heads": "",
    "no_scale": "",
    "cache_slot_overwritten": "cache",
    "mask_of_wrong_length": "cache",
    "cache_position_off_by_one": "cache",
    "norm_over_positions": "causality",
    "dropout_on_logits": "determinism",
    "tied_by_reshape": "",
    "padding_inverted": "left_padding",
    "residual_twice": "",
    "slopes_reversed": "",
    "merged_untransposed": "causality",
    "mask_multiplied": "causality",
    "values_turned": "position_shift",
    "mask_of_first_row": "batch",
}
"""Each mistake, and a check that finds it; "" where none does."""
NO_LAYER = {"dropout_on_logits", "tied_by_reshape"}
"""Mistakes outside the layers."""


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions over halves."""
    angles = positions[..., None].float() * 10000.0 ** (-torch.arange(0, D_HEAD, 2) / D_HEAD)  # [batch, pos, pair]
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    one, two = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat([-two, one], dim=-1) * angles.sin().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, fault: str, *, alibi: bool) -> None:
        super().__init__()
        self.fault, self.alibi = fault, alibi
        self.qkv = nn.Linear(WIDTH, 3 * N_HEADS * D_HEAD, bias=False)
        self.out = nn.Linear(N_HEADS * D_HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor, valid: Tensor | None, positions: Tensor, past: Any) -> Any:
        fault, (batch, n, _) = self.fault, x.shape
        q, k, v = (
            one.unflatten(-1, (N_HEADS, D_HEAD)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1)
        )  # [batch, head, pos, d_head]
        start = 0 if past is None else past[0].shape[2]
        if fault == "cache_position_off_by_one" and start:
            positions = positions + 1
        if not self.alibi:
            q, k = turned(q, positions), turned(k, positions)
            v = turned(v, positions) if fault == "values_turned" else v
        if past is not None:
            slot = start - 1 if fault == "cache_slot_overwritten" else start
            k, v = (self.written(old, new, slot) for old, new in zip(past, (k, v), strict=True))
        kept, n_key = (k, v), k.shape[2]
        if fault == "attention_over_heads":
            q, k, v = (one.transpose(1, 2) for one in (q, k[:, :, -n:], v[:, :, -n:]))  # [batch, pos, head, d_head]
            pattern = (q @ k.transpose(-2, -1) / math.sqrt(D_HEAD)).softmax(dim=-1)
            return self.out((pattern @ v).flatten(2)), kept, pattern
        scores = q @ k.transpose(-2, -1) * (1.0 if fault == "no_scale" else 1 / math.sqrt(D_HEAD))
        query, key = torch.arange(n)[:, None] + start, torch.arange(n_key)
        if self.alibi:
            slopes = 2.0 ** (-8 / N_HEADS * torch.arange(1, N_HEADS + 1))[:, None, None]
            scores = scores - (slopes.flip(0) if fault == "slopes_reversed" else slopes) * (query - key).to(x.dtype)
        allowed = (key <= query - (start if fault == "mask_of_wrong_length" else 0)).expand(batch, 1, n, n_key)
        if valid is not None:
            if fault == "padding_inverted" and not bool(valid.all()):
                valid = ~valid
            valid = valid[:1] if fault == "mask_of_first_row" else valid
            allowed = allowed & valid[:, None, None, :]
        if fault == "mask_multiplied":
            pattern = (scores * allowed).softmax(dim=-1)
        else:
            axis = -2 if fault == "softmax_over_queries" else -1
            pattern = scores.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(dim=axis)
        z = pattern @ v
        merged = z.reshape(batch, n, -1) if fault == "merged_untransposed" else z.transpose(1, 2).flatten(2)
        return self.out(merged), kept, pattern

    @staticmethod
    def written(old: Tensor, new: Tensor, slot: int) -> Tensor:
        """New keys or values in a buffer that has room for them, from a slot on."""
        buffer = torch.cat([old, torch.zeros_like(new)], dim=2)
        buffer[:, :, slot : slot + new.shape[2]] = new
        return buffer


class Block(nn.Module):
    def __init__(self, fault: str, *, alibi: bool) -> None:
        super().__init__()
        self.fault = fault
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(fault, alibi=alibi)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, *more: Any) -> Any:
        made, kept, pattern = self.attention(self.norm1(x), *more)
        x = 2 * x + made if self.fault == "residual_twice" else x + made
        over_positions = self.fault == "norm_over_positions"
        normed = F.layer_norm(x.transpose(1, 2), x.shape[1:2]).transpose(1, 2) if over_positions else self.norm2(x)
        return x + self.mlp(normed), kept, pattern


class UnseenGPT(nn.Module):
    def __init__(self, fault: str = "", *, alibi: bool | None = None, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.fault = fault
        alibi = fault == "slopes_reversed" if alibi is None else alibi
        self.config = SimpleNamespace(max_position_embeddings=128, tie_word_embeddings=True)
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(fault if i == LAYER else "", alibi=alibi) for i in range(N_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for module in self.modules():  # larger than usual, so that attention is not uniform
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.4)

    def forward(
        self,
        idx: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ) -> Any:
        start = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None:
            position_ids = torch.arange(start, start + idx.shape[1])[None].expand(len(idx), -1)
        valid = None if attention_mask is None else attention_mask.bool()
        x, kept, patterns = self.embedding(idx), [], []
        for number, block in enumerate(self.blocks):
            past = None if past_key_values is None else past_key_values[number]
            x, pair, pattern = block(x, valid, position_ids, past)
            kept.append(pair)
            patterns.append(pattern)
        table = self.embedding.weight
        logits = self.norm(x) @ (table.reshape(WIDTH, VOCAB) if self.fault == "tied_by_reshape" else table.T)
        return SimpleNamespace(
            logits=F.dropout(logits, 0.1) if self.fault == "dropout_on_logits" else logits,
            past_key_values=kept if use_cache else None,
            attentions=patterns if output_attentions else None,
        )


class PairAttention(OurAttention):
    """Attention of an encoder-decoder of xformer with a mistake named by `fault`."""

    fault: str = ""

    def score(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengthened = self.fault == "cross_scale_by_length"
        return super().score(q, k, v) * (math.log(k.shape[2] + 1) / math.log(16) if lengthened else 1.0)

    def mask(self, scores: Tensor, mask: Mask) -> Tensor:
        hidden = super().mask(scores.clone(), mask)
        n, n_key = scores.shape[-2:]
        if self.fault == "cross_sees_padding":
            return scores
        if self.fault == "decoder_sees_ahead":
            is_next = torch.arange(n_key) == torch.arange(n)[:, None] + n_key - n + 1
            one = torch.arange(self.n_heads)[:, None, None] == PAIR_HEAD
            return torch.where(one & is_next, scores, hidden)
        return hidden


PAIR_HEAD = 1
PAIR_FAULTS = {
    "cross_sees_padding": "right_padding",
    "decoder_sees_ahead": "causality",
    "cross_scale_by_length": "right_padding",
}


def pair(fault: str = "", seed: int = 0) -> Transformer:
    """A small encoder-decoder, with the mistake in the decoder's layer `LAYER`."""
    config = ModelConfig(
        architecture="encoder-decoder", vocab_size=23, d_model=20, n_layers=2, n_heads=2, d_head=8, d_ff=28, max_len=64,
        causal=True, positions="sinusoidal", init="normal", init_scale=0.2,
    )  # fmt: skip
    model = Transformer(config, generator=torch.Generator().manual_seed(seed)).eval()
    assert model.decoder is not None
    block: Any = model.decoder.blocks[LAYER]
    if fault:
        attention = block.self_attn if fault == "decoder_sees_ahead" else block.cross_attn
        attention.__class__ = PairAttention
        attention.fault = fault
    return model


TOKENS = torch.tensor([[5, 44, 12, 31, 7, 50, 23, 18, 39, 2, 27, 46, 9]])
SENTENCES = {
    "tokens": torch.tensor([[5, 14, 12, 1, 7, 20, 3]]),
    "decoder_input_ids": torch.tensor([[2, 9, 4, 17, 8, 11]]),
}
FOUND = {fault: check for fault, check in UNSEEN.items() if check}


def the_finding(model: nn.Module, inputs: Any, check: str) -> Finding:
    (finding,) = diagnose(model, inputs, checks=[check]).findings
    return finding


@pytest.mark.parametrize("alibi", [False, True])
def test_the_right_model_has_no_finding(alibi: bool) -> None:
    diagnosis = diagnose(UnseenGPT(alibi=alibi), TOKENS)
    assert diagnosis.ok, repr(diagnosis)


@pytest.mark.parametrize("fault", FOUND)
def test_a_mistake_that_breaks_a_rule_is_named_in_its_layer(fault: str) -> None:
    finding = the_finding(UnseenGPT(fault), TOKENS, FOUND[fault])
    assert finding.verdict == "broken", finding.sentence
    assert finding.place is not None
    assert finding.place.layer == (None if fault in NO_LAYER else LAYER)


@pytest.mark.parametrize("fault", PAIR_FAULTS)
def test_a_mistake_in_the_decoder_of_a_pair_is_named_in_its_layer(fault: str) -> None:
    assert the_finding(pair(), SENTENCES, PAIR_FAULTS[fault]).verdict == "holds"
    finding = the_finding(pair(fault), SENTENCES, PAIR_FAULTS[fault])
    assert finding.verdict == "broken", finding.sentence
    assert finding.place is not None
    assert finding.place.name.startswith(f"decoder.{LAYER}.")


def test_dropout_behind_the_layers_is_not_taken_for_positions() -> None:
    finding = the_finding(UnseenGPT("dropout_on_logits"), TOKENS, "position_shift")
    assert finding.verdict == "could not run"
