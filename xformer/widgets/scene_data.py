"""The data of the scene, which animates one run of a model from its tokens to its answers.

    data = scene_data(xformer.read("checkpoints/reverse", "3 7 12 9"))

The scene shows at most `MAX_TOKENS` tokens and `MAX_VALUES` numbers of each vector, all of them values of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.layer_path import LayerPath
from xformer.reading import Reading
from xformer.viz.packing import Blocks, joined, visible
from xformer.viz.theme import DIVERGING, HEAD_HUES, PART_HUES, RIGHT, SEQUENTIAL, WRONG, in_both_themes

MAX_TOKENS = 20
MAX_VALUES = 16
MAX_HEADS = 1024
"""Models with more heads show the mean pattern of each layer."""
MAX_ANSWERS = 5
MAGIC = b"XSC1"
_PARTS = {name: PART_HUES[name] for name in ("attention", "feed_forward")}
_VERDICTS = {"right": RIGHT.colour, "wrong": WRONG.colour}
COLOURS = in_both_themes(
    {"sequential": SEQUENTIAL, "diverging": DIVERGING, "heads": HEAD_HUES, "parts": _PARTS, **_VERDICTS}
)


def scene_data(reading: Reading, edit: tuple[Sequence[str], int] | None = None, *, is_recorded: bool = False) -> bytes:
    """Pack the data of the scene for the first input of a reading.

    Args:
        reading: The run.
        edit: The texts of the editable tokens, with "" at the end for a new one, and the position of the first of them.
        is_recorded: Whether the same run of the opened model will follow; the animation then goes on where it is.

    Returns:
        `XSC1`, the length of the header (4 bytes, little endian), the header as JSON, and the arrays, referenced by offset
        after the header: vectors as float32, attention patterns as uint8 (255 is a weight of 1).
    """
    arrays = Blocks()
    stacks = [_stack(reading, name, arrays) for name in dict.fromkeys(site.stack for site in reading.attention)]
    header = {
        "stacks": stacks,
        "answers": _answers(reading, stacks[-1]),
        "continues": reading.open_output is not None,
        "isRecorded": is_recorded,
        "edit": None if edit is None else {"texts": list(edit[0]), "first": edit[1]},
        "colours": COLOURS,
    }
    return joined(MAGIC, header, *arrays.parts)


def _stack(reading: Reading, name: str, arrays: Blocks) -> dict[str, Any]:
    """Return the tokens of a stack, its input vectors, and its layers in execution order."""
    tokens = reading.tokens_of(name)
    shown = _window(reading, len(tokens))
    prefix = f"{name}." if reading.is_encoder_decoder else ""
    by_layer: dict[int, list[LayerPath]] = {}
    for site in reading.attention:
        if site.stack == name:
            by_layer.setdefault(site.layer, []).append(site)
    layers = [_layer(reading, f"{name}.{layer}", sites, shown, arrays) for layer, sites in by_layer.items()]
    entering = _rows(reading, f"{name}.0.resid_pre", shown)
    positions = _rows(reading, f"{prefix}pos_embed", shown)
    columns: list[dict[str, Any]] = []
    if positions is not None and entering is not None:
        # The input of the first layer is the sum of both; the embedding may have been scaled or normalised before.
        columns.append(_column("token", entering - positions, arrays))
        columns.append(_column("position", positions, arrays))
        columns.append(_column("sum", entering, arrays))
    elif (first := entering if entering is not None else _rows(reading, f"{prefix}embed", shown)) is not None:
        columns.append(_column("token", first, arrays))
    return {
        "name": name,
        "tokens": [visible(token) for token in tokens[shown.start : shown.stop]],
        "first": shown.start,
        "n": len(tokens),
        "columns": columns,
        "layers": layers,
    }


def _window(reading: Reading, n: int) -> range:
    """Return the tokens to show: all if they fit, otherwise the last ones of a text to continue, or the first ones."""
    if n <= MAX_TOKENS:
        return range(n)
    return range(n - MAX_TOKENS, n) if reading.open_output is not None else range(MAX_TOKENS)


def _layer(reading: Reading, block: str, sites: Sequence[LayerPath], shown: range, arrays: Blocks) -> dict[str, Any]:
    before, after = _rows(reading, f"{block}.resid_pre", shown), _rows(reading, f"{block}.resid_post", shown)
    found: dict[str, Any] = {
        "attention": [
            {
                "site": list(reading.attention).index(site),
                "kind": site.kind,
                "added": _share(_rows(reading, f"{site.path}.out", shown), before),
                **_patterns(reading, site, shown, arrays),
            }
            for site in sites
        ],
        "fed": _share(_rows(reading, f"{block}.ffn.out", shown), before),
    }
    if after is not None:
        found["after"] = _column("", after, arrays)
    return found


def _patterns(reading: Reading, site: LayerPath, shown: range, arrays: Blocks) -> dict[str, Any]:
    """Return the attention weights of each head between the shown tokens, as bytes."""
    pattern = reading[f"{site.path}.pattern"][0].detach().float().cpu()  # [head, query, key]
    keys = _window(reading, pattern.shape[-1])
    pattern = pattern[:, shown.start : shown.stop, keys.start : keys.stop].nan_to_num(0.0).clamp(0, 1)
    n_heads = len(pattern)
    if sum(reading.adapter.shape.heads.values()) > MAX_HEADS:
        pattern = pattern.mean(dim=0, keepdim=True)
    return {
        "heads": n_heads,
        "drawn": len(pattern),
        "shape": list(pattern.shape[1:]),
        "at": arrays.add((pattern * 255).round().to(torch.uint8).numpy()),
    }


def _rows(reading: Reading, name: str, shown: range) -> Float[Tensor, "row d_model"] | None:
    """Return the vectors of an activation at the shown tokens, or None if it was not recorded."""
    value = reading.get(name)
    if value is None:
        return None
    value = value[0] if value.dim() == 3 else value
    return value[shown.start : shown.stop].detach().float().cpu() if len(value) >= shown.stop else None


def _column(name: str, vectors: Float[Tensor, "row d_model"], arrays: Blocks) -> dict[str, Any]:
    """Select numbers of each vector, evenly spaced over its dimensions, with their largest magnitude."""
    width = vectors.shape[1]
    n = min(width, MAX_VALUES)
    dimensions = [index * width // n for index in range(n)]
    values = vectors[:, dimensions].nan_to_num(0.0)
    return {
        "name": name,
        "dimensions": dimensions,
        "width": width,
        "largest": float(values.abs().max()) if values.numel() else 0.0,
        "at": arrays.add(values.contiguous().numpy().astype("<f4")),
    }


def _share(
    added: Float[Tensor, "row d_model"] | None, before: Float[Tensor, "row d_model"] | None
) -> list[float] | None:
    """Return the norm of what a part adds to each vector, relative to the norm of the vector before the layer."""
    if added is None or before is None or len(added) != len(before):
        return None
    share = added.norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-9)
    return [round(value, 4) for value in share.nan_to_num(0.0).clamp(0, 1e3).tolist()]


def _answers(reading: Reading, stack: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the likeliest tokens at each shown output with their probabilities, and the right answer if there is one."""
    if not reading.has_logits:
        return []
    outputs = [*reading.target_positions] + ([] if reading.open_output is None else [reading.open_output])
    rows = range(stack["first"], stack["first"] + len(stack["tokens"]))
    is_each = reading.logits.shape[1] == stack["n"]  # one output per token, not one for the whole input
    labels, found = reading.adapter.token_labels, list[dict[str, Any]]()
    for output in outputs:
        if is_each and output not in rows:
            continue
        probabilities = reading.logits[0, output].detach().float().softmax(dim=-1).nan_to_num(0.0)  # [vocab]
        top = probabilities.topk(min(MAX_ANSWERS, len(probabilities)))
        answer = int(reading.example.labels[0, output])
        is_known = output in reading.target_positions
        said = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        shown = {
            "row": output - stack["first"] if is_each else None,
            "said": [[visible(labels[token]), round(p, 4)] for token, p in said],
            "answer": visible(labels[answer]) if is_known else None,
            "is_right": (int(top.indices[0]) == answer) if is_known and reading.has_right_answer else None,
        }
        found.append(shown)
    return found
