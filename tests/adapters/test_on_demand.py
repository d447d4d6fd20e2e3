"""A large run keeps few activations, and recomputed ones equal those of a run that keeps all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.adapters import huggingface
from xformer.adapters.attention import MaskLimits, Terms
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.on_demand import OnDemand, ReducedMask, attend_and_reduce, reduced
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
    kept = reduced({"pattern": pattern, "z": torch.ones(1, 3, 13, 4)}, ReducedMask.of(mask, 5), 5).thumbnail
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


@pytest.mark.parametrize("added", [1, 4])
def test_heads_one_by_one_give_what_all_heads_give_together(added: int) -> None:
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, 13, 6, generator=draw) for heads in (4, 2, 2))
    v[:, 1] = 0  # heads 2 and 3 add nothing
    mask = torch.zeros(1, added, 13, 13).masked_fill(torch.ones(13, 13).triu(1).bool(), torch.finfo(torch.float32).min)
    mask[:, -1, 5] -= 1.0
    terms = Terms(0.5, added=mask)
    limits = MaskLimits.of(terms, 13, 13, q.device)
    z, names, apart = attend_and_reduce(q, k, v, terms, limits, SILENT, 5)
    z_together, names_together, together = attend_and_reduce(q, k, v, terms, limits, Tape(keep=()).at(""), 5)
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
