"""Read a figure: the rows of a chart, its small maps, and the marks and words of an SVG in their order."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import numpy as np

from xformer.viz.charts import GREY, LETTERS

SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def spec_of(chart: Any) -> dict[str, Any]:
    """A chart as the browser gets it, without the check against the schema, which takes seconds."""
    return chart if isinstance(chart, dict) else chart.to_dict(validate=False)


def datasets(chart: Any) -> list[list[dict[str, Any]]]:
    """The rows of each table of a chart."""
    return list(spec_of(chart)["datasets"].values())


def rows_of(chart: Any, column: str) -> list[dict[str, Any]]:
    """The rows of the one table of a chart with that column."""
    tables = [rows for rows in datasets(chart) if rows and column in rows[0]]
    assert len(tables) == 1, f"{len(tables)} tables have {column}"
    return tables[0]


def all_rows(chart: Any) -> list[dict[str, Any]]:
    """Every row of every table of a chart, as the browser gets it."""
    return [row for rows in datasets(chart) for row in rows]


def ends_of(chart: Any, channel: str = "color", layer: int = 0) -> tuple[float, float]:
    """Where the scale of a layer begins and ends; one whose middle is not half-way fails."""
    spec = spec_of(chart)
    domain = spec.get("layer", [spec])[layer]["encoding"][channel]["scale"]["domain"]
    assert len(domain) % 2 == 0 or abs(domain[len(domain) // 2] - (domain[0] + domain[-1]) / 2) < 1e-9
    return domain[0], domain[-1]


def maps_of(chart: Any) -> list[np.ndarray]:
    """The values of the small maps of a chart, [row, col] each: NaN where masked, infinite where it is not a number."""
    found = []
    for row in rows_of(chart, "cells"):
        values = [
            np.nan if one == GREY else LETTERS.index(one) / 61 if one in LETTERS else np.inf for one in row["cells"]
        ]
        found.append(np.reshape(values, (-1, row["columns"])))
    return found


@dataclass(frozen=True)
class Mark:
    """A path, or a line of text, which has no size here."""

    look: dict[str, str]
    points: list[tuple[float, float]]
    """In pixels of the picture; of a circle or a rounded corner also what bends it."""
    text: str = ""

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        (xs, ys) = zip(*self.points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    @property
    def middle(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


def marks(drawn: str) -> list[Mark]:
    """All that can be seen in an SVG, what is drawn last at the end."""
    found: list[Mark] = []

    def walk(node: ET.Element, x: float, y: float) -> None:
        moved = re.match(r"translate\(([^,]+),([^)]+)\)", node.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        tag, look = node.tag.removeprefix(SVG), dict(node.attrib)
        if tag == "path" and {look.get("fill", "none"), look.get("stroke", "none")} != {"none"}:
            found.append(Mark(look, [(x + one, y + other) for one, other in _points(look["d"])]))
        elif tag == "text":
            found.append(Mark(look, [(x, y)], "".join(node.itertext())))
        for child in node:
            walk(child, x, y)

    for picture in ET.fromstring(drawn).findall(f"{SVG}svg"):
        walk(picture, 0, 0)
    return found


def _points(path: str) -> list[tuple[float, float]]:
    """Where a path goes. Of a circle, which alone has arcs, the corners of its box."""
    points: list[tuple[float, float]] = []
    for command, rest in re.findall(r"([MLCAhv])([^MLCAhvZ]*)", path):
        numbers = [float(one) for one in NUMBER.findall(rest)]
        if command == "A":
            radius = numbers[0]
            return [(-radius, -radius), (radius, radius)]
        if command in "hv":
            (x, y), by = points[-1], numbers[0]
            points.append((x + by, y) if command == "h" else (x, y + by))
        else:
            points += zip(numbers[::2], numbers[1::2], strict=True)
    return points


def words(drawn: str) -> list[str]:
    """What can be selected in an SVG."""
    return ["".join(node.itertext()) for node in ET.fromstring(drawn).iter(f"{SVG}text")]
