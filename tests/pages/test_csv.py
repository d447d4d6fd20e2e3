"""Downloaded tables count heads from 1 as the screens do, and contain no spreadsheet formulas."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from pages.compute.call import HEAD, heads_from_1
from tests.pages.conftest import ROOT
from xformer.training.tables import metrics_csv, to_csv


@pytest.mark.parametrize(
    ("first", "heads", "written"), [(0, [0, 3, -1], [1, 4, "mean"]), (1, [1, 4, 0], [1, 4, "mean"])]
)
def test_heads_are_counted_from_1_as_stated_in_the_header(first: int, heads: list[int], written: list[object]) -> None:
    table = heads_from_1(pd.DataFrame({"layer": "a", "head": heads}), first, no_head="mean")
    assert list(table.columns) == ["layer", HEAD]
    assert table[HEAD].tolist() == written


def test_headings_and_cells_cannot_be_formulas_and_numbers_are_unchanged() -> None:
    for text in ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "--"):
        table = pd.DataFrame({text: [text], "n": [-1.5]})
        for content in (to_csv(table), metrics_csv({text: [{"step": 1, text: 2.0, "scores": {text: [0.5]}}]})):
            for line in csv.reader(io.StringIO(content.decode(), newline="")):
                assert not [cell for cell in line if cell.startswith(text)]
        assert list(csv.reader(io.StringIO(to_csv(table).decode(), newline="")))[1][1] == "-1.5"
    for cell in ("-0.5", "+1e-3", "-", "=", "-inf", "a=b", "", "3:+"):
        assert to_csv(pd.DataFrame({"a": [cell]})).decode().splitlines()[1].strip('"') == cell


def test_both_columns_with_the_same_name_are_escaped() -> None:
    table = pd.DataFrame([["=1", "@2"]], columns=["x", "x"])
    assert to_csv(table).decode() == "x,x\n'=1,'@2\n"


def test_all_csv_files_are_written_by_one_function() -> None:
    files = [file for folder in ("pages", "xformer") for file in (ROOT / folder).rglob("*.py")]
    assert [file.name for file in files if ".to_csv(" in file.read_text("utf-8")] == ["tables.py"]
