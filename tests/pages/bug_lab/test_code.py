"""The panel Code of Your model: nothing before it is opened, the line of a finding, and only files that may be shown."""

from __future__ import annotations

import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from streamlit.testing.v1 import AppTest

import xformer
from pages.bug_lab import code
from pages.compute import cached_runs, models
from pages.compute.byte_cache import shared
from tests.pages.conftest import Open
from tests.widgets.test_code_view import SOURCE, TOKENS, gpt, llama
from xformer.adapters import load
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import keep_in_memory
from xformer.errors import InputError, UnavailableError

BUG_LAB = "pages/bug_lab/page.py"


@pytest.fixture(autouse=True)
def _no_models_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_in_memory", {})
    monkeypatch.setattr(load, "_n_kept", 0)


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + struct.unpack("<II", data[:8])[1]])


def files_in(data: bytes) -> set[str]:
    return {side["file"] for one in header_of(data)["functions"] for side in one["sides"]}


def kept(path: Path) -> str:
    """A hand-written model in memory, as `xformer.show` keeps it."""
    return keep_in_memory(AnyModule.open(gpt(path), TOKENS, path.stem), path.stem)


def diagnosed(open_page: Open) -> AppTest:
    """The tab Your model after the last check, below which the panel is."""
    app = open_page(BUG_LAB, tab="yours", model="reverse-small", input="3 7 2 5")
    job = app.session_state["doctor"]
    while job.is_running:
        job.watch()
        time.sleep(0.05)
    return app.run()


def test_the_panel_computes_nothing_until_it_is_opened(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(code, "run_code", lambda *given, **options: calls.append(given) or run_code(*given, **options))
    run_code = xformer.widgets.code_lines.run_code
    app = diagnosed(open_page)
    assert not calls
    app.session_state["doctor_code"] = True
    assert not app.run().exception
    assert any(one.value.startswith("What each line computed for this input") for one in app.caption)
    app.run()
    assert len(calls) == 1  # cached
    assert files_in(code._data("reverse-small", (3, 7, 2, 5), None)[0]) >= {"attention.py", "model.py"}


@pytest.mark.parametrize(
    ("right", "wrong", "place"),
    [
        ("scores.softmax(dim=-1)", "scores.softmax(dim=-2)", ("blocks.1.attention.pattern", "pattern", 1)),
        ("triu(1)", "triu(2)", ("blocks.1.attention.pattern", "mask", 1)),
        (
            "x + self.down(hidden)",
            "x + self.down(hidden + hidden.mean(1, keepdim=True))",
            ("blocks.1.down", "input", 1),
        ),
        ("self.down(hidden)", "self.down(hidden)  # as before", ("blocks.1.down", "", None)),
    ],
)
def test_the_line_of_a_finding_is_marked(right: str, wrong: str, place: tuple[Any, ...], tmp_path: Path) -> None:
    file, source = tmp_path / "broken.py", SOURCE.read_text()
    file.write_text(source.replace(right, wrong))
    data, words = code._data(kept(file), (), place)
    wanted = "masked_fill" if place[1] == "mask" else right  # what the mask changes first
    number = source[: source.index(wanted)].count("\n") + 1
    assert f"Marked: broken.py:{number}." in words
    header = header_of(data)
    assert header["difference"]["line"] == f"broken.py:{number}"
    assert header["operations"][header["start"]]["module"].startswith("blocks.1")


def test_the_line_that_a_finding_names_is_marked_before_the_place_where_it_is_seen(tmp_path: Path) -> None:
    file, source = tmp_path / "broken.py", SOURCE.read_text()
    file.write_text(source.replace("triu(1)", "triu(2)"))
    finding = xformer.diagnose(gpt(file), TOKENS, checks=["formula"]).broken[0]
    data, words = code._data(kept(file), (), ("blocks.1.attention.pattern", "mask", 1), finding.line)
    assert finding.line == f"broken.py:{source[: source.index('triu(1)')].count(chr(10)) + 1}"
    assert f"Marked: {finding.line}. A finding names this line." in words
    assert header_of(data)["difference"]["line"] == finding.line


@pytest.mark.parametrize(
    "place", [None, ("blocks.0.attention.v", "v", 0), ("blocks.0", "", None), ("blocks.0.attention", "mask", None)]
)
def test_no_line_is_marked_where_the_finding_names_no_operation(place: Any) -> None:
    data, words = code._data(kept(SOURCE), (), place)
    assert header_of(data)["difference"] is None
    assert "Marked" not in words


def test_a_model_of_a_folder_shows_its_library_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = llama()
    may_show = code.shown_files(module)
    own = sys.modules[type(module).__module__].__file__
    assert own is not None
    assert may_show(own)
    assert may_show(xformer.__file__)
    for file in (__file__, "/etc/passwd", f"{Path(own).parent}/../../../../secret.py", own.removesuffix("py") + "json"):
        assert not may_show(file)
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    assert not may_show(str(tmp_path / "link.py"))
    opened = HuggingFaceModel.open(module, name="llama")
    monkeypatch.setattr(models, "adapter", lambda name: opened)
    monkeypatch.setattr(cached_runs, "check_memory", lambda model, source: None)
    data, words = code._data("hf:llama", (3, 1, 2), None)
    assert "modeling_llama.py" in files_in(data)
    assert "step by step (eager)" in words


def test_a_hand_written_model_that_was_not_passed_in_python_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = AnyModule.open(gpt(), TOKENS, "gpt")
    monkeypatch.setattr(models, "adapter", lambda name: opened)
    monkeypatch.setattr(cached_runs, "check_memory", lambda model, source: None)
    with pytest.raises(UnavailableError, match="no installed package"):
        code._data("hf:gpt", (), None)


def test_what_cannot_be_shown_is_one_sentence(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "LARGEST", 1000)
    shared.forget(lambda key: key[0] == code.__name__)
    app = diagnosed(open_page)
    app.session_state["doctor_code"] = True
    assert not app.run().exception
    assert any("The code of this model is not shown. It has" in one.value for one in app.info)


def test_modules_with_the_positions_first_run_on_their_own_arguments() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16).eval()

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + 1

    x = torch.randn(7, 3, 8)
    module, inputs = code._call_of(AnyModule.open(Own(), x, "own"), ())
    torch.testing.assert_close(module(*inputs.values()), Own().eval()(x))


def test_too_long_an_input_is_refused() -> None:
    with pytest.raises(InputError):
        code._data("reverse-small", (3,) * 500, None)
