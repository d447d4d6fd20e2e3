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
from xformer.errors import InputError
from xformer.widgets.code_difference import compare
from xformer.widgets.code_lines import run_code
from xformer.widgets.code_view import ROOM, code_data, code_view, mark_of

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


def function_in(header: dict[str, Any], name: str, side: int = 0) -> dict[str, Any]:
    return next(one["sides"][side] for one in header["functions"] if (one["sides"][side] or {}).get("name") == name)


def results_at(header: dict[str, Any], name: str, text: str, call: int = 0) -> list[tuple[dict[str, Any], str]]:
    """The results of the line of a function that contains a text, with what the line called."""
    function = function_in(header, name)
    at = next(n for n, line in enumerate(function["lines"]) if text in line) + function["first"]
    return [(header["operations"][index], callee) for index, callee in function["calls"][call]["lines"][str(at)]]


def test_every_line_has_the_numbers_that_it_computed() -> None:
    module = gpt()
    header, numbers = unpacked(code_data(run_code(module, TOKENS)))
    calls = function_in(header, "Attention.forward")["calls"]
    assert [call["path"] for call in calls] == ["blocks.0.attention", "blocks.1.attention"]
    operation, _ = results_at(header, "Attention.forward", "softmax", call=1)[-1]
    assert operation["axes"] == ["batch", "head", "query", "key"]
    wanted = xformer.read(module, TOKENS)["decoder.1.attn.pattern"]
    found = numbers[operation["offset"] :][: wanted.numel()].reshape(operation["kept"])
    assert np.allclose(found, wanted.numpy(), atol=1e-6)
    assert (operation["low"], operation["nan"]) == (0.0, 0)


def test_a_line_that_calls_a_module_has_what_that_returned() -> None:
    header, _ = unpacked(code_data(run_code(gpt(), TOKENS)))
    layers = results_at(header, "GPT.forward", "block(x)")
    assert [(callee, operation["name"], operation["axes"]) for operation, callee in layers] == [
        (f"blocks.{layer}", "add", ["batch", "pos", "d_model"]) for layer in (0, 1)
    ]
    assert [callee for _, callee in results_at(header, "Block.forward", "x + self.attention(self.norm1")] == [
        "",
        "blocks.0.attention",
        "",
    ]


def test_lines_are_those_of_the_source() -> None:
    header, _ = unpacked(code_data(run_code(gpt(), TOKENS)))
    lines = SOURCE.read_text().splitlines()
    for function in (one["sides"][0] for one in header["functions"]):
        for at, text in enumerate(function["lines"]):
            assert lines[function["first"] - 1 + at].strip() == text.strip()


def llama(n_layers: int = 2, width: int = 32) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": n_layers}
    config = transformers.LlamaConfig(vocab_size=97, num_attention_heads=4, num_key_value_heads=2, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def test_a_model_of_transformers_is_shown_in_its_modelling_file() -> None:
    module = llama()
    run = run_code(module, TOKENS)
    header, _ = unpacked(code_data(run))
    assert [one["sides"][0]["name"] for one in header["functions"] if one["open"]] == [
        "LlamaAttention.forward",
        "eager_attention_forward",
    ]
    assert {one["sides"][0]["file"] for one in header["functions"][:5]} == {"modeling_llama.py"}
    axes = {
        ("LlamaAttention.forward", "self.q_proj"): [["batch", "head", "pos", "d_head"]],
        ("LlamaAttention.forward", "self.k_proj"): [["batch", "head", "pos", "d_head"]],
        ("LlamaAttention.forward", "apply_rotary_pos_emb"): [["batch", "head", "pos", "d_head"]] * 2,
        ("LlamaAttention.forward", "attention_interface("): [["batch", "pos", "head", "d_head"]],
        ("eager_attention_forward", "softmax"): [["batch", "head", "query", "key"]],
        ("LlamaDecoderLayer.forward", "self.self_attn("): [["batch", "pos", "d_model"]],
    }
    for (name, text), wanted in axes.items():
        found = [operation["axes"] for operation, _ in results_at(header, name, text)]
        assert found[-len(wanted) :] == wanted, text
    assert header["operations"][header["start"]]["name"] == "softmax"
    assert run.steps  # eager attention and no cache, in a copy
    assert module.config.use_cache
    assert module.config._attn_implementation == "sdpa"
    torch.testing.assert_close(run.operations.outputs[0].tensor, module(TOKENS).logits)


@pytest.mark.parametrize(
    ("family", "first"), [("GPT2", "GPT2Attention.forward"), ("Bert", "BertSelfAttention.forward")]
)
def test_other_families_begin_with_their_attention(family: str, first: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 97}
    config = getattr(transformers, f"{family}Config")(**sizes, bos_token_id=None, eos_token_id=None)
    header, _ = unpacked(code_data(run_code(getattr(transformers, f"{family}Model")(config).eval(), TOKENS)))
    assert [one["sides"][0]["name"] for one in header["functions"][:2]] == [first, "eager_attention_forward"]
    assert results_at(header, "eager_attention_forward", "softmax")[0][0]["axes"] == ["batch", "head", "query", "key"]


def test_of_a_large_model_the_layer_that_is_asked_for_has_numbers() -> None:
    run = run_code(llama(n_layers=10, width=64), torch.arange(80)[None])
    header, numbers = unpacked(code_data(run, at="model.layers.4.self_attn"))
    softmax = {one["module"].split(".")[2]: one for one in header["operations"] if one["name"] == "softmax"}
    kept = [layer for layer, one in softmax.items() if "kept" in one]
    assert 1 < len(kept) < len(softmax) == 10
    assert "4" in kept
    assert all("low" in one for one in softmax.values())  # the others have a range
    assert header["operations"][header["start"]]["module"] == "model.layers.4.self_attn"
    assert numbers.nbytes <= ROOM


def test_a_place_without_operations_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"blocks\.1\.attention"):
        code_view(gpt(), TOKENS, at="block.1.attention")


