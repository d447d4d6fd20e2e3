"""The timeline of a training run: the patterns and predictions of one input at every snapshot, packed for the player or drawn.

    bytes = "XFLM" · header length (uint32, little endian) · header (JSON, padded) · planes (uint8)

Planes are stored as [frame][layer][head, row, col] with one byte per cell: round(253 w) for a weight w in [0, 1], 255 for a
masked cell, 254 for one that is not a number. Inputs longer than `SIDE` tokens are max-pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from xformer.adapters import own_task_model
from xformer.analysis.attention_patterns import pattern_cells
from xformer.errors import InputError
from xformer.layer_path import LayerPath, layer_title
from xformer.pooling import block_size, max_pool_masked
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.viz.attention_patterns import HEAD_GRID_MOST_CELLS, head_chart, heads_grid
from xformer.viz.charts import Chart, layered, token_lanes
from xformer.viz.packing import LEVELS, MASKED, NAN, SIDE, header_of, joined, plane, visible
from xformer.viz.theme import HEAD_HUES, SEQUENTIAL, TEXT, in_both_themes
from xformer.viz.training_curves import Curves, curve_chart, with_marks

MAGIC = b"XFLM"


@dataclass(frozen=True, eq=False)
class TimelineLayer:
    """One attention layer, the same in all frames: its path, its display name, and the tokens on its axes."""

    path: str
    title: str
    heads: int
    query_labels: tuple[str, ...]
    key_labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Frame:
    """One step: planes [head, row, col] and scores [head] by layer path, and the predictions of the model."""

    step: int
    planes: dict[str, UInt8[np.ndarray, "head row col"]]
    scores: dict[str, list[float]]
    says: tuple[str, ...]
    right: tuple[bool, ...]
    probability: tuple[float, ...]


def timeline_frame(reading: Reading, step: int) -> Frame:
    """Convert the reading of a snapshot to a frame: its encoded patterns, the scores of its heads, and its predictions."""
    adapter = own_task_model(reading.adapter)
    planes = {
        path: plane(pattern[0].float().numpy(force=True), reading[f"{path}.mask"][0].numpy(force=True))
        for path, pattern in reading.trace.patterns().items()
    }
    scores = adapter.task.head_scores(reading.trace, reading.example)
    predicted = tuple(adapter.token_labels[token] for token in reading.predicted)
    return Frame(step, planes, scores, predicted, reading.right, reading.probability)


def timeline_of(readings: Mapping[int, Reading]) -> bytes:
    """Pack the timeline of one input from its readings by training step."""
    frames = [timeline_frame(reading, step) for step, reading in sorted(readings.items())]
    first = next(iter(readings.values()), None)
    if first is None:
        raise InputError("A timeline has at least one frame, got none; for example {700: reading}.")
    task = own_task_model(first.adapter).task
    layers = layers_of(task, first.example, frames)
    return pack_timeline(
        layers, frames, **of_input(task, first.example), steps=max(readings), exact=(), marks=(),
        best=head_to_enlarge(layers, frames[-1]), live=False, target=(1, None),
    )  # fmt: skip


def of_input(task: Task, example: Example) -> dict[str, Any]:
    """Return the fields of a timeline that describe its input: the lanes, the start of the answer and the score's name."""
    is_encoder_decoder = example.target is not None
    if task.n_patches:  # the tokens are patches, which the picture labels
        reads = {"right answer": [task.vocabulary.labels[token] for token in example.answer]}
    else:
        reads = {"source" if is_encoder_decoder else "reads": task.position_names(example.input_ids[0].tolist())}
    if example.target is not None:
        reads["decoder reads"] = task.position_names(example.target[0].tolist())
    return {
        "reads": reads, "offset": int((example.labels[0] >= 0).long().argmax()), "score": task.rule.score_name,
        "judged": task.has_right_answer(example.source),
    }  # fmt: skip


def layers_of(task: Task, example: Example, frames: Sequence[Frame]) -> tuple[TimelineLayer, ...]:
    """Return the attention layers of a timeline with the labels of their axes; none if there are no frames yet."""
    if not frames:
        return ()
    target = () if example.target is None else tuple(task.position_names(example.target[0].tolist()))
    return timeline_layers(frames[0].planes, tuple(task.position_names(example.input_ids[0].tolist())), target)


