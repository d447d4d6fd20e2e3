"""Positions, compared with closed forms and with the model's own layers; prime sizes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.adapters.families import FAMILIES
from tests.analysis.test_residual import reading_of
from tests.training.tiny import random_model
from xformer import analysis
from xformer.analysis.attention_patterns import looks_back_only
from xformer.analysis.positions import (
    added_positions,
    by_offset,
    dot_products,
    found_positions,
    order_test,
    position_offsets,
    position_values,
    reversed_patches,
    wavelengths,
)
from xformer.edits import Edit, set_causal, zero_positions
from xformer.errors import InputError, UnavailableError
from xformer.model import Transformer
from xformer.positions.alibi import alibi_slopes
from xformer.positions.rotary import rotary_angles, rotate
from xformer.positions.sinusoidal import sinusoidal
from xformer.presets import preset
from xformer.reading import Reading, from_trace
from xformer.trace import record

TOKENS = torch.tensor([[3, 7, 1, 7, 2, 5, 9]])
N = 7


def ran(model: Transformer, edits: list[Edit] | None = None, tokens: Tensor = TOKENS) -> Reading:
    target = tokens[:, :3] if model.config.architecture == "encoder-decoder" else None
    return from_trace(model, record(model, tokens, target, edits=edits or []))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("encoder", "mirror"), ("decoder", "sinusoidal"), ("decoder", "learned"), ("decoder", "t5")],
)
def test_added_positions_match_a_run(architecture: str, kind: str) -> None:
    run = ran(random_model(architecture, positions=kind))
    assert ("pos_embed" in run) == (kind in ("sinusoidal", "learned", "mirror"))
    if "pos_embed" not in run:
        with pytest.raises(InputError, match="add no vectors that this model has"):
            added_positions(run)
        return
    for n in (N, 4):  # a kind that counts from both ends uses the length of the input
        assert added_positions(run, n).equal(run["pos_embed"][:n])
    table = analysis.position_values(run, positions=[2, 5])
    assert table["value"].tolist() == run["pos_embed"][[2, 5]].double().flatten().tolist()
    assert list(zip(table["position"], table["dimension"], strict=True)) == [(p, d) for p in (2, 5) for d in range(13)]


def test_fixed_positions_are_available_for_any_model_but_learned_ones_are_not() -> None:
    run = ran(random_model("encoder", positions="rotary"))
    assert added_positions(run, 5, kind="sinusoidal").equal(sinusoidal(5, 13))
    for kind in ("learned", "mirror", "rotary", "alibi"):
        with pytest.raises(InputError, match="add no vectors that this model has"):
            added_positions(run, 5, kind=kind)
    with pytest.raises(InputError, match="not learned T5"):
        analysis.position_offsets(run, n=5, kind="t5")


def test_sinusoidal_products_match_the_closed_form_and_depend_only_on_the_offset(float64: None) -> None:
    """sin a sin b + cos a cos b = cos(a − b), so P[i] · P[j] = Σ cos((j − i) ω) for an even d_model."""
    d_model, base = 14, 100.0
    table = by_offset(dot_products(sinusoidal(11, d_model, base)))
    assert table["offset"].tolist() == list(range(-10, 11))
    for row in table.itertuples():
        expected = sum(math.cos(row.offset / base ** (i / d_model)) for i in range(0, d_model, 2))
        assert row.mean == pytest.approx(expected, abs=1e-13)
        assert row.high - row.low < 1e-13
        assert row.pairs == 11 - abs(row.offset)


def test_rotary_products_match_the_closed_form_and_rotated_vectors(float64: None) -> None:
    """The closed form and vectors that are actually rotated give the same products."""
    run = ran(random_model("encoder", positions="rotary", position_base=100.0))
    angles = rotary_angles(torch.arange(N), 10, 100.0)
    turned = rotate(torch.full((1, 1, N, 10), 10**-0.5), angles)[0, 0]  # [pos, d_head]
    by_hand = by_offset(turned @ turned.T)["mean"].tolist()
    for row, product in zip(analysis.position_offsets(run, n=N).itertuples(), by_hand, strict=True):
        expected = sum(math.cos(row.offset / 100.0 ** (2 * m / 10)) for m in range(5)) / 5
        assert (row.mean, product) == pytest.approx((expected, expected), abs=1e-13)
        assert row.high - row.low < 1e-13  # only the offset matters


@pytest.mark.parametrize(("n_heads", "own"), [(3, "learned"), (4, "alibi")])
def test_alibi_biases_match_their_effect_on_a_models_scores(n_heads: int, own: str) -> None:
    slopes = alibi_slopes(n_heads)
    table = analysis.position_offsets(ran(random_model("encoder", positions=own, n_heads=n_heads)), n=N, kind="alibi")
    model = random_model("encoder", positions="alibi", n_heads=n_heads)
    on, off = record(model, TOKENS), record(model, TOKENS, edits=[zero_positions()])
    bias = (on["encoder.0.attn.scores"] - off["encoder.0.attn.scores"])[0]  # [head, query, key]
    assert len(table) == n_heads * (2 * N - 1)
    for row in table.itertuples():
        assert row.bias == pytest.approx(-float(slopes[row.head]) * abs(row.offset), abs=1e-7)
        along = bias[row.head].diagonal(row.offset)
        torch.testing.assert_close(along, torch.full_like(along, row.bias), rtol=0, atol=2e-5)  # scores of size ~30


@pytest.mark.parametrize(("kind", "width"), [("sinusoidal", 14), ("rotary", 10)])
def test_a_wave_makes_one_turn_per_wavelength(kind: str, width: int) -> None:
    config = random_model("encoder", positions=kind, d_model=14, position_base=100.0).config
    waves = wavelengths(config)
    assert len(waves) == width // 2
    assert waves[0].item() == pytest.approx(2 * math.pi, abs=1e-12)
    for pair, wave in enumerate(waves.tolist()):
        assert wave / 100.0 ** (2 * pair / width) == pytest.approx(2 * math.pi, abs=1e-12)  # one full turn


def test_attention_moved_matches_loops() -> None:
    model = random_model("encoder")
    before, after = ran(model), ran(model, [zero_positions()])
    table = analysis.attention_moved(after, before=before)
    assert len(table) == 2 * 3
    for row in table.itertuples():
        p, q = (run[f"{row.layer}.pattern"][0, row.head].tolist() for run in (before, after))
        rows = [sum(max(0.0, b - a) for a, b in zip(x, y, strict=True)) for x, y in zip(p, q, strict=True)]
        assert row.moved == pytest.approx(sum(rows) / N, abs=1e-6)  # gains equal losses
    assert analysis.attention_moved(before, before=before)["moved"].tolist() == [0.0] * 6


def test_without_positions_only_a_causal_model_depends_on_the_order() -> None:
    for kind in ("mirror", "rotary", "alibi"):
        found = order_test(ran(random_model("encoder", positions=kind)))
        assert found is not None
        assert found.is_blind
    found = order_test(ran(random_model("decoder")))
    assert found is not None
    assert (found.is_blind, found.difference > 1e-2) == (False, True)


def test_order_test_returns_none_for_palindromes_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order_test(ran(random_model("encoder-decoder"))) is None
    # Only the first tokens of a long input are used.
    monkeypatch.setattr("xformer.analysis.positions.MAX_TOKENS_READ", 3)
    assert order_test(ran(random_model("encoder"), tokens=torch.tensor([[3, 7, 3, 1, 4]]))) is None


def test_an_image_model_without_positions_ignores_the_order_of_patches() -> None:
    model = Transformer(preset("digits").model.replace(positions="learned"), torch.Generator().manual_seed(0)).eval()
    pixels = torch.randint(0, 17, (1, 64), generator=torch.Generator().manual_seed(1))
    found = order_test(ran(model, tokens=pixels))
    assert found is not None
    assert found.is_blind
    assert reversed_patches(torch.arange(16)[None], 2).view(4, 4).tolist() == [
        [10, 11, 8, 9], [14, 15, 12, 13], [2, 3, 0, 1], [6, 7, 4, 5],
    ]  # fmt: skip


def test_looks_back_only_detects_causal_runs() -> None:
    model = random_model("encoder")
    assert not looks_back_only(ran(model))
    assert looks_back_only(ran(model, [set_causal(True)]))
    assert looks_back_only(ran(random_model("decoder")))
    pair = ran(random_model("encoder-decoder"))
    assert (looks_back_only(pair, "encoder"), looks_back_only(pair, "decoder")) == (False, True)


def test_learned_positions_of_an_external_model_match_its_table() -> None:
    reading = reading_of("GPT-2")
    how, found = found_positions(reading)
    table = FAMILIES["GPT-2"].make().transformer.wpe.weight
    assert how == "added"
    assert found.equal(table[: len(found)])
    row = position_values(reading, positions=[4]).query("dimension == 3")["value"].item()
    assert row == pytest.approx(table[4, 3].item())


def test_rotary_angles_grow_with_the_position() -> None:
    reading = reading_of("Llama")
    values = position_values(reading)
    assert values.query("pair == 0 and position == 2")["angle"].item() == pytest.approx(2.0, abs=1e-6)
    assert values["pair"].max() == 1  # two pairs of the four dimensions of a head
    offsets = position_offsets(reading).set_index("offset")["mean"]
    assert offsets[0] == pytest.approx(1.0)
    assert offsets[2] == pytest.approx((torch.tensor([2.0, 0.02]).cos().mean()).item(), abs=1e-5)


def test_t5_biases_match_the_models_buckets() -> None:
    table = position_offsets(reading_of("T5"), stack="encoder")
    wanted = FAMILIES["T5"].make().encoder.block[0].layer[0].SelfAttention.compute_bias(9, 9)[0]  # [head, query, key]
    at = table.set_index(["head", "offset"])["bias"]
    assert at[2, 1] == pytest.approx(wanted[2, 3, 4].item(), abs=1e-5)
    assert at[0, -3] == pytest.approx(wanted[0, 5, 2].item(), abs=1e-5)


def test_a_model_without_position_information_is_refused() -> None:
    with pytest.raises(UnavailableError, match="No position information was found"):
        found_positions(reading_of("BLOOM"))
