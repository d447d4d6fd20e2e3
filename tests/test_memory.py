"""Estimates of memory are close to the measurements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import xformer
from tests.analysis.peak_memory import peaks_of
from tests.layers.reference import ARCHITECTURES, build
from xformer import memory
from xformer.analysis.images import predict_test_images
from xformer.counting import n_parameters
from xformer.errors import InputError
from xformer.memory import check_analysis, check_fits, needed_bytes, peak_bytes, rows_that_fit, trace_bytes
from xformer.model import Transformer
from xformer.presets import preset
from xformer.reading import from_trace
from xformer.trace import record

SIZES = [
    {"n_heads": 2, "d_head": 5, "d_ff": 67},
    {"n_heads": 13, "d_head": 2, "d_ff": 0},
    {"n_heads": 3, "d_head": 5, "d_ff": 17, "n_layers": 5, "positions": "alibi"},
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_estimate_is_close_to_the_size_of_the_trace(architecture: str, size: dict) -> None:
    model: Transformer = build(architecture=architecture, max_len=64, **size)
    source = torch.ones(2, 61, dtype=torch.int64)
    target = torch.ones(2, 37, dtype=torch.int64) if architecture == "encoder-decoder" else None
    taken = record(model, source, target).n_bytes
    estimate = trace_bytes(model.config, 61, None if target is None else 37, batch=2)
    assert 0.75 < estimate / taken < 1.6


def test_a_small_model_with_many_heads_takes_gigabytes() -> None:
    config = build(n_layers=64, n_heads=256, d_head=1, d_value=1, d_model=2, d_ff=0, max_len=80).config
    assert 4 * n_parameters(config) < 1_000_000
    assert 0.7e9 < trace_bytes(config, 80) < 1.5e9
    with pytest.raises(InputError, match=r"takes about [\d.]+ [GM]B of memory \(16,384 heads × 80² cells\)"):
        check_fits(config, 80, allowed_bytes=500_000_000)
    check_fits(config, 8, allowed_bytes=500_000_000)
    assert peak_bytes(config, 80) > trace_bytes(config, 80)


def test_the_batch_size_depends_on_the_memory_of_a_row() -> None:
    shipped = preset("digits").model
    assert rows_that_fit(shipped, shipped.max_len) >= 500  # all in one batch, so that results stay bit-identical
    wide = shipped.replace(n_layers=32, n_heads=256, d_head=1, d_value=1, d_model=2, d_ff=50_000)
    assert 1 <= rows_that_fit(wide, wide.max_len) < 50
    assert rows_that_fit(wide.replace(d_ff=131_072), 65_000) == 1


def test_predictions_for_test_images_do_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Transformer(preset("digits").model).eval()
    whole = predict_test_images(model)
    monkeypatch.setattr(memory, "LAYER_BYTES", 1)
    parts = predict_test_images(model)
    assert whole["predicted"].tolist() == parts["predicted"].tolist()
    assert torch.allclose(torch.tensor(whole["probability"]), torch.tensor(parts["probability"]), atol=1e-6)


RUN = """
c = xformer.ModelConfig(architecture="decoder", vocab_size={vocab}, d_model=8, n_layers=3, n_heads=1, d_ff={neurons},
                        max_len=2000, causal=True)
m = xformer.Transformer(c).eval()
r, small = (xformer.read(m, torch.arange(n) % {vocab}) for n in ({n}, 9))
from xformer.analysis.feed_forward import direct_logit_effect
from xformer.reading import from_trace
analyses = dict(attention=lambda r: analysis.attention(r, layer=0, head=0), cosines=analysis.cosines,
                rollout=analysis.rollout, direct_logit_effect=lambda r: direct_logit_effect(r, 0),
                probabilities=lambda r: answered(r).probabilities)
def answered(r):
    return from_trace(m, r.trace, [token % 5 for token in range(len(r.ids()))])
