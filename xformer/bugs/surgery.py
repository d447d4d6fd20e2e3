"""How a bug gets into a model: a deep copy in which some layers are exchanged for layers of another class, weights kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from xformer.config import ModelConfig
from xformer.model import Transformer

Layer = TypeVar("Layer", bound=nn.Module)


def exchange(
    model: Transformer, old: type[Layer], new: Callable[[ModelConfig], Layer], path_ends: str = ""
) -> Transformer:
    """A copy of `model` in which every layer of class `old` whose path ends in `path_ends` is one that `new` makes.

    The new layer takes over the weights, the mode, and whether gradients are wanted.
    """
    changed = copy.deepcopy(model)
    for path, layer in list(changed.named_modules()):
        if type(layer) is not old or not path.endswith(path_ends):
            continue
        replacement = new(changed.config)
        replacement.load_state_dict(layer.state_dict())
        replacement.to(
            next((p.device for p in layer.parameters()), None), next((p.dtype for p in layer.parameters()), None)
        )
        replacement.load_state_dict(layer.state_dict())  # again: what is not a float32 was rounded on the way
        replacement.train(layer.training)
        for mine, theirs in zip(replacement.parameters(), layer.parameters(), strict=True):
            mine.requires_grad_(theirs.requires_grad)
        parent, _, name = path.rpartition(".")
        setattr(changed.get_submodule(parent), name, replacement)
    return changed
