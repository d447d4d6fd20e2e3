"""Write docs/figures.md, the last step of `make bench`: every figure with its peer and its goal, from the saved tables.

    python -m tools.figures        reads build/figures/*.json (a benchmark's --keep) and build/gpu.json (make gpu)

Figures taken while the machine had other work are marked; missing ones are listed as not measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import KEPT

DOCUMENT = Path("docs/figures.md")
GPU = Path("build/gpu.json")
SHARE, OTHERS = 0.9, 0.2
"""A measurement counts as disturbed if its process got less than `SHARE` of a core, or if other processes used more than
`OTHERS` of all processors when it began."""
MISSING = "not measured"

Cell = tuple[dict[str, Any], str]
"""A cell of a table: the row, given by some of its columns, and the name of the column."""


@dataclass(frozen=True)
class Figure:
    """One line of the document: the cells of our value, the peer's value and their ratio, and the goal."""

    what: str
    table: str
    ours: Cell
    peer: Cell | None = None
    ratio: Cell | None = None
    goal: str = ""
    unit: str = "ms"


@dataclass
class Kept:
    """The saved tables, by name."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Kept:
        found = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
        return cls({one["benchmark"]: one for one in found})

    def value(self, table: str, cell: Cell | None) -> Any:
        """Return the value of a cell; None if it is missing."""
        if cell is None or table not in self.tables:
            return None
        where, column = cell
        rows = (row for row in self.tables[table]["rows"] if where.items() <= row.items())
        return next(rows, {}).get(column)

    def circumstances(self, table: str) -> str:
        """Return the day of the measurement, and any disturbance."""
        if table not in self.tables:
            return MISSING
        facts = self.tables[table]["machine"]
        others, share = facts["taken_by_others"], facts["cores_we_got"]
        if others > OTHERS:
            return f"{facts['day']}, **with other work** ({others:.0%} of the processors)"
        if share < SHARE and table not in WAITING:
            return f"{facts['day']}, **with other work** ({share} of a core)"
        return facts["day"]


def figures() -> Iterator[Figure]:
    """Yield all figures, in the order of the document."""
    step = "A training step of preset reverse"
    for peer in ("nn.TransformerEncoder, heads of 4", "torch.nn parts, heads of 16", "plain loop"):
        cells: tuple[Cell, ...] = (
            ({"step": "ours, packed"}, "ms"),
            ({"step": peer}, "ms"),
            ({"step": peer}, "times ours"),
        )
        yield Figure(f"training step of `reverse`, batch 128; {peer}", step, *cells)
    text = "a training step of the small character model"
    yield Figure(
        "training step of `characters`; as nanoGPT writes it", text,
        ({"step": "ours"}, "ms"), ({"step": "usual"}, "ms"), ({"step": "usual"}, "× ours"),
    )  # fmt: skip
    for name in ("reverse-small", "reverse-mirror", "reverse-seq2seq", "reverse", "modular"):
        row = {"preset": name, "models": 16}
        yield Figure(
            f"a step of each of 16 models of `{name}` in one stack; in turns, as on a CPU", "Many models in one stacked step",
            (row, "ms a model and step"), (row, "alone"), (row, "× as fast as alone"),
        )  # fmt: skip
    for model in ("4 × 4, d 16", "6 × 12, d 384"):
        for tokens in (16, 512):
            row = {"model": model, "tokens": tokens}
            yield Figure(
                f"recording {tokens} tokens, {model}; the plain pass", "Recording one run",
                (row, "recorded ms"), (row, "plain ms"), (row, "times plain"), "≤ 2",
            )  # fmt: skip
    for toggle in ("mask, causal and back", "ablate a head", "positions off"):
        row = {"toggle": toggle}
        yield Figure(
            f"toggle: {toggle}; one line of text",
            "toggles",
            (row, "toggle ms"),
            (row, "text ms"),
            (row, "ratio"),
            "≤ 1.2",
        )
    for visitor, title in (
        ("first after a cold start", "first visitor after a cold start"),
        ("second", "second visitor"),
    ):
        cell = ({"visitor": visitor}, "page open to 100 % s")
        yield Figure(f"opening Train to 100%, {title}", "newcomer", cell, goal="≤ 6", unit="s")
    part = {"part": "start of the process to the first visitor's painted map"}
    slowest, empty = {"screen": "the slowest that shows a model"}, {"screen": "a page with nothing on it"}
    for way, goal in (("by the sidebar", "≤ 1.5"), ("again", "≤ 1.5"), ("first", "")):
        peer = None if way == "by the sidebar" else (empty, f"{way} s")
        ratio = (slowest, "times the empty page") if way == "first" else None
        what = f"the slowest screen that shows a model, {way}; an empty page of Streamlit"
        yield Figure(what, "screens", (slowest, f"{way} s"), peer, ratio, goal, "s")
    for players, steps, goal in ((2, 7, "≤ 0.6"), (4, 32, "≤ 1.2")):
        for panel in ("where they looked", "heads", "when decided"):
            row = {"panel": panel, "players": players}
            yield Figure(
                f"Compare, {players} models × {steps} steps, panel “{panel}”; one line of text",
                "panels of Compare", (row, "s"), (row, "one line s"), (row, "times one line"), goal, "s",
            )  # fmt: skip
    yield Figure("cold start to the first painted map", "cold", (part, "s"), goal="≤ 4", unit="s")
    for name, frame in (("reverse", "≤ 50"), ("SmolLM2-135M-Instruct", "≤ 100")):
        row, home = {"model": name}, f"Home with `{name}`"
        yield Figure(f"{home}: link to scene, warm server", "scene", (row, "link to scene s"), goal="≤ 1", unit="s")
        for part in ("playing", "entering a head", "leaving it"):
            yield Figure(f"{home}, {part}: longest frame", "scene", (row, f"{part} ms"), goal=frame)
    for name in ("reverse", "sort", "characters"):
        row = {"model": name}
        what = f"bytes of the live page of `{name}`; BertViz's static page of the same attention"
        yield Figure(what, "live pages", (row, "bytes"), (row, "BertViz bytes"), goal="≤ 1,000,000", unit="")
    for column, what, goal in (("first ms", "first picture", "≤ 500"), ("toggle ms", "change of the mask", "≤ 50")):
        yield Figure(f"live page of `reverse`: {what}", "live pages", ({"model": "reverse"}, column), goal=goal)


WAITING = {
    "newcomer",
    "cold",
    "screens",
    "panels of Compare",
    "toggles",
    "grid",
    "toggles beside a training",
    "watching",
    "live pages",
    "scene",
}
"""Tables of processes that mostly wait for a browser, so their share of a core is meaningless."""


def page(kept: Kept, gpu: dict[str, Any] | None) -> str:
    """Return the text of the document."""
    lines = [
        "# Figures", "", "<!-- written by `python -m tools.figures` -->", "",
        "Each figure was measured in alternation with its peer, and ratios are medians over the turns. A ratio above 1 means "
        "that ours is faster, except for recording, toggles and panels, whose peers do less work. Goals are the "
        "project’s own.", "",
        "| figure; peer | ours | peer | ratio | goal | measured |", "|---|--:|--:|--:|---|---|",
    ]  # fmt: skip
    for one in figures():
        ours, peer, ratio = (kept.value(one.table, cell) for cell in (one.ours, one.peer, one.ratio))
        amounts = [_text(ours, one.unit), _text(peer, one.unit), _text(ratio, "")]
        measured = MISSING if ours is None else kept.circumstances(one.table)
        lines.append(f"| {one.what} | {' | '.join(amounts)} | {one.goal} | {measured} |")
    lines += ["", "## On a GPU", ""]
    if gpu is None or gpu["short"]:
        return "\n".join([*lines, "Not measured yet: run `make gpu`.", ""])
    lines += [
        f"On {gpu['device']}, torch {gpu['torch']}, by `make gpu`.",
        "",
        "| figure | value | goal |",
        "|---|--:|---|",
    ]
    for part in gpu["parts"]:
        lines += [f"| {part['part']} | failed: {part['error']} | |"] if part["error"] else []
        lines += [f"| {row['figure']} | {_text(row['value'], '')} | {row.get('goal', '')} |" for row in part["rows"]]
    return "\n".join([*lines, ""])


def _text(value: Any, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.3g} {unit}".strip() if isinstance(value, float) else str(value)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    gpu = json.loads(GPU.read_text("utf-8")) if GPU.exists() else None
    DOCUMENT.write_text(page(Kept.of(KEPT), gpu), encoding="utf-8")
    print(f"{DOCUMENT}: {sum(1 for _ in figures())} figures")


if __name__ == "__main__":
    main()
