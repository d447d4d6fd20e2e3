"""`xformer.attention_summary` equals the patterns that `xformer.read` records, for families with special terms."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES, GROUPED, SPECIAL, tiny_model
from xformer.adapters.attention_sums import BLOCK
from xformer.errors import EditError, InputError
from xformer.long_inputs import AttentionSummary

N = 2 * BLOCK + 37
LONG = {**GROUPED, "max_position_embeddings": 512}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama (grouped queries)": ("LlamaForCausalLM", LONG),
    "Gemma 2 (softcap, window)": ("Gemma2ForCausalLM", {**LONG, "head_dim": 8, "sliding_window": 50}),
    "GPT-OSS (sinks, window)": (
        "GptOssForCausalLM",
        {**LONG, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 50},
    ),
    "Mistral (window)": ("MistralForCausalLM", {**LONG, "sliding_window": 40}),
    "DeepSeek-V3 (latent keys)": (
        "DeepseekV3ForCausalLM",
        {**LONG, "num_key_value_heads": 6, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
         "qk_nope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
         "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
    ),
    "BLOOM (ALiBi)": ("BloomForCausalLM", {"vocab_size": 97, "hidden_size": 24, "n_layer": 2, "n_head": 6, **SPECIAL}),
    "BERT (all keys)": ("BertForMaskedLM", {**{k: v for k, v in LONG.items() if k != "num_key_value_heads"}}),
    "GPT-2": ("GPT2LMHeadModel", {"vocab_size": 97, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 512, **SPECIAL}),
}  # fmt: skip


def ids(n: int = N) -> Tensor:
    return torch.randint(3, 97, (1, n), generator=torch.Generator().manual_seed(n))


def check(summary: AttentionSummary, model: Any, inputs: Any, counted: Tensor | None = None) -> None:
    """Compare every sum that follows from a pattern with that of the recorded pattern, and some exact weights."""
    reading = xformer.read(model, inputs, keep=("*.pattern",))
    assert tuple(site.path for site in summary.attention) == reading.trace.attention_layers()
    for layer, site in enumerate(summary.attention):
        pattern, sums = reading[f"{site.path}.pattern"][0].double(), summary.sums[site.path]
        rows = torch.ones(pattern.shape[1], dtype=torch.bool) if counted is None else counted
        kept = pattern * rows[None, :, None]
        zero = pattern.shape[1] - 1
        wanted = {
            "entropy": (torch.special.entr(pattern).sum(-1) * rows, sums.entropy * rows),
            "largest": (pattern.amax(-1) * rows, sums.largest * rows),
            "received": (kept.sum(1), sums.received),
            "diagonal": (kept.diagonal(0, 1, 2).sum(-1), sums.by_offset[:, zero]),
            "previous": (kept.diagonal(-1, 1, 2).sum(-1), sums.by_offset[:, zero - 1]),
            "block_max": (kept[:, :BLOCK, :BLOCK].amax((1, 2)), sums.block_max[:, 0, 0]),
            "block_sum": (kept[:, -37:, :BLOCK].sum((1, 2)), sums.block_sum[:, -1, 0]),
            "weights": (pattern[2, 40:60, 30:70], summary.weights(layer, head=2, queries=slice(40, 60), keys=slice(30, 70))),
        }  # fmt: skip
        for name, (value, found) in wanted.items():
            assert torch.allclose(found.double(), value, rtol=3e-6, atol=1e-5), (site.path, name)


WITH_SDPA = [one for one in MODELS if not one.startswith(("Gemma", "GPT-OSS", "BLOOM"))]


@pytest.mark.parametrize(
    ("family", "attention"), [(one, "eager") for one in MODELS] + [(one, "sdpa") for one in WITH_SDPA]
)
def test_sums_equal_recorded_patterns(family: str, attention: str) -> None:
    name, sizes = MODELS[family]
    model = tiny_model(name, sizes, attention)
    check(xformer.attention_summary(model, ids()), model, ids())


def test_an_encoder_decoder_is_summed_up_in_all_three_kinds_of_attention() -> None:
    model = FAMILIES["T5"].make()
    inputs = {"input_ids": ids(61), "decoder_input_ids": ids(47)}
    reading, summary = (call(model, inputs) for call in (xformer.read, xformer.attention_summary))
    assert {site.kind for site in summary.attention} == {"attn", "self_attn", "cross_attn"}
    for path, sums in summary.sums.items():
        pattern = reading[f"{path}.pattern"][0]
        assert torch.allclose(sums.entropy, torch.special.entr(pattern).sum(-1), rtol=0, atol=1e-5)
        assert torch.allclose(sums.received, pattern.sum(1), rtol=0, atol=1e-4)


class Attention(nn.Module):
    """One head of causal attention, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(97, 16), nn.Linear(16, 48)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.mT / 4).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
        return x + scores.softmax(dim=-1) @ v


def test_a_hand_written_model_and_a_model_of_our_own_are_summed_up() -> None:
    torch.manual_seed(0)
    module = Attention()
    summary = xformer.attention_summary(module, ids(131))
    pattern = xformer.read(module, ids(131))["decoder.0.attn.pattern"][0]
    assert torch.allclose(summary.layer(0).entropy, torch.special.entr(pattern).sum(-1), rtol=0, atol=1e-5)
    assert torch.allclose(summary.weights(0, head=0, queries=slice(5, 9)), pattern[0, 5:9], rtol=0, atol=1e-6)
    own = xformer.attention_summary("checkpoints/reverse", "3 7 12 9 1")
    reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
    assert torch.allclose(own.layer(2).received, reading["encoder.2.attn.pattern"][0].sum(1), rtol=0, atol=1e-6)


