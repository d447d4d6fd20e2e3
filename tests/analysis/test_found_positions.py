"""What was found of the positions of models that are not ours is what they use."""

from __future__ import annotations

import pytest
import torch

from tests.adapters.families import FAMILIES
from tests.analysis.test_parts_of_others import reading_of
from xformer.analysis.positions import found_positions, position_offsets, position_values
from xformer.errors import UnavailableError

pytestmark = pytest.mark.xdist_group("transformers")


def test_a_learned_table_is_read_row_by_row() -> None:
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


def test_the_biases_of_t5_are_those_of_its_buckets() -> None:
    reading = reading_of("T5")
    table = position_offsets(reading, stack="encoder")
    layer = FAMILIES["T5"].make().encoder.block[0].layer[0].SelfAttention
    wanted = layer.compute_bias(9, 9)[0]  # [head, query, key]
    at = table.set_index(["head", "offset"])["bias"]
    assert at[2, 1] == pytest.approx(wanted[2, 3, 4].item(), abs=1e-5)
    assert at[0, -3] == pytest.approx(wanted[0, 5, 2].item(), abs=1e-5)


def test_where_nothing_was_found_it_says_so() -> None:
    with pytest.raises(UnavailableError, match="Nothing was found"):
        found_positions(reading_of("BLOOM"))
