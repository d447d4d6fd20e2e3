"""Pack what an input looks like at every snapshot of a run, so that a browser can play it without asking again.

    bytes = "XFLM" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8)

Planes follow each other as [frame][layer][head, row, col], a byte a cell: a weight w in [0, 1] as round(253 w), 255 where the
mask forbids to look, 254 where it is not a number. Inputs beyond `SIDE` tokens are pooled by their maximum.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8

from xformer.adapters import own_task_model
from xformer.errors import InputError
from xformer.names import layer_title
from xformer.reading import Reading
from xformer.site import Site
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.viz.packing import LEVELS, planes_of, visible
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
        best=head_to_enlarge(layers, frames[-1]), live=False, told=(1, None),
    )  # fmt: skip


def of_input(task: Task, example: Example) -> dict[str, Any]:
    """What a film says of its input: the lanes that are read, where the answer begins, and how it is judged."""
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
    told: tuple[int, int | None],
    judged: bool = True,
) -> bytes:
    """Pack the frames of a run; raises ValueError where a frame lacks a layer or has another shape.

    `reads` are the lanes of the token strip by their names; the answer stands `offset` columns further right. `judged` says
    whether what the model says can be right or wrong at all: of a text it cannot. `score` names what the heads' scores
    measure; `exact` is the curve of exact match and `marks` are what the ruler from 0 to `steps` points out. `best` is the
    (layer, head) enlarged until a visitor chooses one. `live` says that more frames will come; `told` is (order, step): with
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
        "live": live, "judged": judged, "order": told[0], "told": told[1],
        "hues": HEAD_HUES, "sequential": SEQUENTIAL,
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % 8)
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *blocks])


def film_header(packed: bytes) -> dict[str, Any]:
    """The header of a packed film. Raises ValueError when the bytes do not come from `pack_film`."""
    if packed[:4] != MAGIC:
        raise ValueError(f"A packed film begins with {MAGIC!r}, got {packed[:4]!r}.")
    (length,) = struct.unpack_from("<I", packed, 4)
    return json.loads(packed[8 : 8 + length])
