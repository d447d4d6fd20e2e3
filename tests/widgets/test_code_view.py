"""The code view: the lines of a module with their tensors, and the first line that differs between two modules."""

from __future__ import annotations

import importlib.util
import json
import linecache
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import xformer
from xformer.program.operations import operations
from xformer.widgets.code_view import ROOM, code_data, code_view

SOURCE = Path(__file__).parents[2] / "docs" / "one_file_gpt.py"
TOKENS = torch.tensor([[3, 1, 2, 0, 8, 3]])


def imported(path: Path) -> ModuleType:
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpt(path: Path = SOURCE) -> Any:
    torch.manual_seed(0)
    return imported(path).GPT().eval()


def unpacked(data: bytes) -> tuple[dict[str, Any], np.ndarray]:
    n = struct.unpack("<II", data[:8])[1]
    return json.loads(data[8 : 8 + n]), np.frombuffer(data[8 + n :], "<f4")


def test_every_line_has_the_numbers_that_it_computed() -> None:
    module = gpt()
    run = operations(module, TOKENS)
    header, numbers = unpacked(code_data(run, module))
    attention = next(one for one in header["functions"] if one["name"] == "Attention.forward")
    assert [call["path"] for call in attention["calls"]] == ["blocks.0.attention", "blocks.1.attention"]
    at = next(n for n, text in enumerate(attention["lines"]) if "softmax" in text) + attention["first"]
    operation = header["operations"][attention["calls"][1]["lines"][str(at)][-1]]
    assert operation["axes"] == ["batch", "head", "query", "key"]
    wanted = xformer.read(module, TOKENS)["decoder.1.attn.pattern"]
    found = numbers[operation["offset"] :][: wanted.numel()].reshape(operation["kept"])
    assert np.allclose(found, wanted.numpy(), atol=1e-6)
    assert (operation["low"], operation["nan"]) == (0.0, 0)


def test_lines_are_those_of_the_source() -> None:
    header, _ = unpacked(code_data(operations(gpt(), TOKENS), gpt()))
    lines = SOURCE.read_text().splitlines()
    for function in header["functions"]:
        for at, text in enumerate(function["lines"]):
            assert lines[function["first"] - 1 + at].strip() == text.strip()


def test_our_own_model_is_shown_step_by_step_in_its_own_file() -> None:
    model = xformer.load("checkpoints/reverse").model
    view = code_view(model, torch.tensor([[3, 7, 12, 9]]))
    used = {operation.line.text for operation in view.operations if operation.line is not None}
    assert any("softmax" in text for text in used)
    assert "layers/attention.py" in str([operation.line.file for operation in view.operations if operation.line])


def test_large_tensors_are_cut_to_the_room() -> None:
    layer = torch.nn.TransformerEncoderLayer(96, 4, 384, batch_first=True).eval()
    data = code_data(operations(layer, torch.randn(1, 300, 96)), layer)
    header, numbers = unpacked(data)
    assert numbers.nbytes <= ROOM
    first = header["operations"][0]
    assert first["shape"] != first["kept"]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "</script>"])
def test_labels_are_data_and_no_html(text: str) -> None:
    view = code_view(gpt(), TOKENS, tokens=[text] * 6)
    assert text not in view.page.split('id="data"')[0]


FAULTS = {
    "scores / math.sqrt(k.shape[-1])": [
        "scores * math.sqrt(k.shape[-1])", "scores / math.sqrt(D_MODEL)", "scores / math.sqrt(N_HEADS)", "scores / k.shape[-1]",
        "scores * 1.0",
    ],
    "torch.ones(length, length, dtype=torch.bool).triu(1)": [
        "torch.ones(length, length, dtype=torch.bool).triu(2)", "torch.ones(length, length, dtype=torch.bool).tril(-1)",
        "torch.ones(length, length, dtype=torch.bool).triu(0)",
    ],
    'scores.masked_fill(future, float("-inf"))': ["scores.masked_fill(future, 0.0)", "scores + future"],
    "scores.softmax(dim=-1)": ["scores.softmax(dim=-2)", "scores.softmax(dim=1)", "scores.sigmoid()"],
    "z.transpose(1, 2).reshape(batch, length, D_MODEL)": ["z.reshape(batch, length, D_MODEL)"],
    "q @ k.transpose(-2, -1)": ["k @ q.transpose(-2, -1)"],
    "pattern @ v  # ": ["pattern.transpose(-2, -1) @ v  # "],
    "x + self.attention(self.norm1(x))": [
        "self.attention(self.norm1(x))", "x + self.attention(x)", "self.norm1(x) + self.attention(self.norm1(x))",
    ],
    "F.gelu(self.up(self.norm2(x)))": [
        "F.relu(self.up(self.norm2(x)))", "F.gelu(self.up(x))", 'F.gelu(self.up(self.norm2(x)), approximate="tanh")',
    ],
    "x + self.down(hidden)": ["self.down(hidden)"],
    "self.token(tokens) + self.position(positions)": [
        "self.token(tokens)", "self.token(tokens) * 2 + self.position(positions)",
    ],
    "torch.arange(tokens.shape[1])": ["torch.arange(tokens.shape[1]) + 1", "torch.arange(tokens.shape[1]).flip(0)"],
    "self.head(self.norm(x))": ["self.head(x)"],
}  # fmt: skip


@pytest.mark.parametrize(("right", "wrong"), [(right, wrong) for right, wrongs in FAULTS.items() for wrong in wrongs])
def test_a_planted_difference_is_found_at_its_line(right: str, wrong: str, tmp_path: Path) -> None:
    source = SOURCE.read_text()
    assert source.count(right) == 1
    changed = tmp_path / "broken.py"
    changed.write_text(source.replace(right, wrong))
    view = code_view(gpt(changed), TOKENS, changed=gpt())
    number = source[: source.index(right)].count("\n") + 1
    assert view.difference is not None
    assert view.difference.line == f"broken.py:{number}"


def test_equal_modules_have_no_difference() -> None:
    assert code_view(gpt(), TOKENS, changed=gpt()).difference is None
