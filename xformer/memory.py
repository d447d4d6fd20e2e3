"""The memory that a recorded run will take, from the configuration alone.

The large part is attention: each layer keeps scores and pattern, [batch, head, query, key] in float32. A small file with many
heads asks for gigabytes on a long input.
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
"""What a pass over many inputs may take while one layer is computed."""
UNKNOWN_BYTES = 2**62
"""Stands for a size that the system does not tell: more than any machine has."""
ANALYSIS_BYTES = 500_000_000
"""What one table may take; see `check_analysis`."""
CONTAINER = Path("/sys/fs/cgroup")
"""Where a container finds what it may take; there is nothing of it outside of one."""
SCRATCH_MATRICES = 4
"""How many more matrices of one layer's size stand beside the kept ones while that layer is computed."""


def trace_bytes(config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1) -> int:
    """About how many bytes the trace of a run keeps: `source` positions in the first stack, `target` in a decoder beside it."""
    total = 0
    for length, memory in _stacks(config, source, target):
        layer = _layer(config, length, length) + (_attention(config, length, memory) if memory else 0)
        total += config.n_layers * layer + BYTES_PER_FLOAT * 3 * length * config.d_model
    return batch * (total + BYTES_PER_FLOAT * (target or source) * config.vocab_size)


def peak_bytes(config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1) -> int:
    """The same with what is needed on the way, at the widest place."""
    widest = max(length * max(length, memory) for length, memory in _stacks(config, source, target))
    scratch = batch * SCRATCH_MATRICES * BYTES_PER_FLOAT * config.n_heads * widest
    return trace_bytes(config, source, target, batch=batch) + scratch


def check_fits(
    config: ModelConfig, source: int, target: int | None = None, *, batch: int = 1, allowed_bytes: int
) -> None:
    """Raise `InputError` where a recorded run takes more than `allowed_bytes`."""
    needed = peak_bytes(config, source, target, batch=batch)
    check_recording(needed, config.n_layers * config.n_heads, source, allowed_bytes=allowed_bytes)


def check_recording(needed: int, n_heads: int, n_positions: int, *, allowed_bytes: int) -> None:
    """Raise `InputError` where a run takes more than `allowed_bytes`; see `ModelAdapter.recording_bytes`."""
    if needed > allowed_bytes:
        raise InputError(
            f"Looking into this run takes about {megabytes(needed)} of memory ({n_heads:,} heads × {n_positions:,}² cells), "
            f"and {megabytes(allowed_bytes)} are allowed here; type a shorter input."
        )


def rows_that_fit(config: ModelConfig, length: int) -> int:
    """How many inputs of that length may be read at once without recording anything: one at least."""
    row = (
        BYTES_PER_FLOAT * length * (8 * config.d_model + config.ffn_component.n_kept * config.d_ff + config.vocab_size)
    )
    row += BYTES_PER_FLOAT * config.n_heads * length * (2 * (config.d_head + config.d_value) + length)
    return max(1, LAYER_BYTES // row)


def needed_bytes(analysis: str, **sizes: int) -> int:
    """Estimate the peak memory of an analysis in bytes, without the run, from shapes alone.

    Args:
        analysis: One of those whose memory grows faster than its input: "attention" (a row a cell of one head), "cosines" (a
            row a pair of positions), "rollout" (one layer at a time), "direct_logit_effect".
        sizes: What it depends on: n (positions), vocab, neurons.

    Example:
        >>> from xformer.memory import needed_bytes
        >>> needed_bytes("direct_logit_effect", neurons=3_072, vocab=50_000)
        614400000
    """
    return _NEEDED[analysis](sizes)


_NEEDED: dict[str, Callable[[dict[str, int]], int]] = {
    "attention": lambda of: 18 * of["n"] ** 2,  # two codes, a flag and a weight a row
    "cosines": lambda of: 108 * of["n"] ** 2,
    "rollout": lambda of: 10 * BYTES_PER_FLOAT * of["n"] ** 2,
    "direct_logit_effect": lambda of: BYTES_PER_FLOAT * of["neurons"] * of["vocab"],
    "probabilities": lambda of: 2 * BYTES_PER_FLOAT * of["n"] * of["vocab"],  # with the logits that are asked for
}


def check_analysis(analysis: str, instead: str, **sizes: int) -> None:
    """Raise `InputError` where an analysis would take more than `ANALYSIS_BYTES`; `instead` says what to ask for."""
    if (needed := needed_bytes(analysis, **sizes)) > ANALYSIS_BYTES:
        raise InputError(
            f"{analysis} takes about {megabytes(needed)} of memory here, and {megabytes(ANALYSIS_BYTES)} are allowed; "
            f"{instead}."
        )


def free_bytes() -> int:
    """The memory that is free on this machine, or in its container; a very large number where the system does not tell."""
    used = _number(CONTAINER / "memory.current")
    left = UNKNOWN_BYTES if used is None else max(0, _container_bytes() - used + _reclaimable_bytes())
    return min(left, _machine("MemAvailable:", "SC_AVPHYS_PAGES"))


def machine_bytes() -> int:
    """All the memory of this machine, or of its container."""
    return min(_container_bytes(), _machine("MemTotal:", "SC_PHYS_PAGES"))


def _machine(name: str, pages: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return UNKNOWN_BYTES


def _container_bytes() -> int:
    return _number(CONTAINER / "memory.max") or UNKNOWN_BYTES


def _reclaimable_bytes() -> int:
    """Of what a container takes, the files that are only kept in memory to be read again sooner."""
    with suppress(OSError, ValueError):
        for line in (CONTAINER / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def _number(file: Path) -> int | None:
    """The number in a file; None where it is not there, or says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _stacks(config: ModelConfig, source: int, target: int | None) -> list[tuple[int, int]]:
    """For each stack its length, and the length of the memory that it looks back into (0 where there is none)."""
    if config.architecture == "encoder-decoder":
        return [(source, 0), (target or source, source)]
    return [(source, 0)]


def _layer(config: ModelConfig, query: int, key: int) -> int:
    stream = 7 * query * config.d_model  # resid_pre, resid_mid, resid_post, what the sublayers read and give
    neurons = config.ffn_component.n_kept * query * config.d_ff
    return BYTES_PER_FLOAT * (stream + neurons) + _attention(config, query, key)


def _attention(config: ModelConfig, query: int, key: int) -> int:
    vectors = config.n_heads * (query * (config.d_head + config.d_value) + key * (config.d_head + config.d_value))
    vectors += 3 * query * config.d_model
    matrices = 3 if config.position_kind.acts_on == "scores" else 2  # scores and pattern, and their bias
    return BYTES_PER_FLOAT * (vectors + matrices * config.n_heads * query * key) + 2 * query * key
