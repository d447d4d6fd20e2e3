"""Locate the first difference between two runs that should agree: layer, component, and in attention the head and cell.

    place = localise(exam, pair)
    place.layer, place.head, place.query, place.key, place.cause

The activations of both runs are compared in forward order, at the positions that should agree. The first that differs
determines the layer and the component. In an attention layer, a weight on a key outside those positions (a later token,
padding, another document) is itself the offending cell.

`compare_runs` does the same for two models that should be equivalent: a port and its original, or two checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from xformer.doctor.check import Exam, Pair, Place, distance
from xformer.doctor.subject import Run, Subject
from xformer.errors import InputError, XformerError
from xformer.site import Site

MASKED = -1e9
"""Scores below this count as masked, whether by −∞ or by a large negative constant."""


def localise(exam: Exam, pair: Pair) -> Place | None:
    """Return the location where the runs of a pair first differ; None if no recorded activation differs."""
    other = pair.second_subject or exam.subject
    limit = 1e2 * exam.subject.eps
    try:
        first, second = exam.subject.record(pair.first), other.record(pair.second)
    except XformerError:  # its attention cannot be captured: compare outputs of modules
        return _by_modules(exam.subject, other, pair, limit)
    row, n_rows = pair.row_second, len(pair.second.tokens)
    second = {name: value[row : row + 1] if len(value) == n_rows else value for name, value in second.items()}
    aligned = _Aligned(pair, first, second)
    leaks = _leaks(aligned)
    for name in first:
        if name not in second:
            continue
        site = Site.find(name)
        at = leaks.get(site.path) if site is not None and site.is_attention else None
        is_inside = name.rpartition(".")[2] in ("mask", "scores", "pattern", "z", "out", "causal")
        if at is not None and is_inside:
            return at
        if aligned.apart(name) > limit:
            return _place(aligned, name)
    return _by_modules(exam.subject, other, pair, limit)


def first_not_finite(subject: Subject, run: Run) -> Place:
    """Return the location of the first NaN or infinity, ignoring masked scores, which are −∞ by design."""
    try:
        recorded = subject.record(run)
    except XformerError:  # its attention cannot be captured
        recorded = {}
    for name, value in recorded.items():
        if name.endswith(("scores", "mask", "causal", "pos_bias")) or bool(value.isfinite().all()):
            continue
        layer, part = re.search(r"coder\.(\d+)\.", name), name.rpartition(".")[2]
        query = int((~value[0].isfinite()).any(dim=-1).any(dim=0).nonzero()[0]) if part == "pattern" else None
        return Place(name, part, None if layer is None else int(layer[1]), query=query)
    return Place("logits", "logits")


class _Aligned:
    """Two recorded runs, restricted to the positions that should agree."""

    def __init__(self, pair: Pair, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        self.pair, self.first, self.second = pair, first, second
        self.read_stack = "decoder" if pair.first.target is not None else ""

    def at(self, stack: str, *, keys: bool = False) -> tuple[list[int], list[int]]:
        """Return the positions of a stack that should agree, in the first and in the second run."""
        if self.read_stack and stack == "encoder":
            return _source_positions(self.pair)
        n_cached = self.pair.second.n_cached
        if n_cached and keys:
            whole = list(range(self.pair.second.read.shape[1]))
            return whole, whole
        if n_cached:  # the second run was recorded from this position on
            rest = [at for at in self.pair.positions[0] if at >= n_cached]
            return rest, [at - n_cached for at in rest]
        return self.pair.positions

    def cut(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return both values of an activation at those positions; None if it has no position axis."""
        site, part = Site.find(name), name.rpartition(".")[2]
        stack = name.split(".")[0] if name.startswith(("encoder.", "decoder.")) else self.read_stack or "decoder"
        is_cross = site is not None and site.kind == "cross_attn"
        query, key = self.at(stack), self.at("encoder" if is_cross else stack, keys=True)
        one, other = self.first[name], self.second[name]
        if part in ("q", "z") and one.dim() == 4:
            return one[:, :, query[0]], other[:, :, query[1]]
        if part in ("k", "v") and one.dim() == 4:
            return one[:, :, key[0]], other[:, :, key[1]]
        if part in ("scores", "pattern", "mask") and one.dim() == 4:
            return one[:, :, query[0]][..., key[0]], other[:, :, query[1]][..., key[1]]
        if one.dim() == 3 and one.shape[1] > max(query[0], default=0) and other.shape[1] > max(query[1], default=0):
            return one[:, query[0]], other[:, query[1]]
        return None

    def apart(self, name: str) -> float:
        """Return the largest difference of an activation, relative to its size; 0 if it cannot be compared."""
        cut = self.cut(name)
        if cut is None:
            return 0.0
        one, other = (value.double().masked_fill(value.double() < MASKED, float("-inf")) for value in cut)
        if one.shape != other.shape:
            return float("inf")
        both = one.isfinite() & other.isfinite()  # −∞ in both at masked cells counts as equal
        if bool((one.isfinite() != other.isfinite()).any()):
            return float("inf")
        one, other = one[both], other[both]
        return float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) if one.numel() else 0.0