def timeline_layers(
    planes: Mapping[str, UInt8[np.ndarray, "head row col"]], tokens: tuple[str, ...], target: tuple[str, ...] = ()
) -> tuple[TimelineLayer, ...]:
    """Return the attention layers of planes over these tokens; `target` is the decoder's input, for an encoder-decoder."""
    inputs, layers = {"encoder": tokens, "decoder": target or tokens}, []
    for path, codes in planes.items():
        site, title = LayerPath.parse(path), layer_title(path, is_encoder_decoder=bool(target))
        layers.append(TimelineLayer(path, title, len(codes), inputs[site.query_stack], inputs[site.key_stack]))
    return tuple(layers)


def head_to_enlarge(layers: Sequence[TimelineLayer], frame: Frame) -> tuple[int, int]:
    """Return the (layer, head) with the best score if it stands out, otherwise the first head of the last layer."""
    score, layer, head = _best_head([frame.scores.get(layer.path, ()) for layer in layers])
    return (layer, head) if score >= 0.3 else (len(layers) - 1, 0)


def pack_timeline(
    layers: Sequence[TimelineLayer],
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
    """Pack the frames of a run.

    Args:
        layers: The attention layers.
        frames: The frames, by step.
        reads: The lanes of the token strip by name.
        offset: The column at which the answer starts.
        score: The name of the scores of heads.
        steps: The end of the ruler, in steps.
        exact: The curve of exact match, as (step, share).
        marks: The annotated steps of the ruler, as (step, text).
        best: The (layer, head) that is enlarged until the user selects one.
        live: Whether more frames will follow.
        target: A seek command (order, step): at each new order the player goes to that step, or to the end if it is None.
        judged: Whether predictions can be right or wrong; those of a free text cannot.

    Raises:
        InputError: The planes of a frame have another shape.
    """
    sides = [(len(layer.query_labels), len(layer.key_labels)) for layer in layers]
    shapes = [
        (layer.heads, *(-(-n // block_size(n, SIDE)) for n in side)) for layer, side in zip(layers, sides, strict=True)
    ]
    blocks = []
    for frame in frames:
        for layer, shape in zip(layers, shapes, strict=True):
            codes = frame.planes[layer.path]
            if codes.shape != shape:
                raise InputError(f"The planes of {layer.path} are {shape} in this timeline, got {codes.shape}.")
            blocks.append(codes.tobytes())
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
        **in_both_themes({"hues": HEAD_HUES, "sequential": SEQUENTIAL}),
    }  # fmt: skip
    return joined(MAGIC, header, *blocks)


STANDS_OUT = 0.5
"""Score from which a head is marked as the best; lower scores can be chance."""


def timeline_still(
    snapshots: bytes | Mapping[int, Reading], *, step: int | None = None, head: tuple[int, int] | None = None
) -> alt.VConcatChart:
    """Draw one step of a training run: input and predictions, one enlarged head and all heads, and the learning curves.

    Weights are on a fixed scale from 0 to 1.

    Args:
        snapshots: The readings of one input by training step, or a timeline packed for the player.
        step: The training step, of which the last frame at or before it is drawn; the last one by default.
        head: The (layer, head) to enlarge, from 0; the one with the best score by default.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.timeline_still({800: reading})
    """
    packed = snapshots if isinstance(snapshots, bytes) else timeline_of(snapshots)
    header = header_of(packed, MAGIC)
    layers, frames = header["layers"], header["frames"]
    steps = [frame["step"] for frame in frames]
    at = max((i for i, one in enumerate(steps) if step is None or one <= step), default=0)
    layer, chosen = head or header["best"]
    n_heads = [one["heads"] for one in layers]
    if not (0 <= layer < len(n_heads) and 0 <= chosen < n_heads[layer]):
        got = f"got head {chosen} of layer {layer}"
        raise InputError(f"The layers have {n_heads} heads, {got}; for example head=(0, 0).")
    weights = _weights(packed, header, at)
    cells = max(4, isqrt(HEAD_GRID_MOST_CELLS // sum(n_heads)))
    small = heads_grid([one["title"] for one in layers], [max_pool_masked(one, cells) for one in weights],
                       framed=(layer, chosen))  # fmt: skip
    best = [_best_head(frame["scores"]) for frame in frames]
    score, *best_head = best[at]
    notes = [_name(header, layer, chosen)]
    own = frames[at]["scores"][layer][chosen : chosen + 1]  # empty where no head has a score
    notes += [f"{header['score']}: {one:.2f}" for one in own]
    if score >= STANDS_OUT:
        notes.append("★ best of all heads" if own == [score] else f"★ {_name(header, *best_head)}, {score:.2f}")
    enlarged = layers[layer]
    long = LARGE / max(enlarged["rows"], enlarged["cols"])
    large = head_chart(_cells(enlarged, weights[layer][chosen]), title=" · ".join(notes), legend=False)
    large = large.properties(width=long * enlarged["cols"], height=long * enlarged["rows"])
    lanes = _strip(header, frames[at], f"step {steps[at]:,} of {header['steps']:,}")
    parts = [lanes, alt.hconcat(large, small).resolve_scale(color="independent")]
    if len(frames) + len(header["exact"]) > 1:
        scores = [(step, score) for step, (score, *_) in zip(steps, best, strict=True)]
        parts.append(_learning(header, steps[at], scores))
    return alt.vconcat(*parts).resolve_scale(color="independent")


def _learning(header: dict[str, Any], step: int, best: Sequence[tuple[int, float]]) -> Chart:
    """Draw the best head's score and exact match over the steps, with the marks and the shown step."""
    names = {"best": f"best {header['score']} score", "exact": "exact match"}
    rows = [{"step": at, "exact": share} for at, share in header["exact"]]
    rows += [{"step": at, "best": score} for at, score in best if score >= 0]
    data = with_marks(pd.DataFrame(rows, columns=["step", *names]), step, header["marks"])
    curves = Curves("", names, (HEAD_HUES[0], HEAD_HUES[1]), "share", share=True)
    chart = curve_chart(data, curves, steps=max(1, header["steps"]), height=130)
    marks = alt.Chart(pd.DataFrame(header["marks"], columns=["step", "note"])).encode(x="step:Q", y=alt.value(8))
    return layered(chart, marks.mark_text(align="left", dx=5, color=TEXT).encode(text="note:N"), width=WIDTH)


def _best_head(scores: Sequence[Sequence[float]]) -> tuple[float, int, int]:
    """Return the best score with its layer and head; −1 if no head has a score."""
    found = ((score, -layer, -head) for layer, heads in enumerate(scores) for head, score in enumerate(heads))
    score, layer, head = max(found, default=(-1.0, 0, 0))
    return score, -layer, -head


def _name(header: dict[str, Any], layer: int, head: int) -> str:
    return f"{header['layers'][layer]['title']} · head {head + 1}"


def _weights(packed: bytes, header: dict[str, Any], at: int) -> list[Float[np.ndarray, "head row col"]]:
    """Decode the weights of a frame by layer: NaN where masked, infinite where not a number."""
    shapes = [(one["heads"], one["rows"], one["cols"]) for one in header["layers"]]
    sizes = [int(np.prod(shape)) for shape in shapes]
    behind = (len(header["frames"]) - at) * sum(sizes)
    codes = np.frombuffer(packed, np.uint8)[len(packed) - behind :][: sum(sizes)]
    weights = np.select([codes == MASKED, codes == NAN], [np.nan, np.inf], codes / LEVELS)
    parts = np.split(weights, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _cells(layer: dict[str, Any], weights: Float[np.ndarray, "row col"]) -> pd.DataFrame:
    """Return one head as a table like that of `analysis.attention`; pooled cells are labelled by their first token."""
    names = [
        [f"{i} · {labels[i]}" for i in range(0, len(labels), -(-len(labels) // n))]
        for labels, n in ((layer["queryLabels"], layer["rows"]), (layer["keyLabels"], layer["cols"]))
    ]
    return pattern_cells(np.where(np.isinf(weights), np.nan, weights), ~np.isnan(weights), *names)


def _strip(header: dict[str, Any], frame: dict[str, Any], title: str) -> Chart:
    """Draw the lanes of input tokens and the predictions of the model."""
    rows = [
        {"lane": name, "at": i, "token": token, "kind": "plain", "probability": np.nan}
        for name, tokens in header["reads"]
        for i, token in enumerate(tokens)
    ]
    answers = zip(frame["says"], frame["right"], frame["probability"], strict=True)
    for i, (token, is_right, p) in enumerate(answers, start=header["offset"]):
        kind = "plain" if not header["judged"] else "right" if is_right else "wrong"
        rows.append({"lane": "predicts", "at": i, "token": token, "kind": kind, "probability": p})
    table = pd.DataFrame(rows)
    columns = max(table["at"]) + 1
    size = {"width": max(WIDTH, CELL * columns), "height": CELL * table["lane"].nunique()}
    return layered(*token_lanes(table, columns=columns, title="position"), title=title, **size)


WIDTH, CELL, LARGE = 760, 36, 300
"""CSS pixels: the smallest width of a still, and the sides of a token's box and of the enlarged head."""
