"""RunRecord point of the command line: parse the arguments, run one command, and report an error as one sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from xformer.cli.output import print_error, to_printable
from xformer.disk_quota import runs_folder
from xformer.errors import XformerError

COMMANDS = {
    "train": "train", "presets": "train", "eval": "model", "trace": "model", "export": "model", "doctor": "model",
    "runs": "runs", "app": "app", "models": "app", "lesson": "model",
    "assignment": "assignment", "mcp": "mcp",
}  # fmt: skip
"""The module of each command, which implements it in a function `run_COMMAND`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 on success, 1 after an error with one sentence on stderr, 2 for invalid arguments.
    """
    root = parser()
    options = root.parse_args(arguments)
    if options.command == "export" and options.model != "live" and not (options.input and options.out):
        root.error("the following arguments are required: --input, --out")
    try:
        module = import_module(f"xformer.cli.{COMMANDS[options.command]}")  # imported late to keep --help fast
        return getattr(module, f"run_{options.command}")(options) or 0
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports an error at exit
        return 141
    except XformerError as error:
        print_error(str(error))
        return 1
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error))
        return 1
    except KeyboardInterrupt:
        return 130


ORDERS = ("delete", "stop", "pause", "resume")


class _Parser(argparse.ArgumentParser):
    """An argument parser that escapes control characters in its error messages."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {to_printable(message, sys.stderr)}", file=sys.stderr)
        raise SystemExit(2)


