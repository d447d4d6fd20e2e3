"""The code of a picture shows it without server paths; its table counts heads from 1 and holds no spreadsheet formulas."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from pages.compute.call import HEAD, heads_from_1, script
from tests.pages.code_and_picture import left_by
from tests.pages.conftest import ROOT, Open, with_weights
from xformer.training.run_store import RunStore
from xformer.training.tables import metrics_csv, to_csv


def test_last_expression_is_shown_unless_the_code_prints() -> None:
    assert script(["a = 1", "a + (", "    2)"]).splitlines()[-4:] == [
        "from xformer.viz.export import show",
        "picture = a + (",
        "    2)",
        "show(picture)",
    ]
    for alone in (["print(1)"], ["for i in range(2):", "    print(i)"]):
        assert script(alone) == "\n".join(alone)


def test_code_of_a_run_hides_the_server_path_and_runs_next_to_the_runs_folder(open_page: Open, runs: Path) -> None:
    run = with_weights(RunStore(runs), "mine")
    code = open_page("pages/residual/page.py", model=f"{run}@8", input="4 9 2", picture="norms").code[0].value
    assert str(runs.parent) not in code
    assert "runs folder" in code
    assert code.endswith("show(picture)")
    assert left_by(code, runs.parent)["picture"].to_dict()["datasets"]


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
