"""A server answers before it has imported what only later pictures need, and what was left out is there when it is needed."""

from __future__ import annotations

import gc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from pages.shared.layout import chart_spec
from xformer.quick_imports import quick_imports

ROOT = Path(__file__).parents[1]
SERVER = """
import sys
from types import ModuleType
loading = sys.modules["pages.shared.loading"] = ModuleType("loading")
loading.begin = lambda: None
import app
from xformer.quick_imports import quick_imports
print(*sorted({"plotly", "torch", "pandas", "altair"} & set(sys.modules)))
with quick_imports("anywidget", "rfc3987_syntax"):
    import altair
print(*sorted({"plotly", "IPython", "anywidget", "rfc3987_syntax"} & set(sys.modules)))
import plotly.graph_objects as go
from pages.shared.layout import chart_spec
print(chart_spec(("a figure",), lambda: go.Figure(go.Heatmap(z=[[1]]))).layout.template.layout.colorway[0])
"""


def test_what_is_left_out_can_be_imported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with quick_imports("colorsys", "sys"):
        assert not gc.isenabled()
        with pytest.raises(ImportError):
            import_module("colorsys")
        assert import_module("sys") is sys  # it is there already
    assert gc.isenabled()
    assert import_module("colorsys").rgb_to_hls


def test_it_can_be_imported_after_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ZeroDivisionError), quick_imports("colorsys"):
        _ = 1 / 0
    assert gc.isenabled()
    assert import_module("colorsys").rgb_to_hls


def test_a_server_answers_before_it_has_imported_what_only_pictures_need() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.splitlines() == ["", "", "#000001"], done.stderr  # the colour that Streamlit's theme puts first


def test_a_figure_that_was_drawn_before_the_theme_was_known_is_as_one_drawn_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = go.Figure(go.Heatmap(z=[[1, 2]])).to_plotly_json()
    monkeypatch.setattr(pio.templates, "default", "plotly")
    before = go.Figure(go.Heatmap(z=[[1, 2]]))
    assert before.to_plotly_json() != after
    assert chart_spec(("figure before the theme",), lambda: before).to_plotly_json() == after