def test_the_named_line_is_marked_and_shown_first() -> None:
    line = next(str(one.line) for one in xformer.operations(gpt(), TOKENS) if one.name == "gelu")
    assert f"Marked: {line}." in code_view(gpt(), TOKENS, mark=line).page
    header, _ = unpacked(code_data(run := run_code(gpt(), TOKENS), mark=mark_of(run, line)))
    assert str(run.operations[header["start"]].line) == line
    with pytest.raises(InputError, match=r"No operation ran in the line 'one_file_gpt\.py:1'"):
        code_view(gpt(), TOKENS, mark="one_file_gpt.py:1")


def test_a_module_of_pytorch_alone_has_no_lines() -> None:
    header, _ = unpacked(code_data(run_code(torch.nn.Linear(3, 5), torch.ones(1, 4, 3))))
    assert header["functions"] == []


def test_our_own_model_is_shown_step_by_step_in_its_own_file() -> None:
    model = xformer.load("checkpoints/reverse").model
    view = code_view(model, torch.tensor([[3, 7, 12, 9]]))
    used = {operation.line.text for operation in view.operations if operation.line is not None}
    assert any("softmax" in text for text in used)
    assert "layers/attention.py" in str([operation.line.file for operation in view.operations if operation.line])


def test_large_tensors_are_cut_to_the_room() -> None:
    layer = torch.nn.TransformerEncoderLayer(96, 4, 384, batch_first=True).eval()
    data = code_data(run_code(layer, torch.randn(1, 2000, 96)))
    header, numbers = unpacked(data)
    assert numbers.nbytes <= ROOM
    first = header["operations"][0]
    assert first["shape"] != first["kept"]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "</script>"])
def test_labels_are_data_and_no_html(text: str) -> None:
    view = code_view(gpt(), TOKENS, tokens=[text] * 6)
    assert text not in view.page.split('id="data"')[0]


def test_different_sources_stand_side_by_side(tmp_path: Path) -> None:
    source = SOURCE.read_text()
    changed = tmp_path / "broken.py"
    changed.write_text(
        source.replace(
            "        pattern = scores.softmax(dim=-1)", "        # all keys\n        pattern = scores.sigmoid()"
        )
    )
    one, other = run_code(gpt(), TOKENS), run_code(gpt(changed), TOKENS)
    comparison = compare(one.operations, other.operations)
    header, _ = unpacked(code_data(one, changed=other, comparison=comparison))
    attention = next(one for one in header["functions"] if one["sides"][0]["name"] == "Attention.forward")
    lines = [side["lines"] for side in attention["sides"]]
    at = next(n for n, text in enumerate(lines[0]) if "softmax" in text)
    assert [row for row in attention["rows"] if row[0] != row[1]][:2] == [[None, at + 1], [at + 1, at + 2]]
    assert all(lines[0][row[0]] == lines[1][row[1]] for row in attention["rows"] if None not in row and row[0] != at)
    assert all("rows" not in one for one in header["functions"] if one is not attention)
    assert header["difference"]["line"] == f"one_file_gpt.py:{attention['sides'][0]['first'] + at}"
    softmax = header["start"]
    sigmoid = header["operations"][header["counterparts"][str(softmax)]]
    assert (header["operations"][softmax]["name"], sigmoid["name"]) == ("softmax", "sigmoid")
    assert softmax in header["differing"]
