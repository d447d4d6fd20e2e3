"""Read a figure: the rows of a chart, its thumbnails, and the text of an SVG in document order."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np

from xformer.viz.charts import GREY, LETTERS

SVG = "{http://www.w3.org/2000/svg}"


def spec_of(chart: Any) -> dict[str, Any]:
    """Return the specification of a chart, without schema validation, which takes seconds."""
    return chart if isinstance(chart, dict) else chart.to_dict(validate=False)


def datasets(chart: Any) -> list[list[dict[str, Any]]]:
    """Return the rows of each table of a chart."""
    return list(spec_of(chart)["datasets"].values())


def rows_of(chart: Any, column: str) -> list[dict[str, Any]]:
    """Return the rows of the only table of a chart with that column."""
    tables = [rows for rows in datasets(chart) if rows and column in rows[0]]
    assert len(tables) == 1, f"{len(tables)} tables have {column}"
    return tables[0]


def rows_of_layer(chart: Any, layer: int) -> list[dict[str, Any]]:
    """Return the rows that a layer draws: its own, or those that all layers share."""
    spec = spec_of(chart)
    return spec["datasets"][(spec["layer"][layer].get("data") or spec["data"])["name"]]


def all_rows(chart: Any) -> list[dict[str, Any]]:
    """Return all rows of all tables of a chart."""
    return [row for rows in datasets(chart) for row in rows]


def ends_of(chart: Any, channel: str = "color", layer: int = 0) -> tuple[float, float]:
    """Return the ends of the scale of a layer; fail if it is not centred."""
    spec = spec_of(chart)
    domain = spec.get("layer", [spec])[layer]["encoding"][channel]["scale"]["domain"]
    assert len(domain) % 2 == 0 or abs(domain[len(domain) // 2] - (domain[0] + domain[-1]) / 2) < 1e-9
    return domain[0], domain[-1]


def maps_of(chart: Any) -> list[np.ndarray]:
    """Return the values of the thumbnails of a chart, [row, col] each: NaN where masked, infinite where not a number."""
    found = []
    for row in rows_of(chart, "cells"):
        known = {letter: value / 61 for value, letter in enumerate(LETTERS)} | {GREY: np.nan}
        found.append(np.reshape([known.get(one, np.inf) for one in row["cells"]], (-1, row["columns"])))
    return found


def words(drawn: str) -> list[str]:
    """Return the texts of an SVG."""
    return ["".join(node.itertext()) for node in ET.fromstring(drawn).iter(f"{SVG}text")]
