"""The data of the matrices widget: the matrices of an attention computation, and how the numbers of each are computed.

data = matrices_data([Shown("X", "X", mixed, "x"), Shown("S", "S = X Xᵀ", mixed, "scores", made=product("X", "X"))])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.principles import AFTER, BEFORE, MAX_WORDS, AttentionCell, Mixed, StreamUpdate, matrix, numbered
from xformer.viz.theme import DIVERGING, HEAD_HUES, MASKED, SEQUENTIAL, in_both_themes, signed_limit

_OPERANDS = {"left": HEAD_HUES[1], "right": HEAD_HUES[0]}
COLOURS = in_both_themes({"sequential": SEQUENTIAL, "diverging": DIVERGING, "masked": MASKED, **_OPERANDS})

MAX_KEYS = 16
"""Largest number of columns of the row of a head; more keys share the last column."""
COLUMNS_OF_Z = 4
"""Number of components of z and of the residual stream that are drawn."""


def product(
    left: str, right: str, *, by: str = "rows", divide: float = 1.0, moved: str = "a later word"
) -> dict[str, Any]:
    """Describe a matrix of dot products: rows of `left` with rows or columns (`by`) of `right`, divided by a number.

    `moved` explains values that differ from the product.
    """
    return {"op": "product", "left": left, "right": right, "by": by, "divide": divide, "moved": moved}


def softmax(of: str) -> dict[str, Any]:
    """Describe a matrix whose rows are the softmax of the rows of another."""
    return {"op": "softmax", "of": of}


def mix(left: str, right: str) -> dict[str, Any]:
    """Describe a matrix whose rows are sums of the rows of `right`, weighted by the rows of `left`."""
    return {"op": "mix", "left": left, "right": right}


def add(**of: str) -> dict[str, Any]:
    """Describe a matrix that is the sum of others, given with their names in words."""
    return {"op": "add", "of": [[name, words] for name, words in of.items()]}


@dataclass(frozen=True, eq=False)
class Shown:
    """One matrix of an attention: `which` of `mixed`, its title, and how it is `made` from other matrices, given by name."""

    name: str
    title: str
    mixed: Mixed
    which: str
    about: str = ""
    made: dict[str, Any] | None = None
    n_columns: int | None = None
    drawn: bool = True
    """Whether it is drawn, or only used by others."""
    breaks: bool = False
    """Whether it starts a new line if not all matrices fit in one."""
    has_sums: bool = False
    """Whether each row ends with its sum."""
    editable: bool = False
    """Whether its numbers can be edited."""
    rows_editable: bool = True
    """Whether its rows are the words in the order in which they are edited, if they can be."""

    def data(self) -> dict[str, Any]:
        """Return the matrix as plain values; masked cells are None."""
        cells = matrix(self.mixed, what=self.which, n_columns=self.n_columns)
        table = cells["value"].to_numpy().reshape(len(self.mixed.names), -1)
        is_share = self.which == "weights"
        hides_later = is_share and self.mixed.mask in (BEFORE, AFTER)
        values = [
            [None if math.isinf(value) or (hides_later and j > i) else value for j, value in enumerate(row)]
            for i, row in enumerate(table.tolist())
        ]
        return _matrix(self.name, values) | {
            "title": self.title,
            "about": self.about,
            "rows": list(self.mixed.names),
            "columns": list(dict.fromkeys(cells["column"])),
            "share": is_share,
            "made": self.made,
            "drawn": self.drawn,
            "breaks": self.breaks,
            "sums": [sum(value or 0.0 for value in row) for row in values] if self.has_sums else None,
            "editable": self.editable,
            "rows_editable": self.rows_editable,
        }


def operand(name: str, values: Float[Tensor, "row column"], rows: Sequence[str] = ()) -> dict[str, Any]:
    """Return a matrix that is used but not drawn, such as learned weights."""
    return _matrix(name, values.tolist()) | {
        "rows": list(rows) or [str(index + 1) for index in range(len(values))],
        "columns": [str(index + 1) for index in range(values.shape[1])],
        "drawn": False,
    }


def _matrix(name: str, values: list[list[Any]]) -> dict[str, Any]:
    largest = signed_limit([[value or 0.0 for value in row] for row in values])  # pyright: ignore[reportArgumentType]
    blank = {"title": name, "about": "", "share": False, "made": None, "breaks": False, "sums": None, "editable": False}
    return blank | {"name": name, "values": values, "largest": largest}


def matrices_data(
    shown: Sequence[Shown],
    *,
    step: str,
    row: int = 0,
    operands: Sequence[dict[str, Any]] = (),
    words: Sequence[str] | None = None,
    predict: bool = False,
) -> dict[str, Any]:
    """Return the data of the widget as plain values.

    Args:
        shown: The matrices, in the order in which they are computed.
        step: The name of the step; the animation plays when it changes.
        row: The row whose computation is shown, from 0.
        operands: Matrices that others are computed from and that are not drawn.
        words: The words of the rows, if they can be edited.
        predict: Whether the visitor is asked for a number of each matrix before it is shown.
    """
    drawn = [*operands, *(one.data() for one in shown)]
    return _data(drawn, step) | {"row": row, "words": None if words is None else list(words), "predict": predict}


def _data(drawn: list[dict[str, Any]], step: str) -> dict[str, Any]:
    return {"matrices": drawn, "step": step, "row": 0, "words": None, "most": MAX_WORDS, "colours": COLOURS}


def is_followed(cell: AttentionCell) -> bool:
    """Return whether the weights of the cell's row are exactly the softmax of its scores."""
    return cell.scores.softmax(dim=-1).allclose(cell.pattern, atol=1e-3)


