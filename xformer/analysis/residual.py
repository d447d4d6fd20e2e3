"""The residual stream of the output stack: its norm after each sublayer, direct logit attribution, and the logit lens.

x ← x + f(x)  (pre-norm: x + f(Norm(x));  post-norm: Norm(x + f(x)))       (Vaswani et al. 2017, §3.1)
logit lens      logits(x) = W_U · norm(x) + b_U   for the stream x after each sublayer; norm: the model's own final norm
                (nostalgebraist 2020, "interpreting GPT: the logit lens")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.adapter import Projection, Readout, before_norm
from xformer.errors import EditError, InputError, UnavailableError
from xformer.formatting import check_index, check_indices
from xformer.layer_path import LayerPath, after
from xformer.reading import Reading
from xformer.trace import Trace

Vector = Float[Tensor, " d_model"]
WHOLE = ("sequence_class", "next_sentence", "image_class", "audio_class", "answer_span", "similarity")
"""The output kinds of external models whose logits describe the whole input instead of each position."""
_SUBLAYER_TITLES = {"attn": "attention", "self_attn": "self", "cross_attn": "cross", "ffn": "feed-forward"}


@dataclass(frozen=True)
class StreamStep:
    """One sublayer, or block without attention, of the output stack, with the names of the stream before and after it."""

    path: str
    """The path of the sublayer or block, as "decoder.0.ffn" or "decoder.0"."""
    layer: int
    layer_path: LayerPath | None
    """None for a block without attention, of which only the stream is known."""
    title: str
    before: str
    after: str

    def added(self, trace: Mapping[str, Tensor]) -> Float[Tensor, "batch pos d_model"]:
        """Return what was added to the stream, before a norm on the sum."""
        return trace[self.after] - trace[self.before] if self.layer_path is None else trace[f"{self.path}.out"]


def stream_steps(reading: Reading) -> list[StreamStep]:
    """List the sublayers of the output stack in order. The sublayers of a parallel block share their before and after.

    Raises `UnavailableError` if no residual stream was found in the model.
    """
    shape = reading.adapter.shape
    stack, blocks = reading.output_stack, shape.blocks(reading.output_stack)
    if not shape.d_model or not blocks:
        raise UnavailableError(f"No residual stream was found in {reading.adapter.name}.")
    found, before = [], f"{stack}.0.resid_pre"
    for number, sites in blocks.items():
        layer = f"{'decoder' if reading.is_encoder_decoder else 'layer'} {number + 1}"
        last = f"{stack}.{number}.resid_post"
        if not sites:
            found.append(StreamStep(f"{stack}.{number}", number, None, layer, before, last))
            before = last
        for site in sites:
            joined = site.path in shape.joined
            end, title = last if joined else after(site), f"{layer} · {_SUBLAYER_TITLES[site.kind]}"
            found.append(StreamStep(site.path, number, site, title, before, end))
            before = before if joined and site is not sites[-1] else end
    return found


def stream(reading: Reading) -> dict[str, Float[Tensor, "batch pos d_model"]]:
    """Return the residual stream after each addition to it, by the title of the point, in order."""
    return {title: reading[name] for title, (name, _) in _points(reading).items()}


def _points(reading: Reading) -> dict[str, tuple[str, list[StreamStep]]]:
    """Return the points of the stream by title: its activation name there, and the steps that were added to reach it."""
    steps = stream_steps(reading)
    points: dict[str, tuple[str, list[StreamStep]]] = {"embedding": (steps[0].before, [])}
    by_end: dict[str, list[StreamStep]] = {}
    for step in steps:
        by_end.setdefault(step.after, []).append(step)
    for end, together in by_end.items():
        title = " and ".join([together[0].title, *(step.title.rpartition(" · ")[2] for step in together[1:])])
        points[title] = end, together
    if len({reading[name].shape for name, _ in points.values() if name in reading}) > 1:
        raise UnavailableError(
            f"The stream of {reading.adapter.name} changes its length or width between layers, so its points cannot be "
            "compared."
        )
    return points


def positions_of(reading: Reading, positions: Sequence[int] | None = None) -> list[int]:
    """Return the positions of the output stack without padding, in order; only those in `positions` if given."""
    real = reading.trace.real(reading.output_stack)
    start = f"{reading.output_stack}.0.resid_pre"
    n = reading[start].shape[1] if start in reading else len(reading.ids(reading.output_stack))
    check_indices("positions", positions or (), n)
    added = 0 if real is None else n - len(real)  # positions that the model itself puts before those of the input
    return [
        at
        for at in range(n)
        if (real is None or at < added or real[at - added]) and (positions is None or at in positions)
    ]


def deciding_position(reading: Reading) -> int:
    """Return the last target position of a run. Raises `InputError` if it has none."""
    if not reading.target_positions:
        raise InputError(
            f"No position of this run of {reading.adapter.name} has a target; choose one with analysis.at_position."
        )
    return reading.target_positions[-1]


def _check_aligned(reading: Reading) -> None:
    """Raise `UnavailableError` if the outputs are not at the positions of the stream."""
    n_out, n = reading.logits.shape[1], reading.trace.read_by(reading.output_stack).shape[1]
    if reading.output not in WHOLE and n_out != n and reading.trace.model_config is None:
        raise UnavailableError(
            f"{reading.adapter.name} returns outputs at {n_out} positions, but its stream has {n}, so the stream at a position "
            "does not explain the output there."
        )


def norms(reading: Reading, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """Measure the norm ‖x‖₂ of the residual stream at each point, and of what was added to it there, at each position.

    In a post-norm model, the added vector is measured before the sum is normalised. Padding is left out.

    Args:
        reading: The run.
        positions: The positions, from 0; all by default.

    Returns:
        A row per vector: what ("stream" for the stream, "added" for what was added; equal at the embedding), depth (number of
        the point, from 0), point (its title), position (from 0) and length (‖x‖₂).

    Raises:
        UnavailableError: If no residual stream was found in the model.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.norms(reading)
        >>> list(table.columns)
        ['what', 'depth', 'point', 'position', 'length']
    """
    counted, rows = positions_of(reading, positions), []
    for depth, (point, (name, found)) in enumerate(_points(reading).items()):
        added = torch.stack([step.added(reading) for step in found]).sum(dim=0) if found else reading[name]
        for what, vectors in (("stream", reading[name]), ("added", added)):
            lengths = vectors[0].norm(dim=-1).tolist()  # [pos]
            rows += [(what, depth, point, position, lengths[position]) for position in counted]
    return pd.DataFrame(rows, columns=["what", "depth", "point", "position", "length"])


ROUNDINGS = 8
"""A sum may differ from the recorded value by this many roundings of the run's dtype (`torch.finfo(dtype).eps`)."""

