"""Executors: what computes the runs of the run store. The store stays the truth; an executor only computes.

    process   a process of this machine for each run, the default
    ray       an actor of a Ray cluster for each run, and for each batch of a sweep

`XFORMER_EXECUTOR` chooses, `XFORMER_RAY_ADDRESS` says where the cluster is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from xformer.errors import ConfigError

PROCESS, RAY = "process", "ray"
VARIABLE = "XFORMER_EXECUTOR"


def chosen(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the executor that starts waiting runs.

    Raises:
        ConfigError: There is no executor of that name.

    Example:
        >>> chosen({"XFORMER_EXECUTOR": "ray"}), chosen({})
        ('ray', 'process')
    """
    name = environment.get(VARIABLE) or PROCESS
    if name not in (PROCESS, RAY):
        raise ConfigError(f"{VARIABLE} must be {PROCESS} or {RAY}, got {name!r:.40}; for example {RAY}.")
    return name
