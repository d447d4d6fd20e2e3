"""A large run keeps few activations, and recomputed ones equal those of a run that keeps all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.adapters import attention, huggingface
from xformer.adapters.attention import MaskLimits, Terms
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.on_demand import OnDemand, ReducedMask, attend_and_reduce, blocks, reduced
from xformer.tape import SILENT, Tape
from xformer.viz.packing import thumbnail_of

TEXT = "the cat sat on the mat and the dog sat on the bird"


def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "LARGE_BYTES", 0)
    monkeypatch.setattr(huggingface, "KEPT_BYTES", 0)


@pytest.mark.parametrize(("family", "edits"), [("Gemma2", ""), ("GPT-OSS", "changed"), ("T5", "changed")])
def test_recomputed_activations_equal_recorded_ones(family: str, edits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HuggingFaceModel.open(FAMILIES[family].make(), tokenizer(), family)
    path = model.shape.attention[0].path
    edits = edits and f"ablate:{path}.3,cut:{path}.*.5-1"
    text = f"{TEXT} >> a bird flew" if model.shape.is_encoder_decoder else TEXT
    whole = xformer.read(model, text, edits=edits)
    assert type(whole.trace.activations) is dict
    as_if_large(monkeypatch)
    large = xformer.read(model, text, edits=edits)
    assert isinstance(large.trace.activations, OnDemand)
    assert list(large) == list(whole)
    for name in whole:
        assert torch.allclose(large[name].float(), whole[name].float(), rtol=0, atol=1e-5), name
        if name.endswith((".scores", ".mask", ".pattern", ".z")):  # the same arithmetic
            assert torch.equal(large[name], whole[name]), name
    held = sum(tensor.numel() for tensor in xformer.read(model, text).trace.activations.held())  # type: ignore[attr-defined]
    assert held < sum(tensor.numel() for tensor in whole.trace.activations.values())


def test_a_thumbnail_cell_is_the_largest_weight_with_and_without_the_first_key() -> None:
    pattern = torch.rand(1, 3, 13, 13, generator=torch.Generator().manual_seed(0)).tril()
    pattern[..., 0] = 5
    mask = torch.ones(1, 1, 13, 13, dtype=torch.bool).tril().expand(1, 3, 13, 13)
    size = (3, 3)
    kept = reduced(*blocks(pattern[0], size), torch.ones(3, 13, 4), ReducedMask.of(mask, size), 13).thumbnail
    of_all = thumbnail_of(pattern[0].numpy(), mask[0].numpy(), 5)
    for one, other in zip((kept.planes, kept.rest), (of_all.planes, of_all.rest), strict=True):
        np.testing.assert_allclose(one.astype(int), other.astype(int), rtol=0, atol=1)
    np.testing.assert_allclose(kept.peaks, of_all.peaks)
    np.testing.assert_allclose(kept.rest_peaks, pattern[0, :, :, 1:].amax(dim=(1, 2)).numpy(), rtol=1e-6)


@pytest.mark.parametrize(("family", "words"), [("Llama", 15), ("BERT", 3), ("T5", 15)])
def test_the_memory_estimate_is_close_to_the_recorded_size(family: str, words: int) -> None:
    model = HuggingFaceModel.open(FAMILIES[family].make(), tokenizer(), family)
    example = model.to_example("the cat sat " * words + (">> a bird flew" if model.shape.is_encoder_decoder else ""))
    assert 0.75 < model.recording_bytes(example) / model.record(example).n_bytes < 1.4


CAUSAL = torch.ones(13, 13).tril().bool()
MASKS = {
    "causal": CAUSAL,
    "window": CAUSAL & ~CAUSAL.roll(4, 0).tril(-4),
    "padding at the start": CAUSAL & (torch.arange(13) > 3),  # the first queries have no permitted key
    "full": torch.ones(13, 13).bool(),
    "padding at the end": torch.arange(13)[None] < 9,
}


@pytest.mark.parametrize("allowed", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(("most", "biases"), [(5, 0), (5, 1), (4, 4), (13, 1)])
def test_parts_of_a_pattern_give_what_the_whole_gives(
    allowed: torch.Tensor, most: int, biases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "QUERIES", 3)
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, 13, 6, generator=draw) for heads in (4, 2, 2))
    v[:, 1] = 0  # heads 2 and 3 add nothing
    mask = torch.zeros(1, max(1, biases), *allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    if biases:
        mask = torch.where(allowed, mask + torch.randn(mask.shape, generator=draw), mask)
    terms = Terms(0.5, added=mask)
    limits = MaskLimits.of(terms, 13, 13, q.device)
    z, names, apart = attend_and_reduce(q, k, v, terms, limits, SILENT, most)
    z_together, names_together, together = attend_and_reduce(q, k, v, terms, limits, Tape(keep=()).at(""), most)
    assert torch.allclose(z, z_together, rtol=0, atol=1e-6)
    assert names == names_together
    assert (apart.shape, apart.ablated, apart.is_masked) == (together.shape, together.ablated, together.is_masked)
    assert apart.ablated == (2, 3)
    assert apart.z_size == pytest.approx(together.z_size)
    for name in ("planes", "peaks", "rest", "rest_peaks"):
        one, two = getattr(apart.thumbnail, name), getattr(together.thumbnail, name)
        atol = 1 if one.dtype == np.uint8 else 1e-6  # a code may be rounded to its neighbour
        np.testing.assert_allclose(one.astype(float), two.astype(float), rtol=1e-5, atol=atol, err_msg=name)
        assert one.shape == two.shape


def test_a_query_is_computed_with_the_keys_that_it_may_attend_to() -> None:
    n = 1100
    distance = torch.arange(n)[:, None] - torch.arange(n)
    terms = Terms(1.0, allowed=(distance >= 0) & (distance < 100))
    parts = list(MaskLimits.of(terms, n, n, torch.device("cpu")).parts((10, 10)))
    assert [(q.start, q.stop) for q, _, _ in parts] == [(0, 250), (250, 500), (500, 750), (750, 1000), (1000, 1100)]
    assert [(k.start, k.stop) for _, k, _ in parts] == [(0, 250), (150, 500), (400, 750), (650, 1000), (900, 1100)]
