"""Models that obey a rule raise no finding; masks that are lost, inverted, replaced or bypassed are found and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES, GROUPED, tiny_model
from xformer import masks
from xformer.errors import InputError
from xformer.masks import Rule, bidirectional, causal, documents, padding, window

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
IDS = torch.arange(5, 15)[None]
N = 10
ENCODERS = ("BERT", "ALBERT", "DistilBERT", "DeBERTa")
PACKED = ("Llama", "Qwen3", "Gemma2", "Mistral", "Mixtral", "Granite")
LOCAL = causal() & window(4)
RULES: dict[str, Rule | list[Rule]] = {
    **dict.fromkeys(
        ("GPT-2", "GPT-NeoX", "Llama", "Qwen3", "Mixtral", "Granite", "BLOOM", "GPT-J", "Falcon"), causal()
    ),
    **dict.fromkeys(ENCODERS, bidirectional()),
    "Mistral": LOCAL,
    "Gemma2": [LOCAL, causal()],
    "GPT-OSS": [LOCAL, causal()],
}


def _with(rule: Rule | list[Rule], more: Rule) -> Rule | list[Rule]:
    return [one & more for one in rule] if isinstance(rule, list) else rule & more


@pytest.mark.parametrize("family", RULES)
def test_families_obey_their_own_rule_on_three_inputs(family: str) -> None:
    model, rule = FAMILIES[family].make(), RULES[family]
    valid = torch.ones(2, N, dtype=torch.long)
    valid[1, slice(7, None) if family in ENCODERS else slice(3)] = 0
    cases = [
        ({"input_ids": IDS}, rule),
        ({"input_ids": torch.cat([IDS, IDS + 20]), "attention_mask": valid}, _with(rule, padding(valid))),
    ]
    if family in PACKED:
        packed = {"input_ids": IDS, "position_ids": torch.arange(N)[None] % 5, "use_cache": False}
        cases.append((packed, _with(rule, documents([0, 5]))))
    else:
        cases.append(({"input_ids": IDS[:, :3]}, rule))
    for inputs, expected in cases:
        found = masks.obeyed(model, inputs, expected)
        assert found.obeys, found.sentence
        assert {"mask", "output"} <= set(found.table["evidence"])


def test_a_mask_of_ones_switches_the_detection_of_documents_off() -> None:
    """As reported for Transformers (pull request 46634)."""
    inputs = {"input_ids": IDS, "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]), "use_cache": False}
    model, rule = FAMILIES["Llama"].make(), causal() & documents([0, 4, 7])
    assert masks.obeyed(model, inputs, rule).obeys
    found = masks.obeyed(model, inputs | {"attention_mask": torch.ones_like(IDS)}, rule)
    [one] = found.violations
    assert (one.cause, one.layers, one.n_leaks, one.n_losses, one.first) == ("switched_off", (0, 1), 33, 0, (0, 4, 0))
    assert one.backends == ("eager", "sdpa", "eager with weights returned")
    assert one.why == "Without attention_mask, the rule holds; with it, the attention applies: causal."


def test_an_image_mask_that_never_reaches_the_attention() -> None:
    """As reported for Transformers (issue 39389): the types of the tokens are given, and every mask stays causal."""
    model = tiny_model("Gemma3ForCausalLM", {**GROUPED, "head_dim": 8, "sliding_window": 64})
    types = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 1, 1, 0]])
    rule = causal() | bidirectional(within=masks.ranges_of(types[0]))
    [one] = masks.obeyed(model, {"input_ids": IDS, "token_type_ids": types}, rule).violations
    assert (one.cause, one.n_leaks, one.n_losses, one.first) == ("never_reaches_attention", 0, 4, (0, 2, 3))
    assert one.why == "token_type_ids changes no mask: the attention applies: causal."


def test_a_cache_switches_the_detection_of_documents_off() -> None:
    inputs = {"input_ids": IDS, "position_ids": torch.arange(N)[None] % 5, "use_cache": True}
    [one] = masks.obeyed(FAMILIES["Llama"].make(), inputs, causal() & documents([0, 5])).violations
    assert one.why == "With use_cache=False, the rule holds."


def test_packed_positions_that_the_code_of_a_family_does_not_pass_on() -> None:
    """GptOssModel builds its masks without position_ids (Transformers 5.23)."""
    inputs = {"input_ids": IDS, "position_ids": torch.arange(N)[None] % 5, "use_cache": False}
    rules = [one & documents([0, 5]) for one in (LOCAL, causal())]
    [one] = masks.obeyed(FAMILIES["GPT-OSS"].make(), inputs, rules).violations
    assert one.cause == "never_reaches_attention"
    assert one.why.startswith("position_ids changes no mask")


class Layer(nn.Module):
    """Attention with one of several faults."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.qkv, self.out = fault, nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor, attention_mask: Tensor, output_attentions: bool) -> tuple[Tensor, Tensor | None]:
        batch, n, _ = x.shape
        q, k, v = (one.view(batch, n, 3, 4).transpose(1, 2) for one in self.qkv(x).split(12, dim=-1))
        valid = attention_mask[:, None, None].bool()
        if self.fault == "inverted":
            valid = ~valid
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril() & valid
        if self.fault == "ignored":
            allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()[None, None]
        if self.fault == "full":
            allowed = valid.expand(batch, 1, n, n)
        if self.fault == "later_keys_in_head_1":
            allowed = allowed.expand(batch, 3, n, n).clone()
            allowed[:, 1, 2, 5] = True
        scores = q @ k.transpose(-2, -1) / 2
        if output_attentions and self.fault == "dropped_with_weights":
            pattern = scores.softmax(dim=-1)
        elif self.fault == "after_softmax":
            pattern = scores.softmax(dim=-1) * allowed
        else:
            pattern = scores.masked_fill(~allowed, -1e9).softmax(dim=-1)
        z = (pattern @ v).transpose(1, 2).flatten(2)
        if self.fault == "mean":
            z = z - z.mean(dim=1, keepdim=True)
        return self.out(z), pattern if output_attentions else None


