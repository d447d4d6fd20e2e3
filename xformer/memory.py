"""Estimate the memory of a recorded run from the configuration alone.

Attention takes most of it: each layer keeps scores and pattern, [batch, head, query, key] in float32. Even a small model with
many heads needs gigabytes for a long input.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from xformer.config import ModelConfig
from xformer.disk_quota import megabytes
from xformer.errors import InputError

BYTES_PER_FLOAT = 4
LAYER_BYTES = 256 * 1024**2
"""The memory limit of one layer in a pass over many inputs."""
UNKNOWN_BYTES = 2**62
"""Stands for a size that the system does not report; more than any machine has."""
ANALYSIS_BYTES = 500_000_000
"""The memory limit of one table; see `check_analysis`."""
MEMINFO = Path("/proc/meminfo")
"""The memory of the machine; the file exists on Linux only."""
CONTAINER = Path("/sys/fs/cgroup")
"""The folder with a container's memory limits; the files do not exist outside a container."""
SCRATCH_MATRICES = 4
"""The number of temporary [head, query, key] matrices besides the kept ones while a layer is computed."""


def trace_bytes(config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1) -> int:
    """Estimate the bytes of a trace with `source` positions in the first stack and `target` in the decoder of a pair."""
    total = 0
    for length, memory in _stacks(config, source, target):
        layer = _layer(config, length, length) + (_attention(config, length, memory) if memory else 0)
        total += config.n_layers * layer + BYTES_PER_FLOAT * 3 * length * config.d_model
    return batch * (total + BYTES_PER_FLOAT * (target or source) * config.vocab_size)


def peak_bytes(config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1) -> int:
    """Estimate the peak memory of a recorded run in bytes: the trace and the temporaries of the largest layer."""
    widest = max(length * max(length, memory) for length, memory in _stacks(config, source, target))
    scratch = batch * SCRATCH_MATRICES * BYTES_PER_FLOAT * config.n_heads * widest
    return trace_bytes(config, source, target, batch=batch) + scratch


def check_fits(
    config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1, allowed_bytes: int
) -> None:
    """Raise `InputError` if a recorded run takes more than `allowed_bytes`."""
    needed = peak_bytes(config, source, target, batch=batch)
    check_recording(needed, config.n_layers * config.n_heads, source, allowed_bytes=allowed_bytes)


def check_recording(needed: int, n_heads: int, n_positions: int, *, allowed_bytes: int) -> None:
    """Raise `InputError` if a run takes more than `allowed_bytes`; see `ModelAdapter.recording_bytes`."""
    if needed > allowed_bytes:
        raise InputError(
            f"Recording this run takes about {megabytes(needed)} of memory ({n_heads:,} heads × {n_positions:,}² cells), "
            f"but {megabytes(allowed_bytes)} are allowed; use a shorter input."
        )


def rows_that_fit(config: ModelConfig, length: int) -> int:
    """How many inputs of this length can be read in one unrecorded batch; at least one."""
    per_position = 8 * config.d_model + config.ffn_component.n_kept * config.d_ff + config.vocab_size
    row = BYTES_PER_FLOAT * length * per_position
    row += BYTES_PER_FLOAT * config.n_heads * length * (2 * (config.d_head + config.d_value) + length)
    return max(1, LAYER_BYTES // row)


def needed_bytes(analysis: str, **sizes: int) -> int:
    """Estimate the peak memory of an analysis in bytes from shapes alone, excluding the run itself.

    Args:
        analysis: An analysis whose memory grows faster than its input: "attention" (one row per cell of one head), "cosines"
            (one row per pair of positions), "rollout" (one layer at a time), "direct_logit_effect", "probabilities".
        sizes: The sizes that it depends on: n (positions), vocab, neurons.

    Example:
        >>> from xformer.memory import needed_bytes
        >>> needed_bytes("direct_logit_effect", neurons=3_072, vocab=50_000)
        614400000
    """
    return _NEEDED[analysis](sizes)


_NEEDED: dict[str, Callable[[dict[str, int]], int]] = {
    "attention": lambda sizes: 18 * sizes["n"] ** 2,  # two codes, a flag and a weight per row
    "cosines": lambda sizes: 108 * sizes["n"] ** 2,
    "rollout": lambda sizes: 10 * BYTES_PER_FLOAT * sizes["n"] ** 2,
    "direct_logit_effect": lambda sizes: BYTES_PER_FLOAT * sizes["neurons"] * sizes["vocab"],
    "probabilities": lambda sizes: 2 * BYTES_PER_FLOAT * sizes["n"] * sizes["vocab"],  # includes the selected logits
}


def check_analysis(analysis: str, instead: str, **sizes: int) -> None:
    """Raise `InputError` if an analysis would take more than `ANALYSIS_BYTES`. The message ends with the remedy `instead`."""
    if (needed := needed_bytes(analysis, **sizes)) > ANALYSIS_BYTES:
        raise InputError(
            f"{analysis} takes about {megabytes(needed)} of memory here, but {megabytes(ANALYSIS_BYTES)} are allowed; "
            f"{instead}."
        )


def free_bytes() -> int:
    """The free memory of this machine or its container, in bytes; `UNKNOWN_BYTES` if the system does not report it."""
    used = _number(CONTAINER / "memory.current")
    left = UNKNOWN_BYTES if used is None else max(0, _container_bytes() - used + _reclaimable_bytes())
    return min(left, _machine("MemAvailable:", "SC_AVPHYS_PAGES"))


def machine_bytes() -> int:
    """The total memory of this machine or its container, in bytes."""
    return min(_container_bytes(), _machine("MemTotal:", "SC_PHYS_PAGES"))


def _machine(name: str, pages: str) -> int:
    with suppress(OSError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):  # macOS knows the total, Windows neither
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN_BYTES


def _container_bytes() -> int:
    return _number(CONTAINER / "memory.max") or UNKNOWN_BYTES


def _reclaimable_bytes() -> int:
    """The part of a container's memory that is page cache and can be reclaimed."""
    with suppress(OSError, ValueError):
        for line in (CONTAINER / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def _number(file: Path) -> int | None:
    """The number in a file; None if the file does not exist or contains "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _stacks(config: ModelConfig, source: int, target: int | None) -> list[tuple[int, int]]:
    """The length of each stack, and of the encoder output that it attends to (0 if none)."""
    if config.architecture == "encoder-decoder":
        return [(source, 0), (target or source, source)]
    return [(source, 0)]


def _layer(config: ModelConfig, query: int, key: int) -> int:
    stream = 7 * query * config.d_model  # resid_pre, resid_mid, resid_post, inputs and outputs of the sublayers
    neurons = config.ffn_component.n_kept * query * config.d_ff
    return BYTES_PER_FLOAT * (stream + neurons) + _attention(config, query, key)


def _attention(config: ModelConfig, query: int, key: int) -> int:
    vectors = config.n_heads * (query * (config.d_head + config.d_value) + key * (config.d_head + config.d_value))
    vectors += 3 * query * config.d_model
    matrices = 3 if config.position_kind.acts_on == "scores" else 2  # scores, pattern and perhaps a bias
    return BYTES_PER_FLOAT * (vectors + matrices * config.n_heads * query * key) + 2 * query * key
