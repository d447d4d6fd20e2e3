"""Which device a run uses: the GPU where there is one, unless something else is asked for."""

from __future__ import annotations

import torch

from xformer.errors import ConfigError


def choose_device(wanted: str = "auto") -> torch.device:
    """ "auto", "cpu", "cuda" or "cuda:1" as a device that exists. Raises `ConfigError` where it does not."""
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
