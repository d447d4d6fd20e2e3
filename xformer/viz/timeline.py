"""The timeline of a training run: patterns and predictions of one input at every snapshot, packed for the player or drawn.

    bytes = "XFLM" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8)

Planes follow each other as [frame][layer][head, row, col], a byte a cell: a weight w in [0, 1] as round(253 w), 255 where the
mask forbids to look, 254 where it is not a number. Inputs beyond `SIDE` tokens are pooled by their maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import altair as alt
import numpy as np
from jaxtyping import Bool, Float, UInt8

from xformer.adapters import own_task_model
from xformer.blocks import block_max, factor
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.site import Site, layer_title
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.viz import theme
from xformer.viz.attention_patterns import HEAD_GRID_MOST_CELLS
from xformer.viz.charts import CHIP, WIDE, Sheet
from xformer.viz.packing import LEVELS, MASKED, NAN, header_of, joined, planes_of, visible
from xformer.viz.theme import HEAD_HUES, SEQUENTIAL

MAGIC = b"XFLM"
SIDE = 48
"""Most cells of a plane on either axis."""


@dataclass(frozen=True, eq=False)
class FilmLayer:
    """One attention layer, the same in all frames: its path, its words, and the tokens on its axes."""

    path: str
    title: str
    heads: int
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: planes [head, row, col] and scores [head] by the path of the layer, and what the model says."""

    step: int
    planes: dict[str, UInt8[np.ndarray, "head row col"]]
    scores: dict[str, list[float]]
    says: tuple[str, ...]
    right: tuple[bool, ...]
    probability: tuple[float, ...]


def plane(
    pattern: Float[np.ndarray, "head query key"], allowed: Bool[np.ndarray, "#head #query #key"]
) -> UInt8[np.ndarray, "head row col"]:
    """The weights of a layer as codes on the fixed scale from 0 to 1."""
    planes, peaks = planes_of(pattern, allowed, SIDE)
    absolute = np.clip(np.rint(planes * peaks[:, None, None]), 0, LEVELS)
    return np.where(planes <= LEVELS, absolute, planes).astype(np.uint8)


def film_frame(reading: Reading, step: int) -> Frame:
    """What a film keeps of a snapshot's reading: its patterns as codes, the scores of its heads, and what it says."""
    subject = own_task_model(reading.subject)
    return Frame(
        step,
        {
            path: plane(pattern[0].float().numpy(force=True), reading[f"{path}.mask"][0].numpy(force=True))
            for path, pattern in reading.trace.patterns().items()
        },
        subject.task.head_scores(reading.trace, reading.example),
        tuple(subject.labels[token] for token in reading.predicted),
        reading.right,
        reading.probability,
    )


def film_of(readings: Mapping[int, Reading]) -> bytes:
    """The film of one input, from its readings by the training step at which each was made."""
    frames = [film_frame(reading, step) for step, reading in sorted(readings.items())]
    first = next(iter(readings.values()), None)
    if first is None:
        raise InputError("A film has at least one frame, got none; for example {700: reading}.")
    task = own_task_model(first.subject).task
    layers = layers_of(task, first.example, frames)
    return pack_film(
        layers, frames, **of_input(task, first.example), steps=max(readings), exact=(), marks=(),
        best=head_to_enlarge(layers, frames[-1]), live=False, target=(1, None),
    )  # fmt: skip


def of_input(task: Task, example: Example) -> dict[str, Any]:
    """The fields of a timeline about its input: the lanes that are read, the start of the answer, and the score's name."""
    is_pair = example.target is not None
    if task.n_patches:  # its tokens are patches: the picture names them
        reads = {"right answer": [task.vocabulary.labels[token] for token in example.answer]}
    else:
        reads = {"source" if is_pair else "reads": task.position_names(example.stream[0].tolist())}
    if example.target is not None:
        reads["decoder reads"] = task.position_names(example.target[0].tolist())
    return {
        "reads": reads, "offset": int((example.labels[0] >= 0).long().argmax()), "score": task.rule.score_name,
        "judged": task.has_right_answer(example.source),
    }  # fmt: skip


