"""`make gpu`: run every test and benchmark that needs a GPU, each in its own process with its own time limit.

    python -m benchmarks.gpu [--device cpu --short]      writes build/gpu.json, and build/gpu.md with the same table

The limits add up to eight minutes. `--device cpu --short` runs the same code in half a minute; its figures are meaningless.
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
"""Time limit of each part in seconds."""


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
    parser.add_argument("--short", action="store_true", help="smoke test only: the figures are meaningless")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), metavar="PART")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def outcome(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a part; return its rows or its error, and its duration."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--device", given.device]
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    try:
        done = subprocess.run(
            command + ["--short"] * given.short, capture_output=True, text=True, timeout=LIMITS[name], check=False
        )
        error = "" if done.returncode == 0 else last_line(done.stderr) or f"exit status {done.returncode}"
        rows = json.loads(last_line(done.stdout)) if done.returncode == 0 else []
    except subprocess.TimeoutExpired:
        error = f"not finished within {LIMITS[name]} s"
    except ValueError as problem:
        error = f"its output is not JSON: {problem}"
    return {"part": name, "seconds": round(time.perf_counter() - began, 1), "error": error, "rows": rows}


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "the processor"


def table(found: dict[str, Any]) -> str:
    """Return all figures and goals as one Markdown table."""
    lines = [
        f"On {found['device']}, torch {found['torch']}.",
        "",
        "| part | figure | value | goal |",
        "|---|---|---|---|",
    ]
    if found["short"]:
        lines.insert(1, "Short run as a smoke test: these figures are meaningless.")
    for part in found["parts"]:
        if part["error"]:
            lines.append(f"| {part['part']} | FAILED | {part['error'].replace('|', '/')} | |")
        for row in part["rows"]:
            value = f"{row['value']:,.4g}" if isinstance(row["value"], float) else row["value"]
            lines.append(f"| {part['part']} | {row['figure']} | {value} | {row.get('goal', '')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
