"""`xformer mcp`, a server of the Model Context Protocol: an agent reads models, finds bugs in them, and looks at pictures.

    xformer mcp FOLDER [FOLDER …] [--run-code]

It opens shipped models and those in the given folders, and writes nothing. With `run_code`, `diagnose` also imports Python
files in these folders and runs the model that they make, in a process of its own with the rights of this user.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from xformer import analysis, viz
from xformer.cli.output import SCHEMA_VERSION
from xformer.errors import InputError, XformerError
from xformer.formatting import check_option
from xformer.installed import APP, needed, shipped
from xformer.reading import Reading, read
from xformer.viz.export import png_of, svg

if TYPE_CHECKING:
    from mcp.server import MCPServer

INSTRUCTIONS = """Read transformers at work. `diagnose` finds the bug in a model that may be wrong; `read` tells what a model
does with an input. Layers, heads and positions count from 0, in titles like "layer 2 · head 1" from 1."""
SECONDS = 300
"""Longest time of a diagnosis."""
MAX_ROWS = 40
"""Most rows of a table in an answer; the answer says how many were left out."""
PICTURES = tuple(
    name
    for name in vars(viz)["__all__"]
    if [*inspect.signature(getattr(viz, name)).parameters][:1] == ["reading"]  # not those that compare several
)
"""The functions of `xformer.viz` that draw one reading."""


def run_mcp(options: Namespace) -> None:
    """Serve until the agent closes stdin."""
    server_for(options.folders, run_code=options.run_code).run("stdio")


def server_for(folders: Sequence[str | Path], *, run_code: bool = False) -> MCPServer:
    """Return a server that opens models in these folders only.

    Args:
        folders: The folders that may be read.
        run_code: Whether `diagnose` may also import and run Python files in them.

    Returns:
        The server; its `run("stdio")` serves until stdin is closed.

    Raises:
        InputError: A folder does not exist.
    """
    with needed("mcp", "The server for agents", "xformer-studio[mcp]"):
        from mcp.server import MCPServer
    tools = Tools(folders, run_code)
    server = MCPServer("xformer", instructions=INSTRUCTIONS)
    for tool in (
        tools.models, tools.read, tools.diagnose, tools.head_effects, tools.attribution, tools.score_attribution, tools.picture
    ):  # fmt: skip
        server.add_tool(_expected(tool), structured_output=False)
    return server


def _expected(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose sentences for errors reach the agent; the SDK hides those of other exceptions."""

    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except (XformerError, OSError, TypeError) as error:  # TypeError: a picture without this option
            raise ToolError(str(error)) from error

    return call


