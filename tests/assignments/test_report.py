"""Reports: what is told at each hint, tables of a class, JUnit, and the picture of common mistakes."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace

import pandas as pd
import pytest

from xformer import assignments
from xformer.assignments.grading import Cell, Result
from xformer.assignments.report import COLUMNS, Report, to_csv, to_json, to_junit
from xformer.assignments.student import SourcePlace

CELL = Cell("output", {"query": 0, "key": 1}, "False", "True", "n = 5")
HINTS = ("Look here.", "It is wrong.", "It should read: right.")
FAILED = Result(
    "causal_mask", "Causal mask", "failed", "causal_mask", "mask_off_by_one", "It is <wrong>.",
    SourcePlace("solution.py:3", "return ones.tril(1)"), CELL, HINTS,
)  # fmt: skip
PASSED = Result("softmax", "Softmax", "passed")
TODO = Result(
    "loss", "Loss", "not_written", "next_token_loss", "not_written", "next_token_loss: It is not written yet."
)
CLASS = [Report("ada", (PASSED, PASSED)), Report("bob", (PASSED, FAILED)), Report("=eve", (TODO, FAILED), ("A note.",))]


@pytest.mark.parametrize("hint", [1, 2, 3])
def test_a_hint_tells_as_much_as_asked(hint: int) -> None:
    text = repr(Report("bob", (PASSED, FAILED), hint=hint))
    assert [one in text for one in HINTS] == [True, hint > 1, hint > 2]
    assert "1 of 2 tasks passed" in text
    assert "solution.py:3  return ones.tril(1)" in text
    assert "n = 5: output[query 0, key 1] is True, expected False" in text
    html = Report("bob", (PASSED, FAILED), hint=hint)._repr_html_()
    assert [one in html for one in HINTS] == [True, hint > 1, hint > 2]
    assert "<wrong>" not in html


def test_json_has_a_version_and_every_field() -> None:
    found = to_json(CLASS)
    assert found["schema_version"] == 1
    task = found["submissions"][1]["tasks"][1]
    assert task["cell"] == {"output": "output", "index": {"query": 0, "key": 1}, "expected": "False", "actual": "True",
                            "case": "n = 5"}  # fmt: skip
    assert task["hints"] == dict(zip(("where", "what", "how"), HINTS, strict=True))
    assert found["submissions"][2]["notes"] == ["A note."]


def test_a_table_of_a_class_is_drawn() -> None:
    repeated = replace(FAILED, task="padding_mask", follows_from=("causal_mask",))  # it is not counted again
    text = to_csv([*CLASS, Report("bob", (repeated,))]).decode()
    table = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert list(table.columns) == list(COLUMNS)
    assert "'=eve" in set(table["submission"])  # no spreadsheet computes it
    chart = assignments.common_mistakes(table).to_dict()
    [rows] = chart["datasets"].values()
    assert [(row["mistake"], row["submissions"]) for row in rows] == [("causal_mask: mask_off_by_one", 2)]
    assert rows[0]["names"] == "'=eve, bob"
    assert chart["title"] == "Mistakes in 3 submissions"


def test_junit_counts_failures_and_what_is_not_written() -> None:
    suites = ET.fromstring(to_junit(CLASS)).findall("testsuite")
    assert [(one.get("tests"), one.get("failures"), one.get("skipped")) for one in suites] == [
        ("2", "0", "0"), ("2", "1", "0"), ("2", "1", "1"),
    ]  # fmt: skip
    failure = suites[1].find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "mask_off_by_one"
    assert "query 0, key 1" in (failure.text or "")