CLOSE = 1e-3
"""The least tolerance, for dtypes more precise than the computation here: a share of the largest number."""


def tolerance(recorded: Tensor) -> float:
    """Return how far a sum of parts may be from the recorded value, as a share of the largest number.

    Example:
        >>> tolerance(torch.zeros(1)), tolerance(torch.zeros(1, dtype=torch.bfloat16))
        (0.001, 0.0625)
    """
    return max(CLOSE, ROUNDINGS * torch.finfo(recorded.dtype).eps)


def check_told_apart(recorded: Tensor, sites: Sequence[LayerPath]) -> None:
    """Raise `UnavailableError` if rounding may have hidden which sublayer of a block added what.

    The sublayers of an external model are located by what they add. In float16 and bfloat16, if only one sublayer was found in
    a block, the output reported for the attention may be that of the feed-forward layer.
    """
    if torch.finfo(recorded.dtype).bits >= 32:
        return
    complete = {site.layer for site in sites if not site.is_attention}
    if missing := sorted({site.layer for site in sites} - complete):
        dtype = str(recorded.dtype).removeprefix("torch.")
        raise UnavailableError(
            f"In layer {missing[0] + 1} attention and feed-forward could not be separated, because what they add is rounded to "
            f"{dtype}. Load the model in float32."
        )


