"""The device that a run is trained on, and the settings of a process that trains on it."""

from __future__ import annotations

import torch

from xformer.errors import ConfigError


def prepare_process(threads: int = 1) -> None:
    """Settle a process that trains small models. For the owner of a process to call, from the thread that trains.

    The operations of a small model end before a second thread is awake, and denormal numbers (below 1e-38) take a processor
    a hundred times as long as others, so they become zero.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device named "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:1".

    Raises:
        ConfigError: There is no such device.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {wanted!r}; for example auto.")
    if not torch.cuda.is_available():
        raise ConfigError(f"device={wanted!r} was asked for, but this machine has no usable GPU; use auto or cpu.")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"This machine has {torch.cuda.device_count()} GPUs, got {wanted!r}; for example cuda:0.")
    return torch.device(wanted)
