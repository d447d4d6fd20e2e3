"""Weights that accelerate keeps elsewhere while a module is not called (`cpu_offload`, `disk_offload`, `device_map`).

Between calls, the parameters of an offloaded module are on PyTorch's meta device, without values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor, nn


def is_offloaded(module: nn.Module) -> bool:
    """Whether a module's own parameters are loaded only for its calls."""
    if not any(weight.is_meta for weight in module.parameters(recurse=False)) or find_spec("accelerate") is None:
        return False
    from accelerate.utils import has_offloaded_params  # late: it takes a second

    return has_offloaded_params(module)


def device_of(*modules: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for modules without any, and for offloaded ones."""
    devices = (weight.device for module in modules for weight in module.parameters())
    return next((device for device in devices if device.type != "meta"), torch.device("cpu"))


@contextmanager
def _loaded(module: nn.Module) -> Iterator[None]:
    with ExitStack() as stack:
        for part in filter(is_offloaded, module.modules()):
            from accelerate.utils import align_module_device

            stack.enter_context(align_module_device(part))
        yield


def own_weight(module: nn.Module, name: str = "weight") -> Tensor | None:
    """A parameter of a module with its values, without its gradient; None if the module has none of that name."""
    with _loaded(module):
        found = getattr(module, name, None)
        return found.detach() if isinstance(found, Tensor) else None


def standalone(module: nn.Module) -> nn.Module:
    """The module itself; of an offloaded one a copy with its values, which does not load anything."""
    if not any(map(is_offloaded, module.modules())):
        return module
    from accelerate.hooks import remove_hook_from_module

    with _loaded(module):
        found = copy.deepcopy(module)
    return remove_hook_from_module(found, recurse=True)
