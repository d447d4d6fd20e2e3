"""The blocks of an unknown model: members of a list of modules, each with one self-attention, that hand the stream on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch

from xformer.adapters.probe import Call, Probe


def blocks(seen: Probe, *, n_square: int = 1) -> dict[int, int]:
    """For each attention the call that is its block: the outermost member of a list of modules with one self-attention.

    `n_square`: how many attentions of a block have as many keys as queries; two where a decoder's streams are of one length.
    """
    found: dict[int, int] = {}
    holds: Counter[int] = Counter(
        parent for one in seen.attentions if one.n_query == one.n_key for parent in one.parents
    )
    for index, attention in enumerate(seen.attentions):
        for parent in attention.parents:
            call = seen.calls[parent]
            if holds[parent] <= n_square and _is_member_of_list(call.path) and _is_stream(call):
                found[index] = parent
                break
    return found


def is_chain(seen: Probe, blocks: dict[int, int]) -> bool:
    """Whether most blocks begin with what the one before them gave."""
    calls = [seen.calls[index] for index in dict.fromkeys(blocks.values())]
    links = [gives(one, other) for one, other in pairwise(calls)]
    return 2 * sum(links) >= len(links)


def grouped(blocks: dict[int, int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for attention, block in blocks.items():
        groups.setdefault(block, []).append(attention)
    return groups


def gives(one: Call, other: Call) -> bool:
    """Whether one part gives what another one reads."""
    given, taken = one.given, other.taken
    return given is not None and taken is not None and given.shape == taken.shape and torch.equal(given, taken)


def _is_member_of_list(path: str) -> bool:
    return path.rpartition(".")[2].isdigit()


def _is_stream(call: Call) -> bool:
    return call.taken is not None and call.given is not None and call.taken.shape == call.given.shape