analyses["{name}"](small)  # imports happen before the measurement
"""


MEASURED = {
    "attention": {"n": 1200, "vocab": 11, "neurons": 8},
    "rollout": {"n": 1200, "vocab": 11, "neurons": 8},
    "direct_logit_effect": {"n": 9, "vocab": 9_000, "neurons": 2_500},
    "probabilities": {"n": 1_000, "vocab": 20_000, "neurons": 8},
}
"""The sizes for which each analysis is measured."""
BOUNDED = {
    # 2.5 GB in an earlier version
    "waves of 1,500 numbers": ("number_waves.spectrum_of(torch.randn(1500, 16))", "", 64e6),
    # 650 MB in an earlier version
    "order of 9,000 tokens": ("embeddings.numbers_in_order(x)", "x = torch.randn(9_000, 16)", 150e6),
    # all of them take 160 MB
    "predictions": (
        "(r.predicted, r.probability, r.probability_of_answer)",
        RUN.format(name="probabilities", **MEASURED["probabilities"]) + "r = answered(r)",
        100e6,
    ),
}
"""Other analyses: the expression, the code before it, and its memory limit in bytes."""


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """The bytes that each analysis takes."""
    cases = {name: (f"analyses['{name}'](r)", RUN.format(name=name, **sizes)) for name, sizes in MEASURED.items()}
    cases |= {name: (expression, before) for name, (expression, before, _) in BOUNDED.items()}
    return dict(zip(cases, peaks_of(list(cases.values())), strict=True))


@pytest.mark.parametrize("name", MEASURED)
def test_the_estimate_for_an_analysis_is_close_to_the_measured_peak(name: str, peaks: dict[str, int]) -> None:
    assert 0.5 < needed_bytes(name, **MEASURED[name]) / peaks[name] < 1.5


def test_an_analysis_over_the_memory_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    check_analysis("cosines", "name some positions", n=2_048)
    with pytest.raises(InputError, match=r"^cosines takes about 1.0 GB of memory here, but 500.0 MB are allowed; name"):
        check_analysis("cosines", "name some positions", n=3_100)
    model = build(architecture="decoder", n_heads=2, max_len=64)
    reading = xformer.read(model, torch.arange(40) % 5)
    monkeypatch.setattr(memory, "ANALYSIS_BYTES", 3_000)
    for call in (
        lambda: xformer.analysis.attention(reading, layer=0, head=0),
        lambda: xformer.analysis.cosines(reading),
        lambda: from_trace(model, reading.trace, [1] * 40).probabilities,
    ):
        with pytest.raises(InputError, match="are allowed; "):
            call()
    assert len(xformer.analysis.attention(reading, layer=0, head=0, around=(5, 5))) > 100
    assert len(xformer.analysis.cosines(reading, positions=[1, 2])) == 4


@pytest.mark.parametrize("name", BOUNDED)
def test_the_peak_memory_of_large_analyses_is_bounded(name: str, peaks: dict[str, int]) -> None:
    assert peaks[name] < BOUNDED[name][2]


def test_predictions_in_parts_equal_predictions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(architecture="decoder", max_len=64)
    monkeypatch.setattr("xformer.reading.MAX_CELLS", 3 * model.config.vocab_size)
    reading = from_trace(model, record(model, torch.arange(41)[None] % 5), [at % 3 for at in range(41)])
    assert len(reading.target_positions) == 41
    p = reading.logits[0, list(reading.target_positions)].softmax(dim=-1)  # [target position, vocab]
    assert reading.predicted == tuple(p.argmax(dim=-1).tolist())
    assert reading.probability == tuple(p.amax(dim=-1).tolist())
    assert reading.probability_of_answer == tuple(p[at, token].item() for at, token in enumerate(reading.answer))


def test_the_total_memory_is_known_without_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "missing")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    assert memory.machine_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(os, "sysconf", lambda name: int("unknown"))
    assert memory.machine_bytes() == memory.UNKNOWN_BYTES