def _folded(cell: AttentionCell, key: int) -> tuple[AttentionCell, list[str], int]:
    """Let the keys with the smallest weights share a last column, if there are more than `MAX_KEYS`.

    The score of n keys together is log Σ eˢ, and their value the mean of their values by weight, so that the softmax over the
    columns, and the weighted sum of the values, stay what they are.

    Returns:
        The cell with these columns, their labels, and the column of `key`.
    """
    names = numbered(cell.tokens)
    if len(names) <= MAX_KEYS:
        return cell, names, key
    largest = [at for at in cell.pattern.argsort(descending=True).tolist() if at != key][: MAX_KEYS - 2]
    kept = sorted([key, *largest])
    rest = [at for at in range(len(names)) if at not in kept]
    weight, values = cell.pattern[rest].sum(), cell.pattern[rest] @ cell.values[rest]
    together = {
        "scores": cell.scores[rest].logsumexp(dim=0),
        "pattern": weight,
        "keys": torch.zeros_like(cell.k),
        "values": values / weight if weight > 0 else values,
        "allowed": cell.allowed[rest].any(),
    }
    columns = {name: torch.cat([getattr(cell, name)[kept], one[None]]) for name, one in together.items()}
    return replace(cell, **columns), [*(names[at] for at in kept), f"{len(rest)} others"], kept.index(key)


def row_data(
    cell: AttentionCell, *, query: str, key: int, step: str, stream: StreamUpdate | None = None
) -> dict[str, Any]:
    """Return the data of one query of a head with its actual numbers.

    They are q·k / √d, mask, softmax, the weighted sum of values, and what it adds to the residual stream.

    Args:
        cell: One cell of the query.
        stream: What its head adds to the residual stream; without it, the data end with z.
        query: The label of the query.
        key: The key whose product is shown first, from 0.
        step: The name of the cell; the animation plays when it changes.
    """
    masked = f"{int((~cell.allowed).sum())} masked: −∞" if not cell.allowed.all() else "no key is masked"
    n_keys = len(cell.scores)
    cell, keys, key = _folded(cell, key)
    z = (cell.pattern @ cell.values)[:COLUMNS_OF_Z]

    def row(name: str, values: list[float], title: str, about: str, **more: Any) -> dict[str, Any]:
        numbers = [None if math.isinf(value) else value for value in values]
        return _matrix(name, [numbers]) | {"rows": [query], "drawn": True, "title": title, "about": about, **more}

    is_ablated = z.any() and not cell.z.any()
    about = "ablated: set to 0" if is_ablated else f"{len(z)} of {len(cell.z)} numbers"
    scores = product("q", "K", divide=math.sqrt(cell.d_head), moved="including other terms of this model")
    if n_keys > len(keys):
        scores["together"] = n_keys - len(keys) + 1
    drawn = [
        operand("q", cell.q[None], [query]),
        operand("K", cell.keys, keys),
        operand("V", cell.values, keys),
        row("S", cell.scores.tolist(), f"S = q Kᵀ / √{cell.d_head}", masked, columns=keys, made=scores),
        row("A", cell.pattern.tolist(), "A = softmax(S)", "sums to 1", columns=keys, made=softmax("S"), share=True),
        row("Z", z.tolist(), "z = A V", about, columns=[f"z{at + 1}" for at in range(len(z))], made=mix("A", "V")),
    ]
    if stream is not None:
        drawn += _stream_rows(stream, query)
    return _data(drawn, step) | {"at": ["S", key]}


def _stream_rows(stream: StreamUpdate, query: str) -> list[dict[str, Any]]:
    """Return what the head adds to the residual stream and the stream after it, at the numbers that it changes most."""
    largest = stream.head.abs().topk(min(COLUMNS_OF_Z, len(stream.head))).indices.sort().values  # [column]
    columns = [f"x{at + 1}" for at in largest.tolist()]

    def row(name: str, vector: Float[Tensor, " d_model"], **more: Any) -> dict[str, Any]:
        return _matrix(name, [vector[largest].tolist()]) | {"rows": [query], "columns": columns, **more}

    changed = f"the {len(columns)} of {len(stream.head)} numbers that change most"
    o = {"title": "o = z Wₒ", "about": changed, "made": product("z", "Wₒ", by="columns"), "breaks": True}
    total = add(x="the stream", O="this head", others="other heads, bias")
    about = "normalised, then the stream goes on" if stream.is_normed else "the stream goes on"
    after = {"title": "x + o + others", "about": about, "made": total}
    return [
        operand("z", stream.z[None], [query]),
        operand("Wₒ", stream.w_o[:, largest]),
        row("x", stream.before, drawn=False),
        row("others", stream.others, drawn=False),
        row("O", stream.head, drawn=True, **o),
        row("X", stream.total, drawn=True, **after),
    ]
