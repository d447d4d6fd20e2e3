"""TransformerLens names for the activations of a model with one stack.

A TransformerLens name has the same meaning as there, including the order of axes: "blocks.0.attn.hook_z" is
[batch, pos, head, d_head], while "decoder.0.attn.z" is [batch, head, pos, d_head]. If both had the same order, pasted code that
selects a head with `z[:, :, 2]` would silently select a position.

Source: https://transformerlensorg.github.io/TransformerLens/content/hook_points.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from xformer.edits import Apply, Edit, Replace
from xformer.errors import ActivationError, EditError, InputError
from xformer.formatting import similar_names
from xformer.model_shape import ModelShape

_ENDS = {"hook_embed": "embed", "hook_pos_embed": "pos_embed", "ln_final.hook_normalized": "final_norm"}
_IN_BLOCK = {
    "hook_resid_pre": "resid_pre",
    "attn.hook_q": "attn.q",
    "attn.hook_k": "attn.k",
    "attn.hook_v": "attn.v",
    "attn.hook_attn_scores": "attn.scores",
    "attn.hook_pattern": "attn.pattern",
    "attn.hook_z": "attn.z",
    "hook_attn_out": "attn.out",
    "hook_resid_mid": "resid_mid",
    "mlp.hook_pre": "ffn.pre",
    "mlp.hook_pre_linear": "ffn.up",
    "mlp.hook_post": "ffn.post",
    "hook_mlp_out": "ffn.out",
    "hook_resid_post": "resid_post",
}
_ROTATED = {"attn.hook_q": "attn.hook_rot_q", "attn.hook_k": "attn.hook_rot_k"}
_HEAD_FIRST = (".q", ".k", ".v", ".z")


def is_lens_name(name: object) -> bool:
    """Whether a name or glob has the form of a TransformerLens name."""
    return isinstance(name, str) and name.startswith(("blocks.", "hook_", "ln_final"))


def own_name(name: str, shape: ModelShape) -> str:
    """Convert a TransformerLens name to ours: "blocks.0.attn.hook_z" to "decoder.0.attn.z". The layer may be "*".

    Raises `ActivationError` for a name without a counterpart, and for a model with two stacks.
    """
    _check_single(shape)
    if name in _ENDS or name == "ln_final":
        return _ENDS.get(name, "final_norm")
    found = re.fullmatch(r"blocks\.(\d+|\*)\.(.+)", name)
    layer, end = found.groups() if found else ("0", "")
    in_block = _in_block(shape)
    if end in in_block:
        return f"{shape.output_stack}.{layer}.{in_block[end]}"
    if shape.rotates and end in _ROTATED:
        raise ActivationError(
            f"There is no activation {name!r} here: this model rotates it by position, and records it after the rotation as "
            f"{_ROTATED[end]}."
        )
    known = [*_ENDS, *(f"blocks.{layer}.{end}" for end in in_block)]
    raise ActivationError(f"There is no activation {name!r} here; {similar_names(name, known)}")


def lens_names(names: Iterable[str], shape: ModelShape) -> dict[str, str]:
    """Map TransformerLens names to our names, for the activations in `names` that have one, in their order."""
    _check_single(shape)
    ends = {own: lens for lens, own in _ENDS.items()}
    in_block = {own: lens for lens, own in _in_block(shape).items()}
    found: dict[str, str] = {}
    for name in names:
        stack, _, rest = name.partition(".")
        layer, _, end = rest.partition(".")
        if name in ends:
            found[ends[name]] = name
        elif stack == shape.output_stack and end in in_block:
            found[f"blocks.{layer}.{in_block[end]}"] = name
    return found


def lens_axes(name: str, value: Tensor) -> Tensor:
    """View one of our activations in TransformerLens's order of axes.

    Args:
        name: Our name.
        value: [batch, head, pos, d_head] for q, k, v and z, [pos, d_model] for pos_embed; others are returned unchanged.

    Returns:
        [batch, pos, head, d_head], or [1, pos, d_model] for pos_embed.
    """
    if name == "pos_embed":
        return value[None] if value.dim() == 2 else value
    return value.transpose(1, 2) if name.endswith(_HEAD_FIRST) else value


def own_axes(name: str, value: Tensor) -> Tensor:
    """The inverse of `lens_axes`."""
    if name == "pos_embed":
        return value[0] if value.dim() == 3 else value
    return value.transpose(-3, -2) if name.endswith(_HEAD_FIRST) and value.dim() >= 3 else value


def own_edits(edits: Iterable[Edit], shape: ModelShape) -> list[Edit]:
    """Convert edits of TransformerLens names to our names and order of axes; others are returned unchanged.

    Raises `EditError` if `edits` is not a sequence of edits.
    """
    if not isinstance(edits, Iterable) or not all(isinstance(edit, Edit) for edit in edits):
        raise EditError(
            f"edits must be a list like [xformer.edits.ablate_head('encoder.1.attn', 2)], got {edits!r:.100}."
        )
    return [_own_edit(edit, shape) for edit in edits]


def _own_edit(edit: Edit, shape: ModelShape) -> Edit:
    if not is_lens_name(edit.name):
        return edit
    name = own_name(edit.name, shape)
    if isinstance(edit, Replace):
        return replace(edit, name=name, value=own_axes(name, edit.value))
    if isinstance(edit, Apply):
        return Apply(name, lambda value: own_axes(name, edit.apply(edit.name, lens_axes(name, value))))
    return replace(edit, name=name)


def own_names(names: Iterable[str], shape: ModelShape) -> tuple[str, ...]:
    """Convert TransformerLens names and globs to ours; others are returned unchanged. Raises `InputError` for a single name."""
    if isinstance(names, str):
        raise InputError(f"Names of activations must be a list like ['*.pattern'], got {names!r:.100}.")
    return tuple(own_name(name, shape) if is_lens_name(name) else name for name in names)


def _check_single(shape: ModelShape) -> None:
    if shape.is_encoder_decoder:
        raise ActivationError(
            "TransformerLens names are for models with one stack, but this model has an encoder and a decoder; use a name like "
            "'decoder.0.cross_attn.pattern'."
        )


def _in_block(shape: ModelShape) -> dict[str, str]:
    if not shape.rotates:
        return _IN_BLOCK
    return {_ROTATED.get(lens, lens): own for lens, own in _IN_BLOCK.items()}
