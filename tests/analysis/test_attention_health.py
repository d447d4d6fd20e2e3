"""Attention health measures, each compared with its equation written as loops over single numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from xformer.analysis.attention_health import LAYER_MEASURES, attention_modules, gradient_norms, measure, score_factor
from xformer.config import ModelConfig
from xformer.model import Transformer

BATCH, HEADS, POS = 2, 3, 11
PATH = "decoder.1.attn"


def reading_of(seed: int = 0, n_pads: int = 0) -> Any:
    """Run a small random decoder whose attention is not uniform; the last `n_pads` tokens of input 1 are padding."""
    torch.manual_seed(seed)
    config = ModelConfig(
        architecture="decoder", vocab_size=19, d_model=13, n_layers=2, n_heads=HEADS, d_head=5, d_value=7, d_ff=17,
        max_len=POS, norm="pre", positions="learned",
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    reading = xformer.read(model, torch.randint(1, 19, (BATCH, POS)))
    if n_pads:
        valid = torch.ones(BATCH, POS, dtype=torch.bool)
        valid[1, POS - n_pads :] = False
        return replace(reading, trace=replace(reading.trace, valid=valid))
    return reading


def rows(reading: Any, head: int) -> list[tuple[int, int, list[float], list[float], int]]:
    """Return (batch, query, p, s, number of permitted keys) of each query that is a token."""
    get = reading.trace.activations
    pattern, scores, mask = (get[f"{PATH}.{name}"] for name in ("pattern", "scores", "mask"))
    valid = reading.trace.valid
    n = mask.expand(pattern.shape).sum(dim=-1)
    return [
        (b, q, pattern[b, head, q].tolist(), scores[b, head, q].tolist(), int(n[b, head, q]))
        for b in range(BATCH)
        for q in range(POS)
        if valid is None or bool(valid[b, q])
    ]


def mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def entropy(p: list[float], n: int) -> float:
    return -sum(w * math.log(w) for w in p if w > 0) / math.log(n)


def quantile(values: list[float], q: float) -> float:
    """Interpolate linearly between the two nearest of the sorted values."""
    ordered, at = sorted(values), q * (len(values) - 1)
    low = math.floor(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def spread(s: list[float]) -> float:
    seen = [x for x in s if x > -math.inf]
    return math.sqrt(mean(x * x for x in seen) - mean(seen) ** 2)


REFERENCES: dict[str, Any] = {
    "score_max": lambda found: max(max(s) for _, _, _, s, _ in found),
    "score_spread": lambda found: mean(spread(s) for _, _, _, s, n in found if n > 1),
    "entropy_p05": lambda found: quantile([entropy(p, n) for _, _, p, _, n in found if n > 1], 0.05),
    "entropy_p50": lambda found: quantile([entropy(p, n) for _, _, p, _, n in found if n > 1], 0.5),
    "entropy_p95": lambda found: quantile([entropy(p, n) for _, _, p, _, n in found if n > 1], 0.95),
    "first_token": lambda found: mean(p[0] for _, q, p, _, _ in found if q > 0),
    "diagonal": lambda found: mean(p[q] for _, q, p, _, _ in found),
    "previous": lambda found: mean(p[q - 1] for _, q, p, _, _ in found if q > 0),
    "future": lambda found: mean(sum(p[q + 1 :]) for _, q, p, _, _ in found),
}


@pytest.mark.parametrize("n_pads", [0, 4])
def test_each_head_measure_matches_its_equation(n_pads: int) -> None:
    reading = reading_of(n_pads=n_pads)
    found = measure(reading).heads[PATH]
    for name, equation in REFERENCES.items():
        wanted = [equation(rows(reading, head)) for head in range(HEADS)]
        assert found[name].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-6), name


def test_attention_to_padding_is_measured_if_there_is_padding() -> None:
    reading = reading_of(n_pads=4)
    padding = measure(reading).heads[PATH]["padding"]
    for head in range(HEADS):
        wanted = mean(sum(p[POS - 4 :]) if b == 1 else 0.0 for b, _, p, _, _ in rows(reading, head))
        assert float(padding[head]) == pytest.approx(wanted, abs=1e-6)
    assert measure(reading_of()).heads[PATH]["padding"].isnan().all()


def test_the_output_norm_matches_what_a_head_adds_to_the_stream() -> None:
    reading = reading_of()
    z, weight = reading[f"{PATH}.z"], reading.adapter.weights.projection(PATH).weight.unflatten(0, (HEADS, 7))
    added = torch.einsum("bhqv,hvd->bhqd", z, weight).norm(dim=-1).mean(dim=(0, 2))
    torch.testing.assert_close(measure(reading).heads[PATH]["output_norm"], added.detach(), rtol=1e-4, atol=1e-5)


def test_distances_to_another_head_and_to_the_previous_run() -> None:
    reading, before = reading_of(), reading_of(seed=1)
    found = measure(reading, before.trace.patterns()).heads[PATH]
    p, old = reading[f"{PATH}.pattern"], before[f"{PATH}.pattern"]
    moved = ((p - old).abs().sum(-1) / 2).mean(dim=(0, 2))
    torch.testing.assert_close(found["moved"], moved, rtol=1e-4, atol=1e-5)
    for head in range(HEADS):
        others = [float(((p[:, head] - p[:, one]).abs().sum(-1) / 2).mean()) for one in range(HEADS) if one != head]
        assert float(found["twin_distance"][head]) == pytest.approx(min(others), rel=1e-4)
    assert measure(reading).heads[PATH]["moved"].isnan().all()


def test_layer_measures_match_their_equations() -> None:
    reading = reading_of()
    found = measure(reading).layers[PATH]
    stream, neurons = reading["decoder.1.resid_post"], reading["decoder.1.ffn.post"].flatten(0, 1)
    assert found["stream_norm"] == pytest.approx(float(stream.norm(dim=-1).mean()), rel=1e-5)
    sizes = sorted(stream.abs().flatten().tolist())
    assert found["activation_ratio"] == pytest.approx(sizes[-1] / sizes[(len(sizes) - 1) // 2], rel=1e-5)
    inactive = [bool((neurons[:, one].abs() <= 1e-3 * neurons.square().mean().sqrt()).all()) for one in range(17)]
    assert found["inactive_neurons"] == pytest.approx(mean(map(float, inactive)))
    assert found["score_factor"] == pytest.approx(1.0, rel=1e-5)
    assert all(math.isnan(found[name]) for name in LAYER_MEASURES if name.startswith("grad"))


@pytest.mark.parametrize(("factor", "noise", "wanted"), [(1.0, 0.0, 5**0.5), (5**-0.5, 0.0, 1.0), (0.3, 0.1, math.nan)])
def test_the_score_factor_is_nan_unless_scores_are_multiples_of_q_k(factor: float, noise: float, wanted: float) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, BATCH, HEADS, POS, 5).unbind()
    scores = q @ k.mT * factor + noise * torch.randn(BATCH, HEADS, POS, POS)
    found = score_factor(scores, q, k, torch.ones(POS, POS, dtype=torch.bool).tril())
    assert found == pytest.approx(wanted, rel=1e-4, nan_ok=True)
    assert math.isnan(score_factor(None, q, k, torch.ones(POS, POS, dtype=torch.bool)))


def test_quantiles_propagate_nan() -> None:
    reading = reading_of()
    reading.trace.activations[f"{PATH}.pattern"][0, 1, 4, 2] = math.nan
    assert measure(reading).heads[PATH]["entropy_p50"].isnan().tolist() == [False, True, False]


class Named(nn.Module):
    """A module with one attention submodule that has matrices of given names and shapes [out, in]."""

    def __init__(self, **shapes: tuple[int, int]) -> None:
        super().__init__()
        self.attention = nn.Module()
        for name, shape in shapes.items():
            self.attention.register_parameter(name, nn.Parameter(torch.randn(shape)))


CASES: dict[str, tuple[dict[str, tuple[int, int]], dict[str, tuple[str, slice]]]] = {
    "separate": (
        {"q_proj": (6, 13), "k_proj": (6, 13), "v_proj": (6, 13), "o_proj": (13, 6)},
        {letter: (f"{letter}_proj", slice(None)) for letter in "qkvo"},
    ),
    "one matrix": (
        {"in_proj_weight": (21, 5), "out_proj": (5, 7)},
        {"q": ("in_proj_weight", slice(0, 7)), "k": ("in_proj_weight", slice(7, 14)), "v": ("in_proj_weight", slice(14, 21)),
         "o": ("out_proj", slice(None))},
    ),
    "one matrix, grouped": (
        {"qkv": (17, 5), "out": (5, 11)},
        {"q": ("qkv", slice(0, 11)), "k": ("qkv", slice(11, 14)), "v": ("qkv", slice(14, 17)), "o": ("out", slice(None))},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradient_norms_are_split_by_projection(name: str) -> None:
    shapes, parts = CASES[name]
    model = Named(**shapes)
    assert gradient_norms(attention_modules(model)) == []
    weights: dict[str, Tensor] = dict(model.attention.named_parameters())
    for weight in weights.values():
        weight.grad = torch.randn_like(weight)
    [found] = gradient_norms(attention_modules(model))
    for letter, (weight_name, rows_of) in parts.items():
        gradient = weights[weight_name].grad
        assert gradient is not None
        assert found[f"grad_{letter}"] == pytest.approx(float(gradient[rows_of].norm()), rel=1e-5)
