"""What a probe tells of a model: where a NaN begins, where later tokens reach earlier positions, and whether it is causal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.integrations.faulty_gpt import GPT
from xformer.integrations import AttentionHealth
from xformer.integrations.health_probe import losses_of

VOCAB, POS = 19, 11
IDS = torch.randint(0, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))


def gpt(**options: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(VOCAB, d_model=12, n_heads=3, max_len=POS, **options)


class Mixing(nn.Module):
    """A part whose outputs depend on all positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y + 0.1 * y.mean(dim=1, keepdim=True)


LEAKS = {
    "blocks.0.mlp": "decoder.0.ffn",
    "blocks.1.norm2": "decoder.1.ffn",
    "blocks.0.norm1": "decoder.0.attn",
    "blocks.1.attention.value": "decoder.1.attn",
    "norm": "",
    "token": "",
}


@pytest.mark.parametrize("path", LEAKS)
def test_a_leak_outside_attention_is_raised_where_it_begins(path: str) -> None:
    model = gpt()
    model.set_submodule(path, Mixing(model.get_submodule(path)))
    [alarm] = AttentionHealth(IDS, every=1, thresholds={"frozen_projection": None}).step(model, 1)
    assert (alarm.rule, alarm.layer) == ("leak", LEAKS[path])
    assert "Later tokens change" in alarm.reason


def test_a_leak_in_float_inputs_and_of_a_norm_over_positions_is_raised() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(gpt().blocks[0], nn.LayerNorm([7, 12]), gpt().blocks[1])
    [alarm] = AttentionHealth(torch.randn(2, 7, 12), every=1, causal=True).step(model, 1)
    assert alarm.rule == "leak"
    model[1] = nn.LayerNorm(12)
    assert AttentionHealth(torch.randn(2, 7, 12), every=1, causal=True).step(model, 1) == []


BEGINS = {
    "blocks.0.mlp.0.weight": "decoder.0.ffn",
    "blocks.0.mlp.2.bias": "decoder.0.ffn",
    "blocks.1.attention.query.weight": "decoder.1.attn",
    "blocks.1.attention.out.weight": "decoder.1.attn",
    "blocks.1.mlp.2.weight": "decoder.1.ffn",
    "norm.weight": "",
    "token.weight": "",
}


@pytest.mark.parametrize("path", BEGINS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_is_raised_in_the_layer_where_it_begins(path: str, value: float) -> None:
    model, health = gpt(), AttentionHealth(IDS, every=1)
    assert health.step(model, 0) == []
    with torch.no_grad():
        model.get_parameter(path).fill_(value)
    alarm = next(alarm for alarm in health.step(model, 1) if alarm.rule == "nan")
    assert alarm.layer == BEGINS[path]
    assert alarm.reason.startswith("The first ")


def test_logits_of_minus_infinity_are_no_nan() -> None:
    class Restricted(GPT):
        def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
            return super().forward(ids, pads).index_fill(-1, torch.tensor([0]), -math.inf)

    torch.manual_seed(0)
    model = Restricted(VOCAB, d_model=12, n_heads=3, max_len=POS)
    assert AttentionHealth(IDS.clamp(min=1), every=1).step(model, 1) == []


class Encoder(nn.Module):
    """`nn.TransformerEncoder` on tokens, with or without a causal mask."""

    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(VOCAB, 12), nn.Embedding(POS, 12)
        layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(12, VOCAB)
        self.is_masked = is_masked

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.is_masked else None
        return self.head(self.layers(self.token(ids) + self.position(torch.arange(n)), mask=mask))


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_causal_model_is_a_decoder_for_every_length_of_the_probe_and_an_encoder_is_not(n: int) -> None:
    for model, stack in (
        (Encoder(is_masked=True), "decoder"),
        (Encoder(is_masked=False), "encoder"),
        (gpt(), "decoder"),
    ):
        health = AttentionHealth(IDS[:, :n], every=1)
        assert health.step(model, 1) == []
        assert set(health.table()["layer"]) == {f"{stack}.0.attn", f"{stack}.1.attn"}


def test_a_causal_model_with_a_leaking_mask_is_a_decoder() -> None:
    health = AttentionHealth(IDS, every=1)
    [alarm] = health.step(gpt(fault="leaking mask"), 1)
    assert (alarm.rule, alarm.layer) == ("leak", "decoder.1.attn")
    assert set(health.table()["layer"]) == {"decoder.0.attn", "decoder.1.attn"}


def test_a_mask_that_is_mended_changes_no_name_and_a_leak_beside_it_is_raised() -> None:
    model = gpt(fault="leaking mask")
    model.blocks[0].mlp = Mixing(model.blocks[0].mlp)
    health = AttentionHealth(IDS, every=1)
    assert [alarm.layer for alarm in health.step(model, 0)] == ["decoder.1.attn", "decoder.0.ffn"]
    model.blocks[1].attention.fault = ""
    assert health.step(model, 1) == []
    assert health.record.problems == []


def trained(model: nn.Module, *, shift: int, with_loss: bool = True) -> AttentionHealth:
    """Train a model on a cycle of tokens, whose next token is certain."""
    cycle = torch.arange(200) % 13
    health = AttentionHealth(cycle[:14].reshape(2, 7), every=10)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    health.step(model, 0)
    for step in range(1, 31):
        starts = torch.randint(0, 180, (8,), generator=torch.Generator().manual_seed(step))
        batch = torch.stack([cycle[at : at + 8] for at in starts])
        loss = F.cross_entropy(model(batch[:, :7]).flatten(0, 1), batch[:, shift : 7 + shift].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        health.step(model, step, loss=loss if with_loss else None)
    return health


@pytest.mark.parametrize("with_loss", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_labels_equal_to_the_inputs_are_raised_and_shifted_ones_are_not(*, tied: bool, with_loss: bool) -> None:
    found = []
    for shift in (0, 1):
        model = gpt()
        if tied:
            model.head.weight = model.token.weight
        found.append([alarm.rule for alarm in trained(model, shift=shift, with_loss=with_loss).alarms])
    assert found == [["unshifted_labels"], []]


def test_the_losses_of_the_next_token_and_of_the_token_itself_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(2, 7, VOCAB), IDS
    valid = torch.tensor([[False] * 2 + [True] * 5, [True] * 7])
    next_loss, own_loss = losses_of(logits, ids, valid)
    kept = valid[:, 1:] & valid[:, :-1]
    torch.testing.assert_close(next_loss, F.cross_entropy(logits[:, :-1][kept], ids[:, 1:][kept]).item())
    torch.testing.assert_close(own_loss, F.cross_entropy(logits[:, :-1][kept], ids[:, :-1][kept]).item())


def test_padding_on_the_left_and_experts_raise_no_leak() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
    for name in ("Llama", "Mixtral"):
        config = getattr(transformers, f"{name}Config")(**sizes, **heads)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        assert AttentionHealth({"input_ids": IDS, "attention_mask": mask}, every=1).step(model, 1) == []
    bert = transformers.BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=32)
    health = AttentionHealth({"input_ids": IDS, "attention_mask": mask}, every=1)
    assert health.step(transformers.BertForMaskedLM(bert), 1) == []
    assert set(health.table()["layer"]) == {"encoder.0.attn", "encoder.1.attn"}
