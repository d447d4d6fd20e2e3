"""Published faults are found with their cause, layer and cell before the fix, and nothing is found after it."""

from __future__ import annotations

import linecache

import pytest

import xformer
from tests.doctor import published_faults
from tests.doctor.checking import TOKENS
from tests.doctor.published_faults import FAULTS

CHECKED = [
    "finite", "backends", "causality", "causality_with_attention", "left_padding", "right_padding", "batch", "cache",
    "attention_rows", "mask_constant", "formula",
]  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_before_its_fix(name: str) -> None:
    fault = FAULTS[name]
    [found] = xformer.diagnose(fault.before().eval(), TOKENS, checks=[fault.check]).findings
    assert (found.verdict, found.cause) == ("broken", fault.cause), found
    assert found.place is not None
    assert found.place.layer == (None if fault.cause == "cache_offset" else 0)
    number = int(found.line.partition(":")[2] or 0)
    assert bool(number) == bool(fault.line)
    assert fault.line in linecache.getline(published_faults.__file__, number)
    if fault.cell is not None:
        assert found.place.query is not None
        assert found.place.key is not None
        assert fault.cell(found.place.query, found.place.key), found.place


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_found_after_the_fix(name: str) -> None:
    diagnosis = xformer.diagnose(FAULTS[name].after().eval(), TOKENS, checks=CHECKED)
    assert not diagnosis.broken, diagnosis
    assert not diagnosis.could_not_run, diagnosis
    assert not diagnosis.unusual, diagnosis
