"""How a bug gets into a model: a deep copy in which some layers are exchanged for layers of another class, weights kept."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

from torch import nn

from xformer.model import Transformer

Layer = TypeVar("Layer", bound=nn.Module)


def replace_modules(model: Transformer, old: type[Layer], new: type[Layer], path_ends: str = "") -> Transformer:
    """A copy of `model` in which every layer of class `old` whose path ends in `path_ends` is one of class `new`.

    The new layer takes over the weights, the mode, and whether gradients are wanted. Where an earlier exchange has been, the
    layer becomes both: a class that is `new` first and the earlier one behind it, so that no bug drops another.
    """
    changed = copy.deepcopy(model)
    for path, layer in list(changed.named_modules()):
        if not isinstance(layer, old) or isinstance(layer, new) or not path.endswith(path_ends):
            continue
        kind = new if type(layer) is old else type(f"{new.__name__}On{type(layer).__name__}", (new, type(layer)), {})
        replacement = cast(Layer, kind(changed.config))  # pyright: ignore[reportCallIssue]
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