def _source_positions(pair: Pair) -> tuple[list[int], list[int]]:
    """Return the positions of the encoder's tokens in both runs, without padding."""

    def tokens(run: Run, row: int) -> list[int]:
        valid = torch.ones_like(run.tokens).bool() if run.valid is None else run.valid
        return valid[row].nonzero().flatten().tolist()

    return tokens(pair.first, 0), tokens(pair.second, pair.row_second)


def _leaks(aligned: _Aligned) -> dict[str, Place]:
    """Return, for each attention layer, the largest weight of a compared query on a key that must not affect it."""
    found = {}
    for name, pattern in aligned.second.items():
        site = Site.find(name)
        if site is None or not name.endswith("attn.pattern"):
            continue
        pair = aligned.pair
        for run, row, patterns, index in (
            (pair.second, pair.row_second, pattern, 1),
            (pair.first, 0, aligned.first.get(name), 0),
        ):
            if patterns is None:
                continue
            queries = aligned.at(site.stack)[index]
            keys = aligned.at("encoder" if site.kind == "cross_attn" else site.stack, keys=True)[index]
            forbidden = torch.ones(patterns.shape[-1], dtype=torch.bool)
            forbidden[keys] = False
            weights = patterns[0, :, queries].double() * forbidden  # [head, query, key]
            if weights.numel() and float(weights.max()) > 1e-6:
                head, query, key = (int(i) for i in torch.unravel_index(weights.argmax(), weights.shape))
                stream = run.tokens if site.kind == "cross_attn" or not aligned.read_stack else run.read
                labels = tuple(stream[row].tolist()) if stream.shape[1] == patterns.shape[-1] else ()
                found[site.path] = Place(
                    name, "mask", site.layer, head, queries[query], key, patterns[0, head].detach(), labels
                )
                break
    return found


def _place(aligned: _Aligned, name: str) -> Place:
    """Return the location for the first activation that differs."""
    site, part = Site.find(name), name.rpartition(".")[2]
    if site is None:
        outside = {"embed": "embedding", "pos_embed": "positions", "pos_angles": "positions", "final_norm": "norm"}
        layer = name.split(".")[1] if name.count(".") >= 2 and name.split(".")[1].isdigit() else None
        cause = outside.get(part, "residual" if layer is not None else "output")
        return Place(name, cause, None if layer is None else int(layer))
    if not site.is_attention:
        return Place(name, "norm" if part == "in" else "feed-forward", site.layer)
    cause = {"in": "norm", "pos_angles": "positions", "causal": "mask"}.get(part, part)
    if part in ("q", "k") and aligned.apart(f"{site.path}.v") < 1e-5 and _agrees_at_first(aligned, name):
        cause = "positions"  # the input is the same, since the values agree
    if part not in ("q", "k", "v", "mask", "scores", "pattern", "z"):  # has no head axis
        return Place(name, cause, site.layer)
    head, query, key = _largest_change(aligned, name, site)
    shown = aligned.first.get(f"{site.path}.pattern")
    if shown is None or head is None or head >= shown.shape[1]:  # heads may share keys and values
        return Place(name, cause, site.layer, head)
    tokens = aligned.pair.first.read[0].tolist()
    labels = tuple(tokens) if len(tokens) == shown.shape[-1] else ()
    return Place(name, cause, site.layer, head, query, key, shown[0, head], labels)


def _agrees_at_first(aligned: _Aligned, name: str) -> bool:
    """Return whether queries or keys of two models agree at position 0, where rotation is the identity; true for one model."""
    cut = aligned.cut(name)
    if aligned.pair.second_subject is None or cut is None:
        return True
    return distance(cut[0][:, :, :1], cut[1][:, :, :1]) < 1e-5


def _largest_change(aligned: _Aligned, name: str, site: Site) -> tuple[int | None, int | None, int | None]:
    """Return the head in which an activation changes most, and the cell of its pattern that changes most."""
    cut = aligned.cut(name)
    if cut is None or cut[0].shape != cut[1].shape:
        return None, None, None
    change = (cut[0].clamp(min=MASKED) - cut[1].clamp(min=MASKED)).nan_to_num().abs()
    head = int(change.amax(dim=(0, 2, 3)).argmax())
    weights = aligned.cut(f"{site.path}.pattern") if f"{site.path}.pattern" in aligned.second else None
    if weights is None or weights[0].shape != weights[1].shape or head >= weights[0].shape[1]:
        return head, None, None
    cells = (weights[0] - weights[1])[0, head].abs()  # [query, key]
    if float(cells.max()) == 0:
        return head, None, None
    at = [int(i) for i in torch.unravel_index(cells.argmax(), cells.shape)]
    return head, aligned.at(site.stack)[0][at[0]], aligned.at(site.stack, keys=True)[0][at[1]]