def layers_of(task: Task, example: Example, frames: Sequence[Frame]) -> tuple[FilmLayer, ...]:
    """The attention layers of a film, with what stands at their axes; none before there are frames."""
    if not frames:
        return ()
    source = tuple(task.position_names(example.stream[0].tolist()))
    target = source if example.target is None else tuple(task.position_names(example.target[0].tolist()))
    layers = []
    for path, codes in frames[0].planes.items():
        site = Site.parse(path)
        queries, keys = (target if stack == "decoder" else source for stack in (site.query_stack, site.key_stack))
        layers.append(FilmLayer(path, layer_title(path, is_pair=example.target is not None), len(codes), queries, keys))
    return tuple(layers)


def head_to_enlarge(layers: Sequence[FilmLayer], frame: Frame) -> tuple[int, int]:
    """The (layer, head) with the best score once it stands out, before that the last layer's first."""
    found = max(
        (
            (score, index, head)
            for index, layer in enumerate(layers)
            for head, score in enumerate(frame.scores.get(layer.path, ()))
        ),
        default=(0.0, len(layers) - 1, 0),
    )
    return (found[1], found[2]) if found[0] >= 0.3 else (len(layers) - 1, 0)


def pack_film(
    layers: Sequence[FilmLayer],
    frames: Sequence[Frame],
    *,
    reads: Mapping[str, Sequence[str]],
    offset: int,
    score: str,
    steps: int,
    exact: Sequence[tuple[int, float]],
    marks: Sequence[tuple[int, str]],
    best: tuple[int, int],
    live: bool,
    target: tuple[int, int | None],
    judged: bool = True,
) -> bytes:
    """Pack the frames of a run; raises ValueError where a frame lacks a layer or has another shape.

    `reads` are the lanes of the token strip by their names; the answer stands `offset` columns further right. `judged` says
    whether what the model says can be right or wrong at all: of a text it cannot. `score` names what the heads' scores
    measure; `exact` is the curve of exact match and `marks` are what the ruler from 0 to `steps` points out. `best` is the
    (layer, head) enlarged until a visitor chooses one. `live` says that more frames will come; `target` is (order, step): with
    each new order the player goes to that step, or to the end where it is None.
    """
    shapes = [
        (layer.heads, *(-(-n // -(-n // SIDE)) for n in (len(layer.query_labels), len(layer.key_labels))))
        for layer in layers
    ]
    blocks = []
    for frame in frames:
        for layer, shape in zip(layers, shapes, strict=True):
            if frame.planes[layer.path].shape != shape:
                raise ValueError(
                    f"The planes of {layer.path} are {shape} in this film, got {frame.planes[layer.path].shape}."
                )
            blocks.append(frame.planes[layer.path].tobytes())
    header: dict[str, Any] = {
        "layers": [
            {"path": layer.path, "title": layer.title, "heads": layer.heads, "rows": rows, "cols": cols,
             "queryLabels": [visible(text) for text in layer.query_labels],
             "keyLabels": [visible(text) for text in layer.key_labels]}
            for layer, (_, rows, cols) in zip(layers, shapes, strict=True)
        ],
        "frames": [
            {"step": frame.step, "says": [visible(text) for text in frame.says], "right": list(frame.right),
             "probability": [round(p, 4) for p in frame.probability],
             "scores": [[round(score, 4) for score in frame.scores.get(layer.path, ())] for layer in layers]}
            for frame in frames
        ],
        "reads": [[name, [visible(text) for text in tokens]] for name, tokens in reads.items()],
        "offset": offset, "score": score, "steps": steps, "exact": list(exact), "marks": list(marks), "best": list(best),
        "live": live, "judged": judged, "order": target[0], "target": target[1],
        "hues": HEAD_HUES, "sequential": SEQUENTIAL,
    }  # fmt: skip
    return joined(MAGIC, header, *blocks)


def film_header(packed: bytes) -> dict[str, Any]:
    """The header of a packed film. Raises ValueError when the bytes do not come from `pack_film`."""
    return header_of(packed, MAGIC)


def film_still(
    film: bytes | Mapping[int, Reading],
    *,
    step: int | None = None,
    head: tuple[int, int] | None = None,
    dark: bool = False,
) -> alt.LayerChart | alt.FacetChart:
    """A step of a training: the tokens it reads and says, one head large and all small, and how it learns.

    `film` is what the player is sent, or the same input's readings by their steps. It shows the last frame at or before `step`,
    or the last one of all; `head` is the (layer, head) that is enlarged, from 0. Weights are on the fixed scale from 0 to 1.

    Args:
        film: Readings of one input by their step of training, or the bytes that the player gets.
        step: The step of training; the last one by default.
        head: The (layer, head) that is enlarged, from 0.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.film_still({800: reading})
    """
    packed = film if isinstance(film, bytes) else film_of(film)
    header, sheet = film_header(packed), Sheet(dark)
    steps = [frame["step"] for frame in header["frames"]]
    at = max((i for i, one in enumerate(steps) if step is None or one <= step), default=0)
    layer, chosen = head or header["best"]
    heads = [one["heads"] for one in header["layers"]]
    if not (0 <= layer < len(heads) and 0 <= chosen < heads[layer]):
        raise InputError(f"The layers have {heads} heads, got head {chosen} of layer {layer}; for example head=(0, 0).")
    codes, colours = _planes(packed, header, at), scale(dark)
    best = [best_head(frame["scores"]) for frame in header["frames"]]
    y = _strip(sheet, header, header["frames"][at])
    y = _title(sheet, y, header, at, (layer, chosen), best[at])
    enlarged(sheet, y, header["layers"][layer], codes[layer][chosen], colours)
    width, low = all_heads(sheet, y + 28, header["layers"], codes, best[at], (layer, chosen), colours)
    y = max(y + LARGE + 8, low) + 8
    sheet.words(0, y, f"step {steps[at]:,} of {header['steps']:,}", sheet.ink, 14, bold=True)
    time_line(sheet, y + 12, header, at, [score for score, _, _ in best])
    return sheet.chart(max(WIDE, width), y + 12 + HIGH)


def _planes(packed: bytes, header: dict[str, Any], at: int) -> list[UInt8[np.ndarray, "head row col"]]:
    """The codes of a frame, layer by layer."""
    shapes = [(one["heads"], one["rows"], one["cols"]) for one in header["layers"]]
    sizes = [int(np.prod(shape)) for shape in shapes]
    behind = (len(header["frames"]) - at) * sum(sizes)
    frame = np.frombuffer(packed, np.uint8)[len(packed) - behind :][: sum(sizes)]
    parts = np.split(frame, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _strip(sheet: Sheet, header: dict[str, Any], frame: dict[str, Any]) -> float:
    """The lanes of tokens, in several rows where they are long; what comes back is where they end."""
    reads, says, offset = header["reads"], frame["says"], header["offset"]
    names = 12 + 6.6 * max(len(name) for name in (*(name for name, _ in reads), "says"))
    columns = max(offset + len(says), *(len(tokens) for _, tokens in reads), 1)
    in_row = min(columns, int((WIDE - names) // 27))
    cell, y = min(50.0, (WIDE - names) / in_row), 0.0
    for first in range(0, columns, in_row):
        for name, tokens in reads:
            if part := tokens[first : first + in_row]:
                sheet.words(0, y + CHIP / 2, name, sheet.muted, 13)
                for i, token in enumerate(part):
                    sheet.chip(names + i * cell, y, cell, token, "plain")
                y += CHIP + 5
        shown = range(max(first, offset), min(first + in_row, offset + len(says)))
        for i in shown:
            kind = "plain" if not header["judged"] else "right" if frame["right"][i - offset] else "wrong"
            share = frame["probability"][i - offset]
            sheet.chip(names + (i - first) * cell, y, cell, says[i - offset], kind, share=share)
        if shown:
            sheet.words(0, y + CHIP / 2, "says", sheet.muted, 13)
            y += CHIP + 5
    return y


def _title(sheet: Sheet, y: float, header: dict[str, Any], at: int, head: tuple[int, int], best: Best) -> float:
    """Which head is enlarged, its score, and which is the best of all; what comes back is where that ends."""

    def name(layer: int, of: int) -> str:
        return f"{header['layers'][layer]['title']} · head {of + 1}"

    own = header["frames"][at]["scores"][head[0]]
    notes = [f"{header['score']}: {own[head[1]]:.2f}"] if head[1] < len(own) else []
    if best[0] >= STANDS_OUT:
        notes.append("★ best of all heads" if best[1:] == head else f"★ {name(*best[1:])}, {best[0]:.2f}")
    sheet.box(0, y + 9, 13, 13, theme.head_hue(head[1], sheet.dark), corner=4)
    sheet.words(22, y + 16, name(*head), sheet.ink, 17, bold=True)
    sheet.words(WIDE, y + 16, " · ".join(notes), sheet.ink, 13, align="right")
    return y + 32


LARGE, BESIDE, GAP, TITLE = 380, 22, 6, 16
"""CSS pixels: of the enlarged head, between it and the others, between two heads, and for a layer's name."""

STANDS_OUT = 0.5
"""From this score on a head is called the best: below it, chance can be."""

BROKEN = "#d6006e"
"""A cell that is not a number: loud."""

Best = tuple[float, int, int]
"""A score with its layer and head, from 0."""


def scale(dark: bool) -> list[str]:
    """The colour of every code of a weight."""
    return [*theme.resample(theme.sequential(dark), LEVELS + 1), BROKEN, theme.pick(theme.MASKED, dark)]


def best_head(scores: Sequence[Sequence[float]]) -> Best:
    """The best score with its layer and head; −1 where none has a score."""
    found = ((score, -layer, -head) for layer, heads in enumerate(scores) for head, score in enumerate(heads))
    score, layer, head = max(found, default=(-1.0, 0, 0))
    return score, -layer, -head


def enlarged(
    sheet: Sheet, y: float, layer: dict[str, Any], codes: UInt8[np.ndarray, "row col"], colours: list[str]
) -> None:
    """One head with its tokens."""
    queries, keys = layer["queryLabels"], layer["keyLabels"]
    left, top = 76 if any(len(text) > 3 for text in queries) else 62, y + 50
    wide = float(LARGE - left - 4)
    tall = min(wide * 1.05, max(60.0, wide * len(queries) / len(keys)))
    _cells(sheet, codes, colours, (left, top, wide, tall))
    sheet.box(left - 0.5, top - 0.5, wide + 1, tall + 1, edge=sheet.rule, level=1)
    row, column = tall / len(queries), wide / len(keys)
    for i in range(0, len(queries), max(1, -int(-13 // row))):
        middle, text = top + (i + 0.5) * row, _short(queries[i], 5)
        size = min(13.0, 10 + row / 12)
        sheet.words(left - 6, middle, text, sheet.ink, size, align="right")
        sheet.words(left - 11 - 0.62 * size * len(text), middle, str(i), sheet.muted, 9.5, align="right")
    size = min(13.0, 10 + column / 12)
    widest = 0.62 * size * max(len(_short(text, 4)) for text in keys)
    for i in range(0, len(keys), max(1, -int(-(widest + 1) // column))):
        middle = left + (i + 0.5) * column
        sheet.words(middle, top - 9, _short(keys[i], 4), sheet.ink, size, align="center")
        sheet.words(middle, top - 23, str(i), sheet.muted, 9.5, align="center")
    sheet.words(left, top - 41, "key: what it looks at →", sheet.muted, 11)
    sheet.words(8, top + tall, "query: who looks →", sheet.muted, 11, upwards=True)


def all_heads(
    sheet: Sheet, y: float, layers: Sequence[dict[str, Any]], codes: Sequence[UInt8[np.ndarray, "head row col"]],
    best: Best, head: tuple[int, int], colours: list[str],
) -> tuple[float, float]:  # fmt: skip
    """Every head small, the enlarged one framed and the best one starred; what comes back is where they end."""
    n_heads = sum(len(one) for one in codes)
    most = max(len(one) for one in codes)
    if n_heads == 1:
        return 0, 0
    left = LARGE + BESIDE
    room = (WIDE - left - GAP * (most - 1)) // most, (LARGE - 36) // len(layers) - TITLE - GAP
    side = max(16, min(200, *room))
    cells = max(4, isqrt(HEAD_GRID_MOST_CELLS // n_heads))
    for number, planes in enumerate(codes):
        top = y + number * (side + TITLE + GAP)
        sheet.words(left + 2, top + 8, layers[number]["title"], sheet.muted, 11.5, bold=True)
        for of, plane in enumerate(planes):
            x, is_large = left + of * (side + GAP) + 3, (number, of) == head
            _cells(sheet, _pooled(plane, cells), colours, (x, top + TITLE, side - 2, side - 2))
            edge = theme.head_hue(of, sheet.dark) if is_large else sheet.rule
            sheet.box(x - 1, top + TITLE - 1, side, side, edge=edge, thick=3 if is_large else 1, level=1)
            if best[0] >= STANDS_OUT and best[1:] == (number, of):
                sheet.dot(x + side - 12, top + TITLE + 10, 9, sheet.ground, level=2)
                sheet.words(x + side - 12, top + TITLE + 11, "★", sheet.ink, 13, bold=True, align="center", level=3)
    return left + most * (side + GAP), y + len(layers) * (side + TITLE + GAP)


def _cells(sheet: Sheet, codes: UInt8[np.ndarray, "row col"], colours: list[str], box: tuple[float, ...]) -> None:
    """One head's weights into a box (x, y, width, height)."""
    x, y, wide, tall = box
    rows, cols = codes.shape
    for (row, col), code in np.ndenumerate(codes):
        sheet.box(x + col * wide / cols, y + row * tall / rows, wide / cols, tall / rows, colours[code], thick=0)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _pooled(codes: UInt8[np.ndarray, "row col"], side: int) -> UInt8[np.ndarray, "row col"]:
    """At most `side` cells on either axis: the largest weight of a block stands for it; masked is what is masked all over."""
    weights: Float[np.ndarray, "row col"] = np.where(codes == MASKED, -1.0, codes)
    weights[codes == NAN] = np.nan
    for axis in (0, 1):
        weights = block_max(weights, factor(weights.shape[axis], side), axis)
    return np.where(weights < 0, MASKED, np.nan_to_num(weights, nan=NAN)).astype(np.uint8)


HIGH, LEFT, RIGHT, TOP, BOTTOM = 80, 34, 12, 20, 19
"""CSS pixels of the time line: its height, and what is around its curves."""

UNITS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]


def time_line(sheet: Sheet, y: float, header: dict[str, Any], at: int, best: Sequence[float]) -> None:
    """The best head's score in each frame and exact match over the steps, what is marked there, and where the shown step is."""
    steps, frames = max(1, header["steps"]), header["frames"]
    floor, wide = y + HIGH - BOTTOM, WIDE - LEFT - RIGHT

    def place(step: float, value: float) -> tuple[float, float]:
        return LEFT + wide * step / steps, floor - (HIGH - TOP - BOTTOM) * value

    sheet.box(LEFT, y + TOP, wide, HIGH - TOP - BOTTOM, sheet.faint)
    for value in (0, 0.5, 1):
        sheet.words(LEFT - 6, place(0, value)[1], f"{value:g}", sheet.muted, 10.5, align="right")
        sheet.line([place(0, value), place(steps, value)], sheet.rule, dash="2 3" if value == 0.5 else "")
    scores = [(frame["step"], score) for frame, score in zip(frames, best, strict=True)]
    curves = [("exact match", header["exact"], 1, 2.0)]
    curves += [(f"best {header['score']} score", scores, 0, 2.5)] * (max(best) >= 0)
    edge = float(WIDE)
    for name, values, hue, thick in curves:
        if not values:
            continue
        ink = theme.head_hue(hue, sheet.dark)
        points = [place(step, max(0.0, value)) for step, value in values]
        sheet.line(points, ink, thick, level=1)
        for point in points if len(points) < 40 else ():
            sheet.dot(*point, thick * 0.9, ink, level=1)
        sheet.words(edge, y - 12, name, sheet.muted, 12.5, align="right")
        sheet.box(edge - 6.8 * len(name) - 24, y - 13.5, 16, 3, ink)
        edge -= 6.8 * len(name) + 40
    for step in [frame["step"] for frame in frames]:
        sheet.box(place(step, 0)[0] - 0.5, floor, 1, 4, sheet.muted)
    each = next((unit for unit in UNITS if wide * unit / steps > 64), steps)
    for step in range(0, steps + 1, each):
        x = place(step, 0)[0]
        x, align = (WIDE - 1, "right") if x > WIDE - 24 else (x, "center")  # the last number stays inside
        sheet.words(x, y + HIGH - 7, f"{step:,}", sheet.muted, 10.5, align=align)
    edge = -100.0
    for step, words in sorted(header["marks"]):
        x, long = place(step, 0)[0], 6.9 * len(words)
        sheet.line([(x, y + TOP - 4), (x, floor)], sheet.ink, 1.25, dash="4 3", level=2)
        start = max(edge + 14, min(x - 4, WIDE - long - 4))
        if start + long <= WIDE:
            sheet.words(start, y + TOP - 13, words, sheet.ink, 11.5, bold=True, level=2)
            edge = start + long
    x = place(frames[at]["step"], 0)[0]
    sheet.line([(x, y + TOP), (x, floor)], sheet.ground, 6, level=3)
    sheet.line([(x, y + TOP), (x, floor)], sheet.primary, 3, level=4)
    sheet.dot(x, floor, 8, sheet.primary, edge=sheet.ground, level=5)