class Small(nn.Module):
    """Two layers of attention over token ids, with padding masked."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(30, 12), nn.Linear(12, 30)
        self.layers = nn.ModuleList(Layer(fault) for _ in range(2))
        self.fault = fault

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, output_attentions: bool = False) -> Any:
        x = self.embed(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        patterns = []
        for layer in self.layers:
            out, pattern = layer(x, mask, output_attentions)
            x = x + out
            patterns.append(pattern)
        if self.fault == "norm_over_positions":
            x = F.layer_norm(x.transpose(1, 2), x.shape[1:2]).transpose(1, 2)
        return (self.head(x), patterns) if output_attentions else self.head(x)


VALID = torch.tensor([[1] * 8, [0] * 2 + [1] * 6])
INPUTS = {"input_ids": torch.arange(16).view(2, 8) + 3, "attention_mask": VALID}
RULE = causal() & padding(VALID)


@pytest.mark.parametrize(
    ("fault", "cause", "evidence", "layers"),
    [
        ("inverted", "inverted", "mask", (0, 1)),
        ("ignored", "never_reaches_attention", "mask", (0, 1)),
        ("full", "replaced_by_default", "mask", (0, 1)),
        ("later_keys_in_head_1", "replaced_by_default", "mask", (0, 1)),
        ("dropped_with_weights", "dropped_with_weights", "mask", (0, 1)),
        ("after_softmax", "another_path", "gradient", (0, 1)),
        ("mean", "another_path", "gradient", (0, 1)),
        ("norm_over_positions", "another_path", "output", ()),
    ],
)
def test_planted_faults_are_found_and_named(fault: str, cause: str, evidence: str, layers: tuple[int, ...]) -> None:
    found = masks.obeyed(Small(fault), INPUTS, RULE)
    assert not found.obeys
    one = found.violations[0]
    assert (one.cause, one.evidence, one.layers) == (cause, evidence, layers), found.sentence
    assert found.sentence.startswith("The model does not obey the rule (causal and keys of padding are hidden).")


def test_the_right_model_obeys() -> None:
    found = masks.obeyed(Small(), INPUTS, RULE)
    assert found.obeys, found.sentence
    assert found.sentence == (
        "The model obeys the rule (causal and keys of padding are hidden): the masks of 6 heads follow it, and no output "
        "depends on a forbidden token (the model's own attention, the model's own attention with weights returned)."
    )


def test_a_fault_of_one_head_is_given_with_its_cell() -> None:
    found = masks.obeyed(Small("later_keys_in_head_1"), INPUTS, RULE)
    one = found.violations[0]
    assert (one.heads, one.first, one.n_leaks) == ((1,), (0, 2, 5), 2)
    wrong = found.table[(found.table["evidence"] == "mask") & ~found.table["obeys"]]
    assert set(wrong["head"]) == {1}
    assert set(zip(wrong["query"], wrong["key"], strict=True)) == {(2, 5)}


def test_the_model_is_left_as_it_was() -> None:
    model = FAMILIES["Llama"].make().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    masks.obeyed(model, {"input_ids": IDS}, causal())
    assert model.training
    assert model.config._attn_implementation == "eager"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_of_xformer_and_its_recorded_path() -> None:
    model = xformer.load("checkpoints/characters").model
    assert masks.obeyed(model, [[3, 7, 12, 9, 4]], causal()).obeys
    [one] = masks.obeyed(model, [[3, 7, 12, 9, 4]], causal() & window(2)).violations
    assert (one.cause, one.n_leaks, one.first) == ("replaced_by_default", 6, (0, 2, 0))


def test_what_cannot_be_checked_is_refused() -> None:
    model = Small()
    with pytest.raises(InputError, match="one for each of the 2 attention layers, got 3"):
        masks.obeyed(model, INPUTS, [RULE] * 3)
    with pytest.raises(InputError, match="up to 512 tokens, got 600"):
        masks.obeyed(model, torch.ones(1, 600, dtype=torch.long), causal())
    with pytest.raises(InputError, match="is for 3 inputs, and there are 2"):
        masks.obeyed(model, INPUTS, padding([[1] * 8] * 3))
    with pytest.raises(InputError, match="queries must be"):
        masks.obeyed(model, INPUTS, RULE, queries=[True])