def _by_modules(subject: Subject, other: Subject, pair: Pair, limit: float) -> Place | None:
    """Return the first module whose output differs at the positions that should agree."""
    at, at_second = _Aligned(pair, {}, {}).at("")
    calls = zip(module_outputs(subject, pair.first), module_outputs(other, pair.second), strict=False)
    for (path, one), (_, two) in calls:
        if one.dim() != 3 or min(one.shape[1] - max(at), two.shape[1] - max(at_second)) <= 0:
            continue
        if distance(one[0, at], two[pair.row_second, at_second]) > limit:
            numbers = [int(word) for word in path.split(".") if word.isdigit()]
            return Place(path, path, numbers[0] if numbers else None)
    return None


@torch.no_grad()
def module_outputs(subject: Subject, run: Run) -> Iterator[tuple[str, Tensor]]:
    """Yield the path and the output of every module of a call, in the order of execution."""
    module, seen = subject.shared().module, []

    def keep(path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) and output else output
            if isinstance(value, Tensor) and value.is_floating_point():
                seen.append((path, value.detach().cpu()))

        return hook

    for path, one in module.named_modules():
        if path:
            one.register_forward_hook(keep(path))
    copied = subject.changed(module)
    output = copied.logits(run)
    yield from [*seen, ("output", output)]


@dataclass(frozen=True, eq=False)
class RunComparison:
    """A comparison of two runs that should agree, module by module.

    Attributes:
        table: One row per pair of modules, in forward order: `module`, `other`, `shape`, `difference`.
        limit: The largest difference that counts as rounding.
        place: Where the runs first differ, with head and cell if both models' attention can be captured; None if they agree.

    Example:
        >>> import xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> comparison = xformer.compare_runs(model, model, [3, 7, 12, 9])
        >>> comparison.ok, comparison.first
        (True, None)
    """

    table: pd.DataFrame
    limit: float
    place: Place | None

    @property
    def ok(self) -> bool:
        """Whether no module differs by more than rounding."""
        return bool((self.table["difference"] <= self.limit).all())

    @property
    def first(self) -> str | None:
        """The first module whose output differs; None if all agree."""
        differing = self.table[self.table["difference"] > self.limit]
        return None if differing.empty else str(differing.iloc[0]["module"])


def compare_runs(
    first: nn.Module,
    second: nn.Module,
    inputs: Any,
    *,
    tokenizer: Any = None,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> RunComparison:
    """Compare two models that should be equivalent, module by module.

    Args:
        first: The original.
        second: The port, the copy, or the same model with another attention backend.
        inputs: A text, token ids, or a dict of arguments, for both models.
        tokenizer: The tokenizer, if `inputs` is a text.
        pairs: Paths of corresponding modules, the original's first; None pairs modules by order and output shape.

    Returns:
        The differences of all pairs, and where the models first differ by more than rounding.

    Raises:
        InputError: A given path is not a called module, or no modules could be paired.

    Example:
        >>> import copy, torch, xformer
        >>> model = xformer.load("checkpoints/reverse").model
        >>> port = copy.deepcopy(model)
        >>> _ = port.get_submodule("encoder.blocks.1.ffn").bias_out.data.add_(0.1)
        >>> xformer.compare_runs(model, port, [3, 7, 12, 9]).first
        'encoder.blocks.1.ffn'
    """
    one, two = Subject.of(first, inputs, tokenizer), Subject.of(second, inputs, tokenizer)
    outputs, others = list(module_outputs(one, one.base)), list(module_outputs(two, two.base))
    rows = [
        {"module": path, "other": path_two, "shape": tuple(value.shape), "difference": distance(value, value_two)}
        for (path, value), (path_two, value_two) in _paired(outputs, others, pairs)
    ]
    if not rows:
        raise InputError("No modules of these models could be paired by order and shape; give pairs=[('a', 'b')].")
    exam = Exam(one)
    at = list(range(one.base.read.shape[1]))
    pair = Pair(one.base, two.base, at, second_subject=two)
    limit = max(exam.limit, 1e2 * one.eps)
    table = pd.DataFrame(rows)
    differs = bool((table["difference"] > limit).any())
    return RunComparison(table, limit, localise(exam, pair) if differs else None)


def _paired(
    outputs: list[tuple[str, Tensor]], others: list[tuple[str, Tensor]], pairs: Sequence[tuple[str, str]] | None
) -> Iterator[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
    """Yield pairs of outputs: the given ones, or in order those of equal shape."""
    if pairs is not None:
        by_path, by_path_two = dict(outputs), dict(others)
        for path, path_two in pairs:
            if path not in by_path or path_two not in by_path_two:
                raise InputError(f"pairs must name modules that were called, like 'layers.0', got {(path, path_two)}.")
            yield (path, by_path[path]), (path_two, by_path_two[path_two])
        return
    start = 0
    for path, value in outputs:
        for index in range(start, len(others)):
            if others[index][1].shape == value.shape:
                yield (path, value), others[index]
                start = index + 1
                break