class Tools:
    """The tools of a server. Each answer is a JSON object with a `schema_version`, or a picture.

    Args:
        folders: The folders that may be read.
        run_code: Whether Python files in them may be run.
    """

    def __init__(self, folders: Sequence[str | Path], run_code: bool = False) -> None:
        for folder in folders:
            if not Path(folder).is_dir():
                raise InputError(
                    f"A folder that agents may read must exist, got {str(folder)!r:.200}; for example checkpoints."
                )
        self.folders, self.run_code = [Path(folder).resolve() for folder in folders], run_code

    def models(self) -> str:
        """List the models that can be opened."""
        here = {path for folder in self.folders for path in (folder, *folder.iterdir()) if _is_model(path)}
        ours = sorted(f"checkpoints/{path.parent.name}" for path in APP.glob("checkpoints/*/model.safetensors"))
        return _answer(shipped=ours, models=sorted(map(str, here)))

    def read(self, model: str, input: str, edits: str = "") -> str:
        """Run a model on an input: its tokens, its predictions, and what each head attends to.

        Args:
            model: A path, or a shipped model like checkpoints/induction.
            input: A text, or the tokens of a task: "3 7 12 9".
            edits: Changes of the run, like ablate:decoder.1.attn.0 for the first head of the second layer.
        """
        reading = self._reading(model, input, edits)
        answer: dict[str, Any] = {"tokens": list(reading.tokens)}
        if reading.has_logits:
            probabilities = reading.logits[0].float().softmax(-1)
            best, ids = probabilities.topk(min(3, probabilities.shape[-1]))
            names = reading.adapter.token_labels
            rows = zip(best.tolist(), ids.tolist(), strict=True)
            answer["predictions"] = [
                {"position": at, "top": {names[id]: round(p, 4) for p, id in zip(*row, strict=True)}}
                for at, row in enumerate(rows)
            ]
            answer["answers"] = list(reading.answers)
        return _answer(**answer, **_rows("heads", analysis.head_scores(reading)))

    def diagnose(self, model: str, text: str = "", spec: str = "") -> str:
        """Find the bug in a model: masks, padding, positions, caches, formulas, loss. Names layer, head, cell, cause and line.

        Args:
            model: A path, a shipped model, or, where the server may run code, "gpt.py:make": a Python file, and the name in it
                of a module, or of a function without arguments that returns a module or a pair (module, inputs).
            text: The input to check it on; by default an example.
            spec: What it is meant to be: vaswani, gpt, bert or llama. What is legal but unusual is then broken.
        """
        file, code, name = model.rpartition(".py:")
        if code and not self.run_code:
            raise InputError("This server runs no code. To allow it, start it with: xformer mcp --run-code FOLDER")
        path = f"{self._allowed(f'{file}.py')}:{name}" if code else str(self._allowed(model))
        command = [
            sys.executable,
            "-m",
            "xformer",
            "doctor",
            "--json",
            f"--spec={spec}",
            *([f"--text={text}"] if text else []),
            "--",
            path,
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"The diagnosis of {model} took more than {SECONDS} s.") from None
        if not done.stdout:
            raise InputError(
                done.stderr.strip()[-1000:] or f"The diagnosis of {model} ended with code {done.returncode}."
            )
        answer = json.loads(done.stdout)
        if "findings" in answer:
            answer["findings"] = [
                row for row in answer["findings"] if row["verdict"] in ("broken", "unusual", "could not run")
            ]
        return json.dumps(answer, ensure_ascii=False)

    def head_effects(self, model: str, input: str, position: int | None = None) -> str:
        """Ablate each head in turn: by how much the loss, or the logit at a position, changes.

        Args:
            model: A path or a shipped model.
            input: A text, or the tokens of a task.
            position: The output position; by default all, if the right answers are known, else the last.
        """
        found = analysis.head_effects(self._reading(model, input), position=position)
        return _answer(**_rows("heads", found.sort_values("measured", key=abs, ascending=False)))

    def attribution(self, model: str, input: str, position: int) -> str:
        """Split the logit of the answer at a position into what each head, feed-forward network and embedding added.

        Args:
            model: A path or a shipped model.
            input: A text, or the tokens of a task.
            position: The output position.
        """
        found = analysis.attribution(self._reading(model, input), position=position)
        return _answer(**_rows("parts", found.sort_values("contribution", key=abs, ascending=False)))

    def score_attribution(self, model: str, input: str, layer: int, head: int, query: int, key: int) -> str:
        """Say why a head attends from a query to a key: which earlier parts wrote what is compared there.

        Args:
            model: A path or a shipped model.
            input: A text, or the tokens of a task.
            layer: The attention layer.
            head: The head.
            query: The position of the query.
            key: The position of the key.
        """
        reading = self._reading(model, input)
        return _answer(
            **_rows("pairs", analysis.score_attribution(reading, layer=layer, head=head, query=query, key=key))
        )

    def picture(self, name: str, model: str, input: str, options: dict[str, Any] | None = None, edits: str = "") -> Any:
        """Draw a picture of a run as PNG: attention_grid, attention, lens, head_effects, attribution and others of xformer.viz.

        Args:
            name: The picture.
            model: A path or a shipped model.
            input: A text, or the tokens of a task.
            options: The arguments of the picture: {"layer": 1, "head": 0} for attention, {"position": 3} for attribution.
            edits: Changes of the run.
        """
        from mcp.server.mcpserver import Image

        check_option("name", name, PICTURES)
        chart = getattr(viz, name)(self._reading(model, input, edits), **options or {})
        return Image(data=png_of(svg([chart])), format="png")

    def _reading(self, model: str, text: str, edits: str = "") -> Reading:
        return read(self._allowed(model), text, edits=edits)

    def _allowed(self, model: str) -> Path:
        """Return the path of a model. Raises `InputError` unless it, and each file in it, is in one of the folders."""
        roots = [*self.folders, (APP / "checkpoints").resolve()]
        is_inside = lambda path: any(path.is_relative_to(root) for root in roots)  # noqa: E731
        for candidate in (shipped(Path(model)), *(folder / model for folder in self.folders)):
            path = candidate.resolve()
            if is_inside(path) and path.exists() and all(is_inside(one.resolve()) for one in path.rglob("*")):
                return path
        rule = f"A model must be shipped, like checkpoints/reverse, or in {', '.join(map(str, self.folders))}"
        raise InputError(f"{rule}, without links that leave it; got {model!r:.200}; the tool models lists them.")


def _is_model(path: Path) -> bool:
    """Whether a path looks like a model; only opening it tells whether it is one."""
    is_folder = any((path / name).is_file() for name in ("model.safetensors", "config.json"))
    return is_folder or path.suffix in (".gguf", ".safetensors")


def _answer(**fields: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **fields}, ensure_ascii=False)


def _rows(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """The first rows of a table as plain values with four digits, and the number of those left out."""
    rows = json.loads(table.head(MAX_ROWS).to_json(orient="records", double_precision=4) or "[]")
    return {name: rows} | ({"left_out": len(table) - MAX_ROWS} if len(table) > MAX_ROWS else {})
