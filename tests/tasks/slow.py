"""A slow reference for the tensor code of the tasks: answers, framing and packing with Python lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from xformer.config import TaskConfig
from xformer.tasks.batch import IGNORED


@dataclass
class SlowStream:
    """The cells of one example in one stream."""

    tokens: list[int]
    labels: list[int]


@dataclass
class SlowRows:
    """Rows of cells, with their layout."""

    tokens: list[list[int]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    positions: list[list[int]] = field(default_factory=list)
    mirrored: list[list[int]] = field(default_factory=list)
    segments: list[list[int]] = field(default_factory=list)


def right_answer(config: TaskConfig, symbols: list[int]) -> list[int]:
    """Compute the answer in plain Python, as tokens."""
    match config.name:
        case "reverse":
            return symbols[::-1]
        case "sort":
            return sorted(symbols)
        case "copy" | "induction":
            return symbols[:]
        case "addition":
            a, b = "".join("0123456789+"[symbol - 1] for symbol in symbols).split("+")
            assert len(a) == len(b)
            return [1 + int(digit) for digit in reversed(f"{int(a) + int(b):0{len(a) + 1}d}")]
        case "copy-twice":
            return [*symbols, *symbols]
        case "parity":
            return [1 + sum(symbol - 1 for symbol in symbols[: i + 1]) % 2 for i in range(len(symbols))]
        case "modular":
            a, b = symbols
            return [1 + ((a - 1) + (b - 1)) % config.symbols]
        case "brackets":
            text = "".join(" ()"[symbol] for symbol in symbols)
            return [depth_token(config, text[: i + 1]) for i in range(len(text))]
    raise NotImplementedError(config.name)


def depth_token(config: TaskConfig, text: str) -> int:
    """Return the token of the depth after a prefix, or of ✗, by cancelling “()” until none is left."""
    so_far, lost = "", False
    for bracket in text:
        so_far = (so_far + bracket).replace("()", "")
        lost |= ")" in so_far
    return 3 + config.max_len + 1 if lost else 3 + len(so_far)


def slow_frame(config: TaskConfig, symbols: list[int]) -> tuple[SlowStream, SlowStream | None]:
    """Lay out an example as shown in the docstring of `xformer.tasks.framing`."""
    more = config.max_len + 2 if config.name == "brackets" else 0  # the depths 0 … max_len, and ✗
    end, start = config.symbols + more + 1, config.symbols + more + 2
    answer = right_answer(config, symbols)
    if config.architecture == "encoder":
        closing = [end] if config.end_token else []
        return SlowStream(symbols + closing, answer + closing), None
    if config.architecture == "encoder-decoder":
        return SlowStream([*symbols, end], []), SlowStream([start, *answer], [*answer, end])
    stream = [*symbols, start, *answer]
    return SlowStream(stream, [IGNORED] * len(symbols) + [*answer, end]), None


def slow_rows(streams: list[SlowStream], per_row: int, width: int) -> SlowRows:
    """Put `per_row` streams in each row, one after another, and pad to `width`."""
    rows = SlowRows()
    for first in range(0, len(streams), per_row):
        cells: list[tuple[int, int, int, int, int]] = []
        for segment, stream in enumerate(streams[first : first + per_row], start=1):
            n = len(stream.tokens)
            labels = stream.labels or [IGNORED] * n
            cells += [(stream.tokens[i], labels[i], i, n - 1 - i, segment) for i in range(n)]
        cells += [(0, IGNORED, 0, 0, 0)] * (width - len(cells))
        for column, into in zip(zip(*cells, strict=True), vars(rows).values(), strict=True):
            into.append(list(column))
    return rows