def test_padding_on_the_left_counts_in_no_sum() -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    valid = torch.arange(N) >= 40
    inputs = {"input_ids": ids(), "attention_mask": valid[None].long()}
    summary = xformer.attention_summary(model, inputs)
    assert not summary.layer(0).received[:, ~valid].any()
    reading = xformer.read(model, inputs, keep=("*.pattern",))
    pattern = reading["decoder.1.attn.pattern"][0] * valid[None, :, None]
    assert torch.allclose(summary.layer(1).received, pattern.sum(1), rtol=0, atol=1e-4)
    table = xformer.analysis.head_sums(summary)
    first = pattern[:, 41:, 40].mean(-1)  # of the first token that is not padding
    assert table["first"].to_numpy()[6:] == pytest.approx(first.numpy(), abs=1e-6)


def test_weights_of_a_layer_that_is_not_kept_are_computed_again() -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    kept, again = (xformer.attention_summary(model, ids(), kept_bytes=n) for n in (10**9, 0))
    assert len(kept.kept) == 2
    assert not again.kept
    for layer in (0, 1, 0):
        rows = [one.weights(layer, head=5, queries=slice(200, 210)) for one in (kept, again)]
        assert torch.allclose(*rows, rtol=0, atol=1e-5)  # the layers below ran in another kernel
        assert len(again.kept) == 1  # the last one, although it exceeds the limit


def test_all_weights_of_chosen_queries_are_stored() -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    summary = xformer.attention_summary(model, ids(), queries=[150], kept_bytes=0)
    pattern = xformer.read(model, ids())["decoder.1.attn.pattern"][0]
    assert sorted(summary.layer(1).rows) == [150, N - 1]
    assert torch.allclose(summary.layer(1).rows[150], pattern[:, 150], rtol=0, atol=1e-6)
    table = xformer.analysis.attention_to(summary, keys=[3, 7, 200], query=150)
    found = table.query("layer == 'decoder.1.attn' and head == 4").iloc[0]
    assert found["weight"] == pytest.approx(pattern[4, 150, [3, 7]].sum().item(), abs=1e-6)
    assert found["uniform"] == pytest.approx(2 / 151)  # key 200 is masked
    assert table["weight"].is_monotonic_decreasing
    with pytest.raises(InputError, match="were not stored"):
        xformer.analysis.attention_to(summary, keys=[3], query=149)


def test_attention_between_documents() -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    documents = [0] * 100 + [1] * 90 + [2] * (N - 190)
    summary = xformer.attention_summary(model, ids(), documents=documents)
    pattern = xformer.read(model, ids())["decoder.0.attn.pattern"][0, 3]
    table = xformer.analysis.between_documents(summary, layer=0, head=3)
    wanted = pattern[190:, 100:190].sum() / pattern[190:].sum()
    found = table.query("query_document == 2 and key_document == 1")["share"].item()
    assert found == pytest.approx(wanted.item(), abs=1e-6)
    heads = xformer.analysis.head_sums(summary).query("layer == 'decoder.0.attn' and head == 3")
    other = sum(pattern[a:b, :a].sum().item() for a, b in ((100, 190), (190, N))) / N
    assert heads["other_documents"].item() == pytest.approx(other, abs=1e-6)


def test_a_model_that_computes_with_its_mask_gets_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    attention = model.model.layers[0].self_attn
    forward, shapes = attention.forward, []

    def with_shape(*args: Any, attention_mask: Tensor, **kwargs: Any) -> Any:
        shapes.append(attention_mask.shape)
        return forward(*args, attention_mask=attention_mask, **kwargs)

    wanted = xformer.attention_summary(model, ids()).layer(1).entropy
    monkeypatch.setattr(attention, "forward", with_shape)
    assert torch.allclose(xformer.attention_summary(model, ids()).layer(1).entropy, wanted, rtol=0, atol=1e-6)
    assert shapes[-1] == (1, 1, N, N)


def test_the_model_is_left_as_it_was_found_and_other_threads_may_use_it() -> None:
    model = tiny_model("LlamaForCausalLM", LONG, "sdpa").train()
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    wanted = xformer.attention_summary(model, ids()).layer(1).entropy
    with torch.no_grad():
        plain = model.eval()(ids()).logits
    found: list[Tensor] = []

    def others() -> None:
        with torch.no_grad():
            found.extend(model(ids()).logits for _ in range(20))

    thread = threading.Thread(target=others)
    thread.start()
    for _ in range(5):
        assert torch.equal(xformer.attention_summary(model, ids()).layer(1).entropy, wanted)
    thread.join()
    assert len(found) == 20
    assert all(torch.allclose(one, plain, rtol=0, atol=1e-4) for one in found)
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert torch.equal(rng, torch.get_rng_state())


def test_what_cannot_be_summed_up_is_refused() -> None:
    model = tiny_model("LlamaForCausalLM", LONG)
    with pytest.raises(InputError, match="takes one input, got a batch of 2"):
        xformer.attention_summary(model, ids().expand(2, -1))
    with pytest.raises(InputError, match=f"one number from 0 for each of the {N} tokens"):
        xformer.attention_summary(model, ids(), documents=[0, 1])
    summary = xformer.attention_summary(model, ids())
    with pytest.raises(EditError, match="has heads 0 to 5, got 6"):
        summary.weights(0, head=6)
    with pytest.raises(EditError, match="attention layers 0 to 1, got 2"):
        summary.layer(2)
    with pytest.raises(InputError, match="without a step"):
        summary.weights(0, head=0, queries=slice(0, 9, 2))
