"""An agent with the official client of the Model Context Protocol: every tool, limits of paths, and planted bugs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

import xformer
from tests.integrations import faulty_gpt
from xformer.doctor.faults import BUGS
from xformer.errors import InputError

if find_spec("mcp") is None:
    pytest.skip("no mcp: the server for agents was NOT tested", allow_module_level=True)

from mcp import Client, StdioServerParameters, stdio_client

from xformer.cli.mcp import PICTURES, server_for

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
INDUCTION = {"model": "checkpoints/induction", "input": "3 7 12 9 3 7"}


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: the browser of another test may have a running event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def asked(folder: Path, *calls: tuple[str, dict[str, Any]], run_code: bool = False) -> list[Any]:
    """Call tools of a server; an answer is its object, the bytes of a PNG, or the sentence of an error."""

    async def ask() -> list[Any]:
        async with Client(server_for([folder], run_code=run_code)) as client:
            return [await client.call_tool(*call) for call in calls]

    answers: list[Any] = []
    for result in finished(ask()):
        [content] = result.content
        answers.append(base64.b64decode(content.data) if content.type == "image" else content.text)
        if content.type == "text" and not result.is_error:
            answers[-1] = json.loads(content.text)
            assert answers[-1]["schema_version"] == 1
    return answers


def test_a_process_answers_over_stdio(tmp_path: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "xformer", "mcp", str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )

    async def ask() -> tuple[list[str], Any]:
        async with Client(stdio_client(command)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            return tools, await client.call_tool("read", INDUCTION)

    tools, result = finished(ask())
    assert tools == ["models", "read", "diagnose", "head_effects", "attribution", "score_attribution", "picture"]
    assert json.loads(result.content[0].text)["tokens"][:3] == ["3", "7", "12"]


def test_the_numbers_are_those_of_the_library(tmp_path: Path) -> None:
    cell = {"layer": 1, "head": 0, "query": 5, "key": 2}
    read, effects, parts, pairs = asked(
        tmp_path, ("read", INDUCTION), ("head_effects", INDUCTION), ("attribution", INDUCTION | {"position": 5}),
        ("score_attribution", INDUCTION | cell),
    )  # fmt: skip
    reading = xformer.read(*INDUCTION.values())
    assert read["predictions"][5]["top"]["12"] == pytest.approx(float(reading.logits[0, 5].softmax(-1).max()), abs=1e-4)
    scores = xformer.analysis.head_scores(reading)
    assert [row["entropy"] for row in read["heads"]] == pytest.approx(list(scores["entropy"]), abs=1e-4)
    ranked = xformer.analysis.head_effects(reading).sort_values("measured", ascending=False)
    assert [row["measured"] for row in effects["heads"]] == pytest.approx(list(ranked["measured"]), abs=1e-3)
    total = xformer.analysis.attribution(reading, position=5)["contribution"].sum()
    assert sum(row["contribution"] for row in parts["parts"]) == pytest.approx(total, abs=1e-3)
    table = xformer.analysis.score_attribution(reading, **cell)
    assert len(pairs["pairs"]) == min(len(table), 40)


def test_a_picture_is_a_png_and_wrong_arguments_are_explained(tmp_path: Path) -> None:
    grid, head, option, name = asked(
        tmp_path,
        *(("picture", INDUCTION | one) for one in (
            {"name": "attention_grid"}, {"name": "attention", "options": {"layer": 1, "head": 9}},
            {"name": "lens", "options": {"lair": 1}}, {"name": "save"},
        )),
    )  # fmt: skip
    assert grid.startswith(b"\x89PNG")
    assert "has heads 0 to 0, got 9" in head
    assert "lair" in option
    assert "name must be one of" in name
    assert {"attention", "lens", "head_effects", "attribution", "next_tokens"} <= set(PICTURES)


def test_nothing_outside_the_folders_is_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    shutil.copytree(ROOT / "checkpoints/reverse-small", outside)
    shutil.copytree(outside, inside / "mine")
    (inside / "link").symlink_to(outside)
    (inside / "files").mkdir()
    (inside / "files" / "model.safetensors").symlink_to(outside / "model.safetensors")
    refused = [str(outside), "../outside", "link", "files", "mine/../../outside", str(inside / "nothing")]
    mine, *answers = asked(inside, *(("read", {"model": one, "input": "3 7"}) for one in ("mine", *refused)))
    assert mine["tokens"] == ["3", "7", "end"]
    assert all("A model must be shipped" in answer for answer in answers)
    with pytest.raises(InputError, match="must exist"):
        server_for([tmp_path / "nowhere"])


def test_a_planted_bug_in_code_is_located_in_one_call(tmp_path: Path) -> None:
    shutil.copy(faulty_gpt.__file__, tmp_path / "gpt.py")
    with (tmp_path / "gpt.py").open("a") as file:
        file.write("\n\ndef make() -> GPT:\n    return GPT(20, n_layers=1, fault='leaking mask')\n")
    [refused] = asked(tmp_path, ("diagnose", {"model": "gpt.py:make"}))
    assert "This server runs no code" in refused
    [answer] = asked(tmp_path, ("diagnose", {"model": "gpt.py:make"}), run_code=True)
    number = 1 + next(
        i for i, line in enumerate((tmp_path / "gpt.py").read_text().splitlines()) if ".tril(1 if" in line
    )
    first = answer["findings"][0]
    assert (first["cause"], first["line"], first["layer"]) == ("mask_off_by_one", f"gpt.py:{number}", 0)


def test_a_planted_bug_in_weights_is_located_in_two_calls(tmp_path: Path) -> None:
    xformer.save(BUGS["dead_neurons"].broken(xformer.load("checkpoints/reverse-seq2seq").model), tmp_path / "dead")
    models, answer = asked(tmp_path, ("models", {}), ("diagnose", {"model": "dead"}))
    assert models["models"] == [str(tmp_path / "dead")]
    [found] = [row for row in answer["findings"] if row["check"] == "equations"]
    assert (found["verdict"], found["layer"]) == ("broken", 0)