def parser() -> _Parser:
    """Return the argument parser of all commands."""
    root = _Parser(prog="python -m xformer", description="Train, score and inspect transformers.")
    commands = root.add_subparsers(dest="command", required=True)
    answer = "print one JSON object with a schema_version"

    train = commands.add_parser("train", help="train a preset")
    train.add_argument("--preset", required=True, help="the name of a preset; the command presets lists them")
    train.add_argument("--out", required=True, help="the folder for the checkpoint and its snapshots")
    train.add_argument("--steps", type=int, help="the number of steps, instead of the preset's")
    train.add_argument("--seed", type=int, help="the seed, instead of the preset's")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER")
    where = "process: this machine; ray: the cluster at XFORMER_RAY_ADDRESS. Default: XFORMER_EXECUTOR, else process"
    train.add_argument("--executor", choices=["process", "ray"], help=where)
    train.add_argument("--resume", action="store_true", help="continue the run in --out where it stopped")
    train.add_argument("--score", type=int, default=10_000, help="the number of unseen inputs to score on; 0 for none")
    train.add_argument("--text", help="a UTF-8 text file to train on, instead of the preset's text")
    train.add_argument("--no-snapshots", action="store_true", help="write only the final checkpoint")
    train.add_argument("--seeds", type=int, help="train this many models at once, with seeds 0, 1, …, in OUT/000, …")
    grid = "train a model for each value, e.g. peak_lr=0.001,0.003; give it twice for a grid"
    train.add_argument("--sweep", action="append", metavar="NAME=VALUES", help=grid)

    presets = commands.add_parser("presets", help="list the presets")
    presets.add_argument("--json", action="store_true", help=answer)

    evaluate = commands.add_parser("eval", help="score a checkpoint on unseen sequences")
    evaluate.add_argument("dir", help="a checkpoint folder or a .safetensors file")
    evaluate.add_argument("--samples", type=int, default=10_000, help="the number of unseen inputs")
    evaluate.add_argument("--seed", type=int, default=1, help="the seed of the inputs")
    evaluate.add_argument("--lengths", help="score each of these input lengths, e.g. 3-60")
    evaluate.add_argument("--edge-cases", action="store_true", help="also score the edge cases of its task")
    evaluate.add_argument("--card", action="store_true", help="write all scores to its card, for its training seed + 1")
    evaluate.add_argument("--json", action="store_true", help=answer)

    trace = commands.add_parser("trace", help="record every activation of a model on one input")
    trace.add_argument("dir", help="a checkpoint folder, a .safetensors file, or an external model (written as .npz)")
    trace.add_argument("--input", required=True, help='the input of the model, e.g. "3 7 12 9"')
    trace.add_argument("--out", required=True, help="the file to write: .safetensors, or .npz for NumPy")
    trace.add_argument("--json", action="store_true", help=answer)

    export = commands.add_parser(
        "export",
        help="write the attention view of one input, or a model that runs in the page, as a self-contained HTML file",
        usage="%(prog)s MODEL --input INPUT --out FILE [--head L.H] [--edits EDITS]\n"
        "       %(prog)s live MODEL FILE [--input INPUT]",
    )
    export.add_argument("model", help="a checkpoint folder, .safetensors file or Hugging Face model; or the word live")
    live = "after live: a checkpoint folder or a training run with its snapshots, and the file to write"
    export.add_argument("live", nargs="*", metavar="MODEL FILE", help=live)
    export.add_argument("--input", help='the input of the model, e.g. "3 7 12 9"')
    export.add_argument("--out", help="the file to write, ending in .html")
    export.add_argument("--head", default="1.1", help="the layer and head to enlarge, both counted from 1")
    export.add_argument("--edits", default="", help="edits to compare with the original: ablate:encoder.1.attn.2")

    lesson = commands.add_parser("lesson", help="build the HTML file of a lesson, which runs its model offline")
    lesson.add_argument("action", choices=["build"])
    lesson.add_argument("file", help="a Markdown file, see docs/lessons.md")
    lesson.add_argument("--out", help="the file to write, ending in .html; by default next to the lesson")

    doctor = commands.add_parser("doctor", help="find errors in a model or in a trace")
    where = "a checkpoint folder, a .safetensors file, an external model or a trace; or gpt.py:make, which is imported and run"
    doctor.add_argument("path", help=where)
    doctor.add_argument("--text", help="the input to check a model on; by default an example")
    doctor.add_argument("--spec", default="", help="what it is meant to be: vaswani, gpt, bert or llama")
    doctor.add_argument("--json", action="store_true", help=answer)

    assignment = commands.add_parser("assignment", help="write the folder of an assignment, or check submissions")
    assignment.add_argument("action", choices=["new", "check"])
    assignment.add_argument("paths", nargs="+", metavar="path", help="the new folder, or submissions: folders or files")
    assignment.add_argument("--set", choices=["gpt", "bugs"], default="gpt", help="new: ten tasks, or models to repair")
    for_grader = "new: also write the files of this grader"
    assignment.add_argument("--grader", choices=["nbgrader", "otter"], default="", help=for_grader)
    assignment.add_argument("--task", help="check: one task only, e.g. softmax")
    told = "check: 1 tells where to look, 2 also what is wrong, 3 also how it should read"
    assignment.add_argument("--hint", type=int, default=1, choices=[1, 2, 3], help=told)
    assignment.add_argument("--json", action="store_true", help=answer)
    assignment.add_argument("--junit", metavar="FILE", help="check: write JUnit XML")
    assignment.add_argument(
        "--csv", metavar="FILE", help="check: write a table with a row for each submission and task"
    )
    assignment.add_argument(
        "--room", metavar="LINK", help="check: report solved tasks to a room: http://HOST/join/CODE"
    )
    assignment.add_argument("--name", default="", help="check: the nickname for the room")
    train = "check: train the GPT for up to half a minute, and write its attention as a page"
    assignment.add_argument("--train", action="store_true", help=train)

    runs = commands.add_parser("runs", help="list, show, delete, stop, pause or resume training runs")
    runs.add_argument("action", nargs="?", default="list", choices=["list", "show", *ORDERS])
    runs.add_argument("run", nargs="?", help="the id or folder name of the run")
    runs.add_argument("--folder", default=str(runs_folder()), help="the folder of the runs; by default the app's")

    runs.add_argument("--json", action="store_true", help=answer)

    mcp = commands.add_parser("mcp", help="serve models to a coding agent over stdio (Model Context Protocol)")
    mcp.add_argument(
        "folders", nargs="+", metavar="folder", help="the folders that may be read; shipped models always may"
    )
    mcp.add_argument(
        "--run-code", action="store_true", help="also import and run Python files there, to diagnose their models"
    )

    app = commands.add_parser("app", help="start the app")
    app.add_argument("--model", help="a Hugging Face model to open first: a folder, or a .gguf file")
    app.add_argument("--runs", help="the folder of the runs to show, for example one recorded on another machine")
    app.add_argument("--playlist", help="a playlist file to offer first, see docs/lessons.md")
    app.add_argument("--host", help="the address to serve on; 0.0.0.0 allows access from the network")
    app.add_argument("--port", type=int, help="the port of the server, instead of 8501")

    models = commands.add_parser("models", help="list the external models on this machine, or fetch one")
    models.add_argument("action", nargs="?", default="list", choices=["list", "fetch"])
    models.add_argument("name", nargs="*", help="the models to fetch")
    models.add_argument("--json", action="store_true", help=answer)
    return root
