"""Tables built from arrays, a row per cell, and reports of tables that are still being filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from xformer.formatting import check_indices


def array_table(*axes: Mapping[str, Sequence[Any]], **values: Tensor) -> pd.DataFrame:
    """Build a table from arrays of one shape, a row per cell: the columns of each axis, then the value of each array.

    Args:
        axes: For each axis, the columns that label its entries, each as long as the axis.
        values: The arrays, by column name.

    Returns:
        The rows; the last axis varies fastest.
    """
    places = np.indices([len(next(iter(axis.values()))) for axis in axes]).reshape(len(axes), -1)
    columns: dict[str, np.ndarray] = {}
    for axis, at in zip(axes, places, strict=True):
        columns |= {name: pd.Series(labels).to_numpy()[at] for name, labels in axis.items()}
    return pd.DataFrame(columns | {name: array.flatten().numpy(force=True) for name, array in values.items()})


def selected_positions(positions: Sequence[int] | None, n: int) -> list[int]:
    """Return the positions that a caller selects, by default all n of them. Raises `InputError` if one does not exist."""
    selected = list(range(n) if positions is None else positions)
    check_indices("positions", selected, n)
    return selected


@dataclass(frozen=True, eq=False)
class TableSoFar:
    """A report of work that fills a table step by step."""

    table: pd.DataFrame
    done: int
    total: int

    @property
    def is_final(self) -> bool:
        """Whether all steps are done."""
        return self.done == self.total