@torch.no_grad()
def attribution(reading: Reading, *, position: int, token: int | None = None, lead: bool = False) -> pd.DataFrame:
    """Attribute the logit of a token at a position to the parts that were added to the residual stream.

    The contributions, computed in double precision, sum to the logit (or the lead). They have both signs and cancel, so none is
    a share of it. If an edit replaced the whole output of a sublayer, that output is one part, including its bias.

    Args:
        reading: The run; only its first input counts.
        position: The position in the output stack, from 0.
        token: The id of the token; by default the target token at the position, see `Reading.explained`.
        lead: Subtract the logit of the strongest other token.

    Returns:
        A row per part, in the order of the stream: part (its title), kind, layer (from 0; −1 outside the layers), head (from 0;
        −1 if the part is not a head) and contribution (in logits). In float16 and bfloat16 the last part is "rounding". If the
        difference is larger, for example because a sublayer was not found, it is "unattributed".

    Raises:
        EditError: If an edit changed the stream itself, which is then not the sum of its parts.
        UnavailableError: If there is more than a norm and a matrix between the stream and the logits.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.attribution(reading, position=0)
        >>> list(table.columns)
        ['part', 'kind', 'layer', 'head', 'contribution']
    """
    return _attribution(reading, position, token, lead=lead).drop(columns="path")


def _attribution(reading: Reading, position: int, token: int | None, *, lead: bool) -> pd.DataFrame:
    """Return the table of `attribution` with one more column, the path of the part's layer ("" outside the layers)."""
    trace, weights = reading.trace, reading.adapter.weights
    at = f"{reading.output_stack}." if reading.is_encoder_decoder else ""
    readout, steps = weights.unembedding(), stream_steps(reading)
    check_told_apart(trace[steps[-1].after], [step.layer_path for step in steps if step.layer_path is not None])
    token, rival = explained_pair(reading, position, token)
    _check_is_a_sum(trace, [*(end for step in steps for end in (step.before, step.after)), f"{at}final_norm", "logits"])
    x, both = trace[steps[-1].after][0, position].double(), [token, rival]

    def chosen(two: Tensor) -> Tensor:
        return two[0] - two[1] if lead else two[0]

    readouts = [_capped(readout, x, row) for row in readout.matrix[both].double()]  # [d_model] each
    g = chosen(torch.stack(readouts))
    bias = torch.zeros(2) if readout.bias is None else readout.bias[both].double()
    rows = [_row("output bias", "bias", chosen(bias))]
    shift = torch.zeros((), dtype=torch.float64)  # from the βs of the norms
    added = torch.zeros((), dtype=torch.float64)  # from the biases of the sublayers
    if readout.norm is not None:
        g, constant = before_norm(readout.norm, x, g)
        shift = shift + constant
    for step in reversed(steps):
        path, layer = step.path, step.layer
        out = step.added(trace)[0, position].double()  # [d_model]
        if step.layer_path is None:
            rows.append(_row(step.title, "others", g @ out, layer, path=path))
            continue
        if (norm := weights.norm_after(path)) is not None:  # the norm after the sum, only in post-norm models
            g, constant = before_norm(norm, trace[step.before][0, position].double() + out, g)
            shift = shift + constant
        kind = "attention" if step.layer_path.is_attention else "feed_forward"
        replaced = any(fnmatchcase(f"{path}.out", edit.name) for edit in trace.edits)
        own = None if replaced else projection_of(reading, step.layer_path)
        if own is None:
            rows.append(_row(step.title, kind, g @ out, layer, path=path))
            continue
        inner, constant = _inside(own, trace, step.layer_path, position, g)
        shift = shift + constant
        of_bias = torch.zeros_like(shift) if own.bias is None else inner @ own.bias.double()
        added = added + of_bias
        if not step.layer_path.is_attention:
            rows.append(_row(step.title, kind, g @ out - of_bias - constant, layer, path=path))
            continue
        z = trace[f"{path}.z"][0, :, position].double()  # [head, d_value]
        w_o = own.weight.double().unflatten(0, tuple(z.shape))  # [head, d_value, d_model]
        heads = torch.einsum("hv,hvd,d->h", z, w_o, inner)  # [head]
        title = step.title.removesuffix(" · attention")
        for head in reversed(range(len(heads))):
            rows.append(_row(f"{title} · head {head + 1}", kind, heads[head], layer, head, path))
    rows += [_row(name, kind, g @ vectors[position]) for name, kind, vectors in entering(reading, reading.output_stack)]
    rows.reverse()
    rows.insert(-1, _row("norms' shifts β", "bias", shift))
    rows.insert(-1, _row("sublayers' biases", "bias", added))
    return pd.DataFrame([*rows, *_difference(trace, position, both if lead else [token], rows)])


