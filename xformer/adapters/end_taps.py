"""What stands before the first block of an unknown model and after the last: tables, rotations, the last norm."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from xformer.adapters.layout import Layout, Tap, gives
from xformer.adapters.probe import Call, Probe
from xformer.site import Site, Stack


def name_ends(
    layout: Layout,
    seen: Probe,
    ids: tuple[Tensor, ...],
    n_target: int | None,
    blocks: dict[int, int],
    sites: dict[int, Site],
) -> None:
    """What stands before the first block and after the last."""
    is_pair = n_target is not None
    for stack, call, name in _embeddings(
        seen, ids, set(blocks.values()), is_pair=is_pair, alone=layout.attention[0].stack
    ):
        layout.taps.append(Tap(call.path, "out", call.number, f"{stack}.{name}" if is_pair else name))
    n_rotations = 0
    for call in seen.calls:
        if _is_rotation(call):
            suffix = f"_{n_rotations + 1}" if n_rotations else ""
            layout.taps.append(Tap(call.path, "angles", call.number, f"pos_angles{suffix}"))
            n_rotations += 1
    stacks: list[Stack] = list(dict.fromkeys(site.stack for site in layout.attention))
    for stack in stacks:
        members = [block for index, block in blocks.items() if sites[index].stack == stack]
        if not members:
            continue
        last = seen.calls[max(members)]
        for call in seen.calls:
            if call.begin < last.end or not call.is_leaf:
                continue
            if call.is_norm and gives(last, call):
                name = f"{stack}.final_norm" if is_pair and stack == "encoder" else "final_norm"
                layout.taps.append(Tap(call.path, "out", call.number, name))
                layout.final_norm[stack] = call.path
            break


def _embeddings(
    seen: Probe, ids: tuple[Tensor, ...], blocks: set[int], *, is_pair: bool, alone: Stack
) -> Iterator[tuple[Stack, Call, str]]:
    """The tables that are looked up: by token, or by place."""
    used: set[str] = set()
    for call in seen.calls:
        if not isinstance(call.module, nn.Embedding) or call.given is None or call.given.dim() < 2:
            continue
        if set(call.parents) & blocks:  # a table of biases
            continue
        n = call.given.shape[-2]
        by_token = [index for index, read in enumerate(ids) if any(_is_equal(value, read) for value in call.inputs)]
        stack: Stack = alone
        if is_pair:
            stack = "encoder" if n == ids[0].shape[-1] else "decoder"
        name = "embed" if by_token else "pos_embed" if _is_by_place(call, n) else "type_embed"
        if f"{stack}.{name}" not in used:
            used.add(f"{stack}.{name}")
            yield stack, call, name


def _is_equal(value: Tensor, read: Tensor) -> bool:
    return value.shape == read.shape and bool((value == read).all())


def _is_by_place(call: Call, n: int) -> bool:
    """Whether the rows are those of places that follow each other, wherever a family begins to count."""
    table, rows = call.module.get_parameter("weight"), call.given
    assert rows is not None
    rows = rows.reshape(-1, n, rows.shape[-1])[0]
    return any(
        len(table) >= start + n and torch.allclose(rows, table[start : start + n], atol=1e-6) for start in range(4)
    )


def _is_rotation(call: Call) -> bool:
    """Whether it gives cosines and sines of one shape: what rotary positions turn queries and keys with."""
    if len(call.outputs) != 2 or "rot" not in f"{call.path}{type(call.module).__name__}".lower():
        return False
    cosine, sine = call.outputs
    if cosine.shape != sine.shape or not cosine.is_floating_point():
        return False
    length = cosine.double() ** 2 + sine.double() ** 2
    close = max(1e-3, 4 * torch.finfo(cosine.dtype).eps)
    return bool(torch.allclose(length, length.flatten()[0].expand_as(length), rtol=close))
