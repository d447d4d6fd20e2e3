"""How a tokenizer's tokens are written for a person: a space is ·, a line break ↵, bytes that are no text as ‹e2 80›.

byte-level   "ĠMary"   →  ·Mary         (Radford et al. 2019)
pieces       "▁Mary"   →  ·Mary         (Kudo & Richardson 2018)
word pieces  "##ing"   →  ##ing
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

_SIGNS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"})
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=4)
def vocabulary(tokenizer: Any, n: int) -> tuple[str, ...]:
    """The text of each of `n` tokens; a number for what the tokenizer has no word for."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(n, len(tokenizer)))))
    known = readable([token if token is not None else f"#{index}" for index, token in enumerate(tokens)])
    return known + tuple(f"#{index}" for index in range(len(known), n))


def readable(tokens: Sequence[str]) -> tuple[str, ...]:
    """Every token of a vocabulary as a person reads it."""
    is_bytes = any(token.startswith("Ġ") for token in tokens)
    return tuple(_of_bytes(token) if is_bytes else _of_pieces(token) for token in tokens)


def _of_bytes(token: str) -> str:
    try:
        raw = token.translate(_byte_of()).encode("latin-1")
    except UnicodeEncodeError:
        return _signs(token)  # a special token stands for no bytes
    try:
        return _signs(raw.decode())
    except UnicodeDecodeError:
        return f"‹{raw.hex(' ')}›"


def _of_pieces(token: str) -> str:
    byte = _BYTE.fullmatch(token)
    if byte is None:
        return _signs(token.replace("▁", " "))
    number = int(byte[1], 16)
    return _signs(chr(number)) if number in (9, 10, 13, 32) else f"‹{number:02x}›"


def _signs(text: str) -> str:
    return text.translate(_SIGNS)


@cache
def _byte_of() -> dict[int, int]:
    """The byte that each sign of a byte-level vocabulary stands for: printable ones themselves, the rest from 256 on.

    Those of the rest stand for none themselves; in their place is what is no byte.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return dict.fromkeys(others, 0xFFFF) | {256 + index: byte for index, byte in enumerate(others)}
