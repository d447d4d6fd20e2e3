"""Edits as short, readable texts for links.

    ablate:encoder.1.attn.2         the output z of head 2 of that layer is set to 0
    ablate:encoder.0.ffn            the output of that feed-forward layer is set to 0
    ablate:encoder.0.ffn.17         the activation of its neuron 17 is set to 0
    solo:encoder.1.attn.2           all other heads of that layer are ablated
    cut:encoder.1.attn.2.3-5        in that head, query 3 may not attend to key 5 (`*` for all heads)
    open:encoder.1.attn.*.3-5       query 3 may attend to key 5, even where the masks forbid it
    positions:off                   the position information is removed
    token:3.7                       the input's symbol at position 3 becomes 7

Several edits are joined by commas. Layers, heads, positions and neurons count from 0 in these texts, as in a trace. In
labels, layers and heads count from 1; see `xformer.layer_path`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xformer import edits
from xformer.edits import Edit
from xformer.errors import EditError
from xformer.layer_path import PATH, head_title, layer_title
from xformer.model_shape import READ_ONLY, ModelShape

MOST = 200
"""The largest number of edits in a link."""

_ATTENTION = PATH.replace("|ffn)", ")")
_FEED_FORWARD = r"(?P<ffn>(encoder|decoder)\.\d{1,3}\.ffn)"
_FORMS = {
    "ablate": rf"{_ATTENTION}\.(?P<head>\d{{1,3}})|{_FEED_FORWARD}(\.(?P<neuron>\d{{1,6}}))?",
    "solo": rf"{_ATTENTION}\.(?P<head>\d{{1,3}})",
    "cut": rf"{_ATTENTION}\.(?P<head>\d{{1,3}}|\*)\.(?P<query>\d{{1,5}})-(?P<key>\d{{1,5}})",
    "open": rf"{_ATTENTION}\.(?P<head>\d{{1,3}}|\*)\.(?P<query>\d{{1,5}})-(?P<key>\d{{1,5}})",
    "positions": r"off",
    "token": r"(?P<position>\d{1,5})\.(?P<symbol>\d{1,6})",
}


@dataclass(frozen=True)
class EditLink:
    """One change to a run: its `text` in links, its `label` on screens, and its edits."""

    text: str
    label: str
    edits: tuple[Edit, ...] = ()
    replaced: tuple[int, int] | None = None
    """A position of the input and its new token. This changes the input, not the computation."""


def parse_edits(text: str, shape: ModelShape) -> tuple[EditLink, ...]:
    """Parse the edits of a link, in order and without duplicates. Raises `EditError` with one plain sentence."""
    words = [word for word in dict.fromkeys(text.split(",")) if word]
    if len(words) > MOST:
        raise EditError(f"A run can have at most {MOST} edits, got {len(words)}.")
    return tuple(_one(word, shape) for word in words)


def join_edits(edit_links: tuple[EditLink, ...]) -> str:
    """Join edits into the text that `parse_edits` reads."""
    return ",".join(one.text for one in edit_links)


def all_edits(edit_links: tuple[EditLink, ...]) -> list[Edit]:
    """Return the edits of all parts of a link, in order, for `record`."""
    return [edit for one in edit_links for edit in one.edits]


def changed_source(edit_links: tuple[EditLink, ...], source: tuple[int, ...]) -> tuple[int, ...]:
    """Return the input with tokens replaced. Positions beyond its end are ignored."""
    tokens = list(source)
    for position, token in (one.replaced for one in edit_links if one.replaced):
        if position < len(tokens):
            tokens[position] = token
    return tuple(tokens)


def _one(word: str, shape: ModelShape) -> EditLink:
    kind, _, rest = word.partition(":")
    match = re.fullmatch(_FORMS[kind], rest, re.ASCII) if kind in _FORMS else None
    if match is None:
        raise EditError(f"“{word[:60]}” is not an edit, like ablate:{[*shape.heads, 'encoder.0.attn'][0]}.0.")
    found = match.groupdict()
    if kind == "positions":
        if not shape.can_drop_positions:
            raise EditError("This model has no position information to switch off.")
        return EditLink(word, "positions off", (edits.zero_positions(),))
    if kind == "token":
        position, token = int(found["position"]), int(found["symbol"])
        n, what = (shape.image**2, "pixels") if shape.image else (shape.max_len, "positions")
        if position >= n or not 0 <= token < shape.n_inputs:
            values = "ink" if shape.image else "tokens"
            raise EditError(
                f"This model has {what} 0 to {n - 1} and {values} 0 to {shape.n_inputs - 1}, got {position} and {token}."
            )
        return EditLink(word, f"position {position} reads {token}", replaced=(position, token))
    if shape.is_read_only:
        raise EditError(READ_ONLY)
    if found.get("ffn"):
        return _feed_forward(word, found["ffn"], found["neuron"], shape)
    path = rest.rsplit(".", 2 if "query" in found else 1)[0]
    if path not in shape.heads:
        raise EditError(f"This model has no attention layer {path}; it has {', '.join(shape.heads)}.")
    if found["head"] != "*" and int(found["head"]) >= shape.heads[path]:
        raise EditError(f"This model has heads 0 to {shape.heads[path] - 1}, got {found['head']}.")
    return _attention(word, kind, path, found, shape)


def _attention(word: str, kind: str, path: str, found: dict[str, str], shape: ModelShape) -> EditLink:
    heads = None if found["head"] == "*" else (int(found["head"]),)
    layer = layer_title(path, is_encoder_decoder=shape.is_encoder_decoder)
    name = (
        f"{layer} · all heads"
        if heads is None
        else head_title(path, heads[0], is_encoder_decoder=shape.is_encoder_decoder)
    )
    if kind in ("cut", "open"):
        edge = (int(found["query"]), int(found["key"]))
        if max(edge) >= shape.max_len:
            raise EditError(f"This model's positions are 0 to {shape.max_len - 1}, got {max(edge)}.")
        make = edits.mask_edges if kind == "cut" else edits.unmask_edges
        verb = "may not attend to" if kind == "cut" else "may attend to"
        return EditLink(word, f"{name}: {edge[0]} {verb} {edge[1]}", (make(path, [edge], heads),))
    assert heads is not None
    if kind == "ablate":
        return EditLink(word, f"{name} ablated", (edits.ablate_head(path, heads[0]),))
    others = [head for head in range(shape.heads[path]) if head != heads[0]]
    return EditLink(word, f"{name} alone", tuple(edits.ablate_head(path, head) for head in others))


def _feed_forward(word: str, path: str, neuron: str | None, shape: ModelShape) -> EditLink:
    if path not in (paths := [site.path for site in shape.feed_forward]):
        raise EditError(f"This model has no feed-forward layer {path}; it has {', '.join(paths) or 'none'}.")
    name = f"{layer_title(path, is_encoder_decoder=shape.is_encoder_decoder)} · feed-forward"
    if neuron is None:
        return EditLink(word, f"{name} ablated", (edits.scale(f"{path}.out", 0.0),))
    n = shape.neurons.get(path, 0)
    if int(neuron) >= n:
        known = f"neurons 0 to {n - 1}" if n else "no neurons that can be edited individually"
        raise EditError(f"This model has {known} in {path}, got {int(neuron)}.")
    return EditLink(word, f"{name} · neuron {int(neuron)} ablated", (edits.ablate_neuron(path, int(neuron)),))
