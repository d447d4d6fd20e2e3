"""`make gpu`: every test and every benchmark that needs a GPU, each in a process of its own with a limit of its own.

    python -m benchmarks.gpu [--device cpu --short]      build/gpu.json, and build/gpu.md with the same as a table

All limits together are eight minutes. `--device cpu --short` runs the same code in half a minute, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import PARTS

BUILD = Path("build")
LIMITS = {"tests": 110, "hundred percent": 60, "step": 50, "64 seeds": 60, "characters": 30, "record": 30, "worker": 40,
          "out of memory": 50, "two runs": 50}  # fmt: skip
"""Seconds that each part may take."""


def main() -> int:
    given = options()
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"Nothing was measured: torch {torch.__version__} finds no GPU here.", file=sys.stderr)
        return 2
    if given.part:
        rows = PARTS[given.part](given.device, given.short)
        print(json.dumps(rows))
        return 0
    parts = [outcome(name, given) for name in given.only or LIMITS]
    found = {"device": name_of(given.device), "torch": torch.__version__, "short": given.short, "parts": parts}
    BUILD.mkdir(exist_ok=True)
    (BUILD / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (BUILD / "gpu.md").write_text(table(found), encoding="utf-8")
    print(table(found))
    return int(any(part["error"] for part in parts))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--short", action="store_true", help="to see that it runs: its figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), metavar="PART")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def outcome(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The rows of one part, or why there are none, and what it took."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--device", given.device]
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    try:
        done = subprocess.run(
            command + ["--short"] * given.short, capture_output=True, text=True, timeout=LIMITS[name], check=False
        )
        error = "" if done.returncode == 0 else last_line(done.stderr) or f"it ended with {done.returncode}"
        rows = json.loads(last_line(done.stdout)) if done.returncode == 0 else []
    except subprocess.TimeoutExpired:
        error = f"it was not done within {LIMITS[name]} s"
    except ValueError as problem:
        error = f"what it printed is no JSON: {problem}"
    return {"part": name, "seconds": round(time.perf_counter() - began, 1), "error": error, "rows": rows}


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "the processor"


def table(found: dict[str, Any]) -> str:
    """All figures as one Markdown table: what, how much, and what was wanted."""
    lines = [
        f"On {found['device']}, torch {found['torch']}.",
        "",
        "| part | figure | value | goal |",
        "|---|---|---|---|",
    ]
    if found["short"]:
        lines.insert(1, "Run short, only to see that it runs: these figures mean nothing.")
    for part in found["parts"]:
        if part["error"]:
            lines.append(f"| {part['part']} | FAILED | {part['error'].replace('|', '/')} | |")
        for row in part["rows"]:
            value = f"{row['value']:,.4g}" if isinstance(row["value"], float) else row["value"]
            lines.append(f"| {part['part']} | {row['figure']} | {value} | {row.get('goal', '')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
