"""Each position encoding equals its equation, computed by a plain loop."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from tests.layers.reference import assert_close, build, inputs, model_config, random, randomise
from xformer.layers.embedding import PositionTables
from xformer.layers.masks import SequencePacking
from xformer.positions.alibi import alibi_bias, alibi_slopes
from xformer.positions.rotary import rotary_angles, rotate
from xformer.positions.sinusoidal import sinusoidal
from xformer.tape import Tape

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("d_model", [1, 2, 13, 14])
@pytest.mark.parametrize("base", [10_000.0, 7.0])
def test_sinusoidal_equals_the_double_loop(d_model: int, base: float) -> None:
    table = sinusoidal(19, d_model, base)
    assert table.shape == (19, d_model)
    for pos in range(19):
        for i in range(d_model):
            wave = math.sin if i % 2 == 0 else math.cos
            expected = wave(pos / base ** ((i - i % 2) / d_model))
            # a division, a power and a sine: a few roundings of an angle of at most 19
            assert abs(float(table[pos, i]) - expected) < 8 * 19 * torch.finfo(torch.float64).eps


def test_learned_positions_are_rows_of_the_table() -> None:
    positions = randomise(PositionTables(model_config(positions="learned")))
    valid = torch.tensor([[False, True, True, True], [True, True, False, False]])
    for row, looked_up in enumerate([[0, 0, 1, 2], [0, 1, 0, 0]]):
        assert torch.equal(positions(SequencePacking.from_valid(valid))[row], positions.table[looked_up])


def test_mirror_positions_count_from_both_ends() -> None:
    positions = randomise(PositionTables(model_config(positions="mirror")))
    whole = positions(SequencePacking.plain(7))
    padded = positions(
        SequencePacking.from_valid(torch.tensor([[False, False, True, True, True, True, True, True, True]]))
    )
    for i in range(7):
        expected = positions.from_start[i] + positions.from_end[6 - i]
        assert torch.equal(whole[i], expected)
        assert torch.equal(padded[0, 2 + i], expected)


def test_rotation_is_multiplication_by_a_complex_number() -> None:
    x = random(2, 3, 11, 10).detach()
    turned = rotate(x, rotary_angles(torch.arange(11), 10, base=100.0))
    for pos in range(11):
        for pair in range(5):
            angle = pos / 100.0 ** (2 * pair / 10)
            for batch, head in ((0, 0), (0, 2), (1, 1)):
                number, actual = (complex(*of[batch, head, pos, 2 * pair : 2 * pair + 2]) for of in (x, turned))
                # |x| < 4, the angle up to 10: a few eps of 40
                assert abs(actual - number * cmath.exp(1j * angle)) < 1e-13


def test_alibi_slopes_equal_those_of_the_paper() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(1) == [1 / 256]
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]  # the slopes for 2 heads, then every other one for 4
    assert alibi_slopes(12)[8:] == [2.0 ** -(n / 2) for n in (1, 3, 5, 7)]
    assert alibi_slopes(16)[0] == 2**-0.5


def test_alibi_bias_is_minus_slope_times_distance() -> None:
    bias = alibi_bias(torch.arange(4, 11), torch.arange(11), 8)
    assert bias.shape == (1, 8, 7, 11)
    for head in range(8):
        for query in range(7):
            for key in range(11):
                assert bias[0, head, query, key] == -(2.0 ** -(head + 1)) * abs(4 + query - key)
    batch = torch.tensor([[0, 1, 2], [0, 0, 1]])
    assert alibi_bias(batch, batch, 3)[1, 0].tolist() == [[0, 0, -1 / 16], [0, 0, -1 / 16], [-1 / 16, -1 / 16, 0]]


def test_rotary_positions_apply_only_to_self_attention() -> None:
    model, tape = build(architecture="encoder-decoder", positions="rotary", n_layers=1), Tape()
    model(*inputs(model, n_source=11), tape=tape)  # as long as the target: a misplaced rotation raises no error
    at, decoder = tape.activations, model.decoder
    for path, attention, keys in (
        ("decoder.0.self_attn", decoder.blocks[0].self_attn, at["decoder.0.self_attn.in"]),
        ("decoder.0.cross_attn", decoder.blocks[0].cross_attn, at["encoder.0.resid_post"]),
    ):
        q = torch.einsum("bqm,hmd->bhqd", at[f"{path}.in"], attention.W_Q) + attention.b_Q[:, None]
        k = torch.einsum("bkm,hmd->bhkd", keys, attention.W_K) + attention.b_K[:, None]
        if path.endswith("self_attn"):
            angles = rotary_angles(torch.arange(11), 10)
            q, k = rotate(q, angles), rotate(k, angles)
        assert_close(at[f"{path}.q"], q)
        assert_close(at[f"{path}.k"], k)
