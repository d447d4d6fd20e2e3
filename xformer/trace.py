"""What a run of a model leaves behind: every intermediate by name. Every picture in this project is a function of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.edits import AnyEdit
from xformer.errors import EditError
from xformer.model import Transformer
from xformer.tape import Tape


@dataclass(frozen=True, eq=False)
class Trace:
    """The activations of one run, with what went in. `trace["encoder.0.attn.pattern"]` is one of them."""

    config: ModelConfig
    tokens: Int[Tensor, "batch pos"]
    target: Int[Tensor, "batch target"] | None
    edits: tuple[AnyEdit, ...]
    activations: dict[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.activations:
            near = get_close_matches(name, self.activations, n=3, cutoff=0.4)
            hint = f": did you mean {', '.join(near)}?" if near else "."
            raise EditError(f"This trace has no activation {name!r}{hint} It has {', '.join(self.activations)}.")
        return self.activations[name]

    def __contains__(self, name: str) -> bool:
        return name in self.activations

    def __iter__(self) -> Iterator[str]:
        return iter(self.activations)

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        """What the model predicts."""
        return self["logits"]

    def attention_layers(self) -> tuple[str, ...]:
        """The paths of the attention layers, in the order the input meets them: "encoder.0.attn", …"""
        return tuple(name.removesuffix(".pattern") for name in self if name.endswith(".pattern"))

    def patterns(self) -> dict[str, Float[Tensor, "batch head query key"]]:
        """The attention weights of every layer, by the path of the layer."""
        return {path: self[f"{path}.pattern"] for path in self.attention_layers()}

    @property
    def n_bytes(self) -> int:
        """The memory that the activations take, in bytes, counting shared storage once."""
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in self.activations.values()}
        return sum(storage.nbytes() for storage in storages.values())

    def save_npz(self, path: str | Path) -> None:
        """Write all activations, the tokens, and the configuration as JSON, as one compressed NumPy archive."""
        arrays = {name: value.numpy(force=True) for name, value in self.activations.items()}
        arrays["tokens"] = self.tokens.numpy(force=True)
        if self.target is not None:
            arrays["target"] = self.target.numpy(force=True)
        arrays["config"] = np.array(json.dumps(self.config.to_json()))
        np.savez_compressed(path, allow_pickle=False, **arrays)


@torch.no_grad()
def record(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    target: Int[Tensor, "batch target"] | None = None,
    *,
    edits: Sequence[AnyEdit] = (),
    keep: Sequence[str] = ("*",),
    pad: int | None = None,
    valid: Bool[Tensor, "batch pos"] | None = None,
    target_valid: Bool[Tensor, "batch target"] | None = None,
    mask: Bool[Tensor, "*batch query key"] | None = None,
) -> Trace:
    """Run the model once under `edits` and keep what it computed on the way.

    `keep` lists globs of the names wanted, all by default. The model is only read: any number of threads may record the
    same one at once, and dropout never touches a recorded run.

    Raises `EditError` when an edit or a glob matches nothing, `InputError` when the tokens do not fit the model.
    """
    tape = Tape(edits, keep)
    model(tokens, target, pad=pad, valid=valid, target_valid=target_valid, mask=mask, tape=tape)
    tape.check_all_fired()
    return Trace(model.config, tokens, target, tuple(edits), tape.activations)