def _difference(trace: Trace, position: int, tokens: list[int], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one more row with what the rows miss of the recorded logit (or lead), if it exceeds float32 rounding."""
    logits = trace.logits[0, position, tokens].double()  # [1 or 2]
    found = [row["contribution"] for row in rows]
    missing = logits[0] - (logits[1] if len(logits) > 1 else 0.0) - sum(found)
    is_rounding = float(missing.abs()) <= tolerance(trace.logits) * max(float(logits.abs().max()), *map(abs, found))
    if is_rounding and torch.finfo(trace.logits.dtype).bits >= 32:
        return []
    return [_row("rounding" if is_rounding else "unattributed", "others", missing)]


def entering(reading: Reading, stack: str) -> list[tuple[str, str, Float[Tensor, "pos d_model"]]]:
    """Return the parts of the stream that enters a stack: positions, then tokens; one part if they are mixed.

    Some model families multiply the rows of a table by a constant, which is estimated here; a norm or matrix after the tables
    mixes the parts.
    """
    at, name = f"{stack}." if reading.is_encoder_decoder else "", f"{stack}.0.resid_pre"
    total = reading[name][0].double()  # [pos, d_model]
    tables = {"position": "pos_embed", "token": "embed", "token type": "type_embed"}
    found: dict[str, Tensor] = {}
    for part, table in tables.items():
        if f"{at}{table}" in reading:
            rows = reading[f"{at}{table}"].double()
            found[part] = rows[0] if rows.dim() == 3 else rows
    kinds = {"position": "positions", "token": "embedding", "token type": "embedding"}
    if found and all(rows.shape == total.shape for rows in found.values()):
        columns = torch.stack([rows.flatten() for rows in found.values()], dim=1)  # [pos · d_model, part]
        largest, eps = float(total.abs().max()), torch.finfo(reading[name].dtype).eps  # the sum is rounded once
        if torch.allclose(columns.sum(dim=1), total.flatten(), rtol=0, atol=max(1e-6, eps) * largest):
            factors = torch.ones_like(columns[0])
        else:
            factors = torch.linalg.lstsq(columns, total.flatten()[:, None]).solution[:, 0]
        if torch.allclose(columns @ factors, total.flatten(), rtol=0, atol=max(1e-5, 2 * eps) * largest):
            factor = dict(zip(found, factors, strict=True))
            return [(part, kinds[part], factor[part] * rows) for part, rows in found.items()]
    return [("token and position" if f"{at}pos_embed" in reading else "token", "embedding", total)]


def _capped(readout: Readout, x: Vector, row: Vector) -> Vector:
    """Scale a row of the unembedding as the soft cap scales its logit, with the factor frozen at this run's value."""
    if (cap := readout.softcap) is None:
        return row
    g, constant = (row, 0.0) if readout.norm is None else before_norm(readout.norm, x, row)
    logit = float(g @ x + constant)
    return row * (cap * math.tanh(logit / cap) / logit) if logit else row


def projection_of(reading: Reading, site: LayerPath) -> Projection | None:
    """Return the projection from the inside of a layer to the stream, if it is known and the inside was recorded."""
    inside = f"{site.path}.{'z' if site.is_attention else 'post'}"
    with suppress(UnavailableError):
        return reading.adapter.weights.projection(site.path) if inside in reading else None
    return None


def _inside(
    own: Projection, trace: Trace, site: LayerPath, position: int, g: Vector
) -> tuple[Vector, Float[Tensor, ""]]:
    """Return the readout of the matrix's output that equals, up to a constant, the readout g of what is added."""
    g = g * own.factor
    if own.norm is None:
        return g, torch.zeros((), dtype=torch.float64)
    inside = trace[f"{site.path}.z"][0, :, position] if site.is_attention else trace[f"{site.path}.post"][0, position]
    mapped = inside.double().flatten() @ own.weight.double()
    return before_norm(own.norm, mapped if own.bias is None else mapped + own.bias.double(), g)


def explained_pair(reading: Reading, position: int, token: int | None = None) -> tuple[int, int]:
    """Return the token that is explained at a position, and the strongest other token."""
    _check_aligned(reading)
    check_index("position", position, reading.example.labels.shape[1])
    token = reading.explained(position) if token is None else token
    others = reading.logits[0, position].clone()  # [vocab]
    check_index("token", token, len(others))
    others[token] = float("-inf")
    return token, int(others.argmax())


def strongest(frames: Mapping[str, pd.DataFrame], n: int) -> dict[str, pd.DataFrame]:
    """Keep the `n` largest parts, by magnitude in any frame, of `attribution` frames, in the order of the stream.

    The rest become a last row, "63 others", of kind "others", so that the sum of each frame is unchanged.
    """
    every = pd.concat([*frames.values()]).sort_values("contribution", key=abs, ascending=False, kind="stable")
    parts = list(dict.fromkeys(every["part"]))
    if len(parts) <= n + 1:  # a row for a single other part would say less than the part itself
        return dict(frames)
    found = {}
    for name, frame in frames.items():
        is_kept = frame["part"].isin(parts[:n])
        rest = torch.tensor(frame["contribution"][~is_kept].sum())
        others = pd.DataFrame([_row(f"{len(parts) - n} others", "others", rest)])
        found[name] = pd.concat([frame[is_kept], others], ignore_index=True)
    return found


def _check_is_a_sum(trace: Trace, names: Sequence[str]) -> None:
    """Raise `EditError` if an edit replaced a sum of the stream."""
    for edit, name in product(trace.edits, names):
        if fnmatchcase(name, edit.name):
            raise EditError(
                f"The edit of {edit.name!r} changes {name}, the stream itself, which is then not the sum of its parts; "
                "attribute a run without it."
            )


def _row(part: str, kind: str, value: Tensor, layer: int = -1, head: int = -1, path: str = "") -> dict[str, Any]:
    return {"part": part, "kind": kind, "layer": layer, "head": head, "contribution": value.item(), "path": path}


MAX_AT_ONCE = 8_000_000
"""The most logits computed at a time."""


@torch.no_grad()
def lens(reading: Reading, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """Apply the logit lens at each point of the residual stream: the prediction if the model ended there.

    Args:
        reading: The run; only its first input counts.
        positions: The positions to include, from 0; by default all. If the run has target positions, only those and the output
            that follows a text are included. Padding is left out.

    Returns:
        A row per point and position: depth (number of the point, from 0), point (its title), position (from 0), token (the
        likeliest) and its probability. If the run has target positions, also answer, answer_probability and right (whether the
        likeliest token is the answer); after the end of a text, the answer is the model's own prediction.

    Raises:
        UnavailableError: If no residual stream was found in the model.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.lens(reading)
        >>> list(table.columns)
        ['depth', 'point', 'position', 'token', 'probability', 'answer', 'answer_probability', 'right']
    """
    names, counted = reading.adapter.token_labels, lens_positions(reading, positions)
    has_answers = bool(reading.target_positions)
    answer = torch.tensor([reading.explained(at) for at in counted if has_answers], dtype=torch.long)  # [position]
    frames = []
    for depth, (point, p) in enumerate(_probabilities(reading, counted)):
        best = p.max(dim=-1)
        columns: dict[str, object] = {"depth": depth, "point": point, "position": counted}
        columns["token"] = [names[token] for token in best.indices.tolist()]
        columns["probability"] = best.values.tolist()
        if has_answers:
            columns["answer"] = [names[token] for token in answer.tolist()]
            columns["answer_probability"] = p.gather(1, answer[:, None])[:, 0].tolist()
            columns["right"] = (best.indices == answer).tolist()
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _probabilities(reading: Reading, counted: Sequence[int]) -> Iterator[tuple[str, Float[Tensor, "position vocab"]]]:
    """Yield the lens probabilities of each point of the stream at the given positions.

    Points are batched up to `MAX_AT_ONCE` logits: reading a large unembedding is slow, and all logits together would not fit.
    """
    points = list(stream(reading).items())
    together = max(1, MAX_AT_ONCE // max(1, len(counted) * len(reading.adapter.token_labels)))
    for first in range(0, len(points), together):
        some = points[first : first + together]
        x = torch.cat([state[:1, counted] for _, state in some], dim=1)  # [1, point · position, d_model]
        p = reading.adapter.unembed(x)[0].softmax(dim=-1).cpu().unflatten(0, (len(some), len(counted)))
        yield from ((point, p[index]) for index, (point, _) in enumerate(some))


@torch.no_grad()
def answer_path(reading: Reading, *, position: int) -> pd.DataFrame:
    """Follow one output through the stream: the probability of its answer after each sublayer, and what each sublayer adds.

    Args:
        reading: The run.
        position: The output position, from 0.

    Returns:
        A row per point of the stream: depth (from 0), point, token (the likeliest), answer, answer_probability, rank (of the
        answer, from 1) and adds (what was added there to the answer's logit minus that of the strongest other token, see
        `attribution`; biases are in no row; NaN if it cannot be attributed).

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.answer_path(reading, position=0)
        >>> list(table.columns)
        ['depth', 'point', 'token', 'answer', 'answer_probability', 'rank', 'adds']
    """
    _check_aligned(reading)
    names, answer, adds = reading.adapter.token_labels, reading.explained(position), {}
    try:
        parts = _attribution(reading, position, None, lead=True)
        adds["embedding"] = parts.loc[parts["kind"].isin(["embedding", "positions"]), "contribution"].sum()
        ends: dict[str, float] = {}
        for step in stream_steps(reading):
            of_step = parts.loc[parts["path"] == step.path, "contribution"].sum()
            ends[step.after] = ends.get(step.after, 0.0) + of_step
        adds |= dict(zip(list(stream(reading))[1:], ends.values(), strict=True))
    except (EditError, UnavailableError):
        adds = {}
    rows = []
    for depth, (point, probabilities) in enumerate(_probabilities(reading, [position])):
        p = probabilities[0]
        rank = 1 + int((p > p[answer]).sum())
        token, adds_here = names[int(p.argmax())], adds.get(point, math.nan)
        rows.append((depth, point, token, names[answer], float(p[answer]), rank, adds_here))
    return pd.DataFrame(rows, columns=["depth", "point", "token", "answer", "answer_probability", "rank", "adds"])


def lens_positions(reading: Reading, positions: Sequence[int] | None = None) -> list[int]:
    """Return the output positions that a lens shows: the targets and the one after a text, or all if there are no targets."""
    if (
        reading.target_positions or reading.logits.shape[1] > 1
    ):  # a lens needs no output, and some models return only the last
        _check_aligned(reading)
    targets = {*reading.target_positions, *([] if reading.open_output is None else [reading.open_output])}
    valid = [at for at in positions_of(reading) if not reading.target_positions or at in targets]
    shown = valid if positions is None else [at for at in valid if at in positions]
    if not shown:
        raise InputError(f"The lens reads positions {valid}, got {list(positions or ())}; omit them to read all.")
    return shown


def decision_depths(frame: pd.DataFrame) -> pd.DataFrame:
    """Find for each position of a `lens` frame with answers the `depth` and `point` from which the likeliest token stays right.

    Positions whose final prediction is wrong have no row.
    """
    rows = []
    for position, group in frame.sort_values("depth").groupby("position"):
        if (first := holds_from(group["right"].tolist())) is not None:
            rows.append((position, first, group["point"].iloc[first]))
    return pd.DataFrame(rows, columns=["position", "depth", "point"])


def holds_from(flags: Sequence[bool]) -> int | None:
    """Return the index from which all flags are true to the end; None if the last one is false."""
    first = 1 + max((at for at, flag in enumerate(flags) if not flag), default=-1)
    return first if first < len(flags) else None
