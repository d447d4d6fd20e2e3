"""A long probe, whose attention is summed up, gives the same record as its whole patterns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.adapters.families import tiny_model
from tests.test_long_inputs import LONG, MODELS
from xformer.integrations import AttentionHealth, health_probe

N = 150
PROBED = [
    "Llama (grouped queries)", "Gemma 2 (softcap, window)", "GPT-OSS (sinks, window)", "BLOOM (ALiBi)", "BERT (all keys)"
]  # fmt: skip


def ids() -> Tensor:
    return torch.randint(3, 97, (1, N), generator=torch.Generator().manual_seed(0))


def probed(model: Any, inputs: Any, change: Callable[[Any], None] = lambda _: None) -> AttentionHealth:
    """Two probes of a copy of the model, whose weights and what `change` does are between them."""
    model = copy.deepcopy(model).eval()
    health = AttentionHealth(inputs, every=1)
    health.step(model, 0, loss=4.0)
    draw = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data.add_(torch.randn(weight.shape, generator=draw), alpha=0.02)
    change(model)
    health.step(model, 1, loss=4.0)
    assert not health.record.problems
    return health


def both(monkeypatch: pytest.MonkeyPatch, *args: Any) -> tuple[AttentionHealth, AttentionHealth]:
    """The record from whole patterns, and from sums."""
    whole = probed(*args)
    monkeypatch.setattr(health_probe, "LONG", N - 1)
    return whole, probed(*args)


def check(whole: AttentionHealth, long: AttentionHealth) -> None:
    for of in ("table", "layer_table", "loss_table"):
        one, two = getattr(whole, of)(), getattr(long, of)()
        pd.testing.assert_frame_equal(one, two, rtol=1e-5, atol=1e-5, check_exact=False)
    assert [(one.rule, one.layer, one.head, one.step) for one in whole.alarms] == [
        (one.rule, one.layer, one.head, one.step) for one in long.alarms
    ]
    for step in (0, 1):
        for path, codes in whole.record.planes(step).items():
            assert np.abs(codes.astype(int) - long.record.planes(step)[path]).max() <= 1  # of 253, by rounding


@pytest.mark.parametrize(
    ("family", "attention"),
    [*((one, "eager") for one in PROBED), ("Llama (grouped queries)", "sdpa"), ("BERT (all keys)", "sdpa")],
)
def test_a_long_probe_gives_the_measures_of_whole_patterns(
    family: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, long = both(monkeypatch, tiny_model(*MODELS[family], attention), {"input_ids": ids()})
    check(whole, long)
    table = long.table()
    assert table.loc[table["step"] == 1, "moved"].gt(0.001).all()
    is_known = table.drop(columns=["moved", "padding", "induction"]).notna().to_numpy()
    assert is_known.all()


def test_no_pattern_of_a_long_probe_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    measure = health_probe.read_long
    monkeypatch.setattr(health_probe, "LONG", N - 1)

    def spied(*args: Any) -> Any:
        found = measure(*args)
        assert found is not None
        names.extend(found[0].trace.activations)
        return found

    monkeypatch.setattr("xformer.integrations.attention_health.read_long", spied)
    probed(tiny_model("LlamaForCausalLM", LONG), {"input_ids": ids()})
    assert {name.rpartition(".")[2] for name in names} == {"z", "resid_post", "post", "logits"}


def test_a_long_probe_with_padding_gives_the_measures_of_whole_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    for at in (slice(0, 21), slice(N - 21, N)):
        mask = torch.ones(1, N, dtype=torch.long)
        mask[0, at] = 0
        inputs = {"input_ids": ids(), "attention_mask": mask}
        whole, long = both(monkeypatch, tiny_model("LlamaForCausalLM", LONG), inputs)
        check(whole, long)
        assert long.table()["padding"].eq(0).all()
        monkeypatch.undo()


def twins(model: Any) -> None:
    weight = model.model.layers[1].self_attn.q_proj.weight.data
    weight[4:8] = weight[:4]  # heads 0 and 1 share their keys


def nan(model: Any) -> None:
    model.model.layers[1].self_attn.q_proj.weight.data[5] = torch.nan


def large(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.weight.data.mul_(100.0)


def leaking(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda _, args, out: out + 0.5 * out.mean(1, keepdim=True))


@pytest.mark.parametrize(
    ("fault", "rule"), [(twins, "identical_heads"), (nan, "nan"), (large, "score_explosion"), (leaking, "leak")]
)
def test_a_long_probe_raises_the_alarms_of_whole_patterns(
    fault: Callable[[Any], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, long = both(monkeypatch, tiny_model("LlamaForCausalLM", LONG), {"input_ids": ids()}, fault)
    check(whole, long)
    assert rule in {alarm.rule for alarm in long.alarms}
    healthy = probed(tiny_model("LlamaForCausalLM", LONG), {"input_ids": ids()})
    assert rule not in {alarm.rule for alarm in healthy.alarms}
