"""How much memory a value takes, as far as that can be known without taking it apart."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from xformer.subjects.foreign.on_demand import OnDemand


def n_bytes(value: Any) -> int:
    """About how much memory a value takes: tensors and arrays exactly, storage that is shared inside it once."""
    return _n_bytes(value, set())


def _n_bytes(value: Any, seen: set[int]) -> int:
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return 0 if _again(storage.data_ptr(), seen) else storage.nbytes()
    if _again(id(value), seen):
        return 0
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, torch.nn.Module):
        return sum(_n_bytes(tensor, seen) for tensor in (*value.parameters(), *value.buffers()))
    if dataclasses.is_dataclass(value):
        if hasattr(type(value), "heads_read"):  # a `Subject`; `isinstance` would work out all its properties
            return 0  # the weights are counted where the model is kept
        names = getattr(value, "__dict__", None) or (field.name for field in dataclasses.fields(value))
        return sum(
            _n_bytes(getattr(value, name), seen) for name in list(names)
        )  # what it has worked out and remembers, too
    if isinstance(value, OnDemand):
        return sum(_n_bytes(item, seen) for item in value.held())
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(_n_bytes(item, seen) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return sys.getsizeof(value) + sum(_n_bytes(item, seen) for item in value)
    if hasattr(value, "memory_usage"):  # a pandas table
        usage = value.memory_usage(deep=True)
        return int(usage.sum() if hasattr(usage, "sum") else usage)
    return sys.getsizeof(value)


def _again(number: int, seen: set[int]) -> bool:
    if number in seen:
        return True
    seen.add(number)
    return False
