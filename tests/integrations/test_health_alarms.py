"""Each alarm rule is raised in one case and not in a similar healthy case."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xformer.analysis.attention_health import HEAD_MEASURES, LAYER_MEASURES
from xformer.integrations.health_alarms import RULES, Measurement, Setting, TrainingHistory, raised, thresholds_of

PATH, HEADS = "decoder.2.attn", 3
HEALTHY = {
    "score_max": [3.0, 2.0, 4.0], "score_spread": [0.5, 0.4, 0.7], "entropy_p05": 0.5, "entropy_p50": 0.8, "entropy_p95": 0.9,
    "first_token": 0.2, "diagonal": 0.2, "previous": 0.2, "padding": 0.0, "future": 0.0, "induction": 0.1,
    "output_norm": [0.9, 1.1, 1.0], "twin_distance": 0.3, "moved": 0.05,
}  # fmt: skip
LAYER = {
    "activation_ratio": 8.0, "inactive_neurons": 0.1, "stream_norm": 5.0, "score_factor": 1.0, "grad_q": 0.1, "grad_k": 0.1,
    "grad_v": 0.3, "grad_o": 0.3,
}  # fmt: skip


def probe(step: int, loss: float = math.nan, also: Any = None, **changed: Any) -> Measurement:
    """A healthy probe of one layer with three heads, with some measures and, in `also`, some other fields changed."""
    heads = {
        name: np.array(np.broadcast_to(changed.get(name, HEALTHY[name]), (HEADS,)), dtype=float) for name in HEALTHY
    }
    return Measurement(
        step, {PATH: heads}, {PATH: {name: changed.get(name, LAYER[name]) for name in LAYER}}, loss, **(also or {})
    )


def state(*probes: Measurement, losses: Any = None, **setting: Any) -> TrainingHistory:
    """A state with these probes. By default, the loss falls from 4 by 1% per step."""
    known = losses if losses is not None else [(step, 4.0 * 0.99**step) for step in range(probes[-1].step + 1)]
    return TrainingHistory(
        probes, known, Setting(**{"is_causal": {PATH: True}, "d_head": {PATH: 25}, "n_outputs": 53} | setting)
    )


def flat(n: int, level: float = 4.0) -> list[tuple[int, float]]:
    return [(step, level) for step in range(n)]


def spike(height: float) -> list[tuple[int, float]]:
    """Losses with a little noise around 2, raised by `height` from step 92 on."""
    return [(s, 2.0 + 0.02 * (-1) ** s + (height if s >= 92 else 0.0)) for s in range(101)]


CASES: dict[str, tuple[str, TrainingHistory, TrainingHistory, int | None]] = {
    "a NaN": ("nan", state(probe(0), probe(10, entropy_p50=[0.8, math.nan, 0.8])), state(probe(0), probe(10)), 1),
    "a NaN that begins elsewhere": (
        "nan", state(probe(0), probe(10, entropy_p50=math.nan, also={"note": "It is there.", "note_layer": ""})),
        state(probe(0), probe(10)), None,
    ),
    "a leak outside attention": (
        "leak", state(probe(0, also={"leak": (PATH, "decoder.2.resid_mid", 2e-4)})),
        state(probe(0, also={"leak": (PATH, "decoder.2.resid_mid", 9e-5)})), None,
    ),
    "labels without a shift": (
        "unshifted_labels", state(probe(0, 3.0, {"own_loss": 1.4}), losses=flat(5, 1.5)),
        state(probe(0, 3.0, {"own_loss": 1.4}), losses=flat(5, 2.5)), None,
    ),
    "labels without a shift or losses": (
        "unshifted_labels", state(probe(0, 3.0, {"own_loss": 3.0}), probe(9, 3.0, {"own_loss": 1.4}), losses=[]),
        state(probe(0, 3.0, {"own_loss": 1.4}), probe(9, 3.0, {"own_loss": 1.4}), losses=[]), None,
    ),
    "a loss that is NaN": ("nan", state(probe(0), losses=[(0, 2.0), (1, math.nan)]), state(probe(0)), None),
    "a leak": ("leak", state(probe(0, future=[0, 2e-4, 1e-4])), state(probe(0, future=9e-5)), 1),
    "no leak in an encoder": (
        "leak", state(probe(0, future=0.3)), state(probe(0, future=0.3), is_causal={PATH: False}), 0,
    ),
    "padding": ("padding", state(probe(0, padding=[0, 0, 2e-3])), state(probe(0, padding=9e-4)), 2),
    "large scores": ("score_explosion", state(probe(0, score_max=[5, 101, 7])), state(probe(0, score_max=99.0)), 1),
    "no factor": ("unscaled", state(probe(0, score_factor=5.02)), state(probe(0, score_factor=4.9)), None),
    "a factor of the family": (
        "unscaled", state(probe(0, score_factor=5.0)), state(probe(0, score_factor=5.0), has_own_scale=True), None,
    ),
    "a sharp start": (
        "saturated_at_start", state(probe(0, loss=4.0, score_spread=1.6)), state(probe(0, loss=3.0, score_spread=1.6)), None,
    ),
    "a collapse": (
        "entropy_collapse", state(probe(0), probe(10, entropy_p50=[0.05, 0.09, 0.01]), losses=flat(11)),
        state(probe(0), probe(10, entropy_p50=[0.05, 0.09, 0.01])), 2,
    ),
    "sharp heads and an even one": (
        "entropy_collapse", state(probe(0), probe(10, entropy_p50=0.05), losses=flat(11)),
        state(probe(0), probe(10, entropy_p50=[0.05, 0.5, 0.01]), losses=flat(11)), 0,
    ),
    "a head that dies": (
        "dead_head", state(probe(0), probe(10, output_norm=[1.0, 9e-4, 1.0])),
        state(probe(0), probe(10, output_norm=[1.0, 2e-3, 1.0])), 1,
    ),
    "a head that never lived": (
        "dead_head", state(probe(0), probe(10, output_norm=[1.0, 0.0, 1.0])),
        state(probe(0, output_norm=[1.0, 0.0, 1.0]), probe(10, output_norm=[1.0, 0.0, 1.0])), 1,
    ),
    "twins": (
        "identical_heads", state(probe(0, twin_distance=[0.3, 1e-6, 1e-6], score_max=2.0, score_spread=0.5)),
        state(probe(0, twin_distance=[0.3, 1e-6, 1e-6], score_max=[2.0, 2.0, 2.1], score_spread=0.5)), 1,
    ),
    "even attention of fresh weights": (
        "identical_heads", state(probe(0, twin_distance=0.0, score_max=1.0, score_spread=0.01)),
        state(probe(0, twin_distance=0.0, score_max=0.0, score_spread=0.0)), 0,
    ),
    "a frozen matrix": (
        "frozen_projection", state(probe(0, grad_k=0.0), probe(10, grad_k=0.0)), state(probe(0, grad_k=0.0), probe(10)), None,
    ),
    "adapters": (
        "frozen_projection", state(probe(0, grad_k=0.0), probe(10, grad_k=0.0)),
        state(probe(0, grad_k=0.0), probe(10, grad_k=0.0), has_adapters=True), None,
    ),
    "a growing stream": (
        "stream_explosion", state(probe(0), probe(10, stream_norm=51.0)), state(probe(0), probe(10, stream_norm=49.0)), None,
    ),
    "unstable": (
        "unstable_attention", state(probe(0), probe(10, moved=0.3), probe(20, moved=0.3), losses=flat(21)),
        state(probe(0), probe(10, moved=0.3), probe(20, moved=0.3)), None,
    ),
    "stalled": (
        "stalled_attention",
        state(probe(0), probe(10), probe(20, grad_q=9e-5, grad_k=9e-5), losses=flat(21)),
        state(probe(0), probe(10), probe(20, grad_q=9e-5, grad_k=9e-5), losses=[*flat(10), *flat(21, 0.5)[10:]]), None,
    ),
    "dead neurons": (
        "dead_neurons", state(probe(0), probe(10, inactive_neurons=0.95)),
        state(probe(0), probe(10, inactive_neurons=0.85)), None,
    ),
    "a spike": (
        "loss_spike", state(probe(90), probe(100, score_max=[3.0, 20.0, 4.0]), losses=spike(0.5)),
        state(probe(90), probe(100), losses=spike(0.1)), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule_is_raised_for_the_faulty_state_and_not_for_the_healthy_one(name: str) -> None:
    rule, faulty, healthy, head = CASES[name]
    only = {rule: RULES[rule].threshold}
    [alarm] = raised(faulty, only, set())
    assert (alarm.rule, alarm.step, alarm.head) == (rule, faulty.now.step, head)
    assert alarm.reason.endswith((".", "?"))
    assert alarm.layer in (PATH, "")
    assert raised(healthy, only, set()) == []


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES.values()} == set(RULES)
    assert all(rule.condition and rule.reason for rule in RULES.values())


def test_a_healthy_probe_raises_nothing() -> None:
    found = state(probe(0), probe(10), probe(20))
    assert set(HEALTHY) == set(HEAD_MEASURES)
    assert set(LAYER) == set(LAYER_MEASURES)
    assert raised(found, thresholds_of(None), set()) == []


def test_unknown_measures_raise_nothing() -> None:
    unknown = dict.fromkeys([*HEALTHY, *LAYER], math.nan)
    found = state(probe(0, **unknown), probe(10, **unknown), probe(20, **unknown), losses=[])
    assert raised(found, thresholds_of(None), set()) == []


def test_the_reason_of_a_loss_spike_names_the_largest_change_before_it() -> None:
    [alarm] = raised(CASES["a spike"][1], {"loss_spike": 5.0}, set())
    change = "The largest change before it is score_max of decoder.2.attn, head 1: 2 → 20."
    assert alarm.reason == f"The loss rose from 2 to 2.48 at step 92. {change}"


def test_thresholds_can_be_changed_and_rules_turned_off() -> None:
    found = thresholds_of({"leak": None, "score_explosion": 50.0})
    assert "leak" not in found
    assert found["score_explosion"] == 50.0
