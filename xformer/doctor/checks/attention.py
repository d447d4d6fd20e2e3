"""What attention itself must do: its weights, the constant that masks, and which head reads which keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters.attention import FORBIDDEN, for_each_head
from xformer.doctor.check import Exam, Finding, assume, broken, check, stacked
from xformer.doctor.subject import Run, Subject
from xformer.doctor.watch import Watch, Watched, stepwise, watch
from xformer.model import Transformer

LOOSE = 1e4
"""How many roundings the sum of a row of weights may be away from 1."""
UNDERFLOW = -104.0
"""exp of anything below is 0 in float32."""
N_GROUP_TOKENS = 4


def loose(subject: Subject) -> float:
    """How far weights may be from what they should be: 1e-3 in float32, 8 % in bfloat16."""
    return min(LOOSE * subject.eps, 0.08)


def worst_cell(apart: Float[Tensor, "batch head query key"]) -> dict[str, int]:
    """Head, query and key of the largest difference."""
    _, head, query, key = (int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    return {"head": head, "query": query, "key": key}


def shortened(subject: Subject, n: int) -> Run:
    """The last tokens of the inputs, where some models need one that ends them; an image stays whole."""
    run = subject.base
    if subject.reads_images:
        return run
    return Run(run.tokens[:, -n:], target=None if run.target is None else run.target[:, -n:])


@check("attention_rows", "attention weights are softmax(scores): not negative, and each row sums to 1")
def attention_rows(exam: Exam) -> Finding:
    """The weights that mix the values, and those that are returned, against the scores."""
    subject = exam.subject
    run = shortened(subject, 16)
    seen = [one for one in watch(subject, run, by_steps=True) if not one.is_kernel]
    for one in seen:
        if (found := _wrong_rows(one, loose(subject))) is not None:
            return found
    returned = _returned(subject, run)
    used = [one for one in seen if one.weights is not None]
    if len(returned) == len(used):
        for one, weights in zip(used, returned, strict=True):
            assert one.weights is not None
            apart = (weights - one.weights).abs() if weights.shape == one.weights.shape else None
            if apart is not None and float(apart.max()) > loose(subject):
                sentence = f"The returned weights differ from those that mix the values, by {float(apart.max()):.2g}."
                remedy = "Return the weights after the softmax and the mask, those that are multiplied with the values."
                return placed(one, worst_cell(apart), sentence, remedy, float(apart.max()))
    assume(seen, "A kernel computes the attention, and the model has no path on which weights can be seen.")
    rest = " So are the returned ones." if returned and len(returned) == len(used) else ""
    return Finding("holds", f"Each row of weights sums to 1 and is softmax(scores), in {len(seen)} attentions.{rest}")


def placed(
    one: Watched, cell: dict[str, int], sentence: str, remedy: str, size: float, cause: str = "pattern"
) -> Finding:
    """A broken rule at a cell of one attention."""
    weights = one.softmax if one.weights is None else one.weights
    pattern = weights[0, cell["head"]].detach()
    return broken(sentence, remedy, size, cause=cause, layer=one.layer, pattern=pattern, **cell)


def _wrong_rows(one: Watched, limit: float) -> Finding | None:
    """What is wrong with the weights of one attention; None for nothing."""
    remedy = "The softmax runs over the keys (dim=-1) of masked scores, and its result is used as it is in eval mode."
    if one.axis != -1:
        axis = {-2: "the queries", -3: "the heads"}.get(one.axis, "the batch")
        apart = (one.softmax.sum(dim=-1, keepdim=True) - 1).abs().expand_as(one.softmax)
        sentence = f"The softmax runs over {axis}, not over the keys."
        return placed(one, worst_cell(apart), sentence, remedy, float(apart.max()))
    if one.weights is None:
        return None
    softmax = one.softmax[..., : one.weights.shape[-1]]
    empty = ~one.allowed.any(dim=-1, keepdim=True)  # a query without any key may get zeros or equal weights
    apart = (one.weights.double() - softmax.double()).abs().masked_fill(empty, 0.0).nan_to_num(1.0)
    if float(apart.max()) <= limit:
        return None
    total = one.weights.double().sum(dim=-1, keepdim=True).masked_fill(empty, 1.0)
    worst = float(total.flatten()[(total - 1).abs().argmax()])
    sentence = (
        f"The weights that mix the values are not softmax(scores): a row sums to {worst:.3g}."
        if abs(worst - 1) > limit and not one.has_sink
        else f"The weights that mix the values differ from softmax(scores) by {float(apart.max()):.2g}."
    )
    return placed(one, worst_cell(apart), sentence, remedy, float(apart.max()))


def _returned(subject: Subject, run: Run) -> list[Tensor]:
    """The attention weights that a model returns, [batch, head, query, key], in the order of its layers."""
    if not subject.can("attention"):
        return []
    subject = stepwise(subject)
    with torch.no_grad():
        output = subject.call(subject.arguments(run) | {subject.takes["attention"]: True})
    given = getattr(output, "attentions", None if subject.is_transformers else output)
    n = run.read.shape[1]
    return [one for one in _tensors(given) if one.dim() == 4 and tuple(one.shape[-2:]) == (n, n)]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


@check("mask_constant", "a masked score is so low that its weight is exactly 0, even if scores were 10 times larger")
def mask_constant(exam: Exam) -> Finding:
    """The largest score of a masked key against the scores of the others."""
    subject = exam.subject
    base = shortened(subject, 16)
    runs = [base] if subject.causal else []
    if subject.can("valid") and base.target is None and base.tokens.shape[1] > 2:
        valid = torch.ones_like(base.tokens, dtype=torch.bool)
        valid[:, -2:] = False
        runs.append(Run(base.tokens, valid=valid))
    own = getattr(subject.module.config, "_attn_implementation", "eager") if subject.is_transformers else "eager"
    lowest, n_masked = -float("inf"), 0
    for run in runs:
        for by_steps in (False,) if own == "eager" else (False, True):
            for one in watch(subject, run, by_steps=by_steps):
                cells = _cells(one, run, subject.causal)
                if cells is None or not cells[0].any():
                    continue
                masked, seen = cells
                for head, (constant, reach) in enumerate(_constants(one, masked, seen)):
                    if reach > UNDERFLOW:
                        return _weak(one, head, constant, masked)
                    n_masked, lowest = n_masked + (constant == constant), max(lowest, constant)
    assume(n_masked, "No masked score could be seen.")
    return Finding("holds", f"Masked scores are at most {lowest:.3g}, so their weights are exactly 0.")


def _cells(one: Watched, run: Run, causal: bool) -> tuple[Tensor, Tensor] | None:
    """The cells that must be masked, and those that need not be, [query, key]; None for an attention to another stream."""
    n = run.read.shape[1]
    if not one.is_square or one.scores.shape[-2] != n or (run.target is not None and "encoder" in one.path.split(".")):
        return None
    masked = torch.ones(n, n, dtype=torch.bool).triu(1) if causal else torch.zeros(n, n, dtype=torch.bool)
    tokens = torch.ones(n, dtype=torch.bool) if run.valid is None else run.valid[0].cpu()
    masked |= ~tokens
    return masked & tokens[:, None], ~masked & tokens[:, None]  # what padding attends to does not matter


def _constants(one: Watched, masked: Tensor, seen: Tensor) -> list[tuple[float, float]]:
    """For each head the mask constant, and how near to 0 the logarithm of a masked weight comes with scores 10 times larger.

    Heads whose masked scores are like the others are left out: nothing is masked there, which other checks see.
    """
    scores, found = one.key_scores[0].double(), []
    products: Any = [None] * len(scores)
    if one.q is not None and one.k is not None and one.q.dim() == one.k.dim() == 4 and not one.has_sink:
        products = (one.q @ for_each_head(one.k, one.q.shape[1]).transpose(-2, -1))[0].double()
    for score, product in zip(scores, products if len(products) == len(scores) else [None] * len(scores), strict=True):
        hidden, others = score[masked], score[seen]
        constant, itself = float(hidden.max()), score.diagonal()[seen.diagonal()]
        is_filled = len(hidden) > 2 and bool((hidden == hidden[0]).all())
        if constant > FORBIDDEN and not is_filled and (not itself.numel() or constant >= float(itself.min())):
            constant = _added_constant(score, product, masked, seen)  # so weak that masked scores are among the others
        if constant is None:
            found.append((float("nan"), -float("inf")))
            continue
        others = others[others != constant] if is_filled else others[others > constant]  # not those outside of a window
        reach = 20 * float(others.abs().max()) if others.numel() and bool(others.isfinite().all()) else 0.0
        found.append((constant, constant + reach))
    return found


def _added_constant(score: Tensor, product: Tensor | None, masked: Tensor, seen: Tensor) -> float | None:
    """The number that was added to the masked ones of the scores, where these are scaled products; None where it is none."""
    if product is None or product.shape != score.shape:
        return None
    scale = float((score * product)[seen].sum() / product[seen].square().sum().clamp(min=1e-30))
    rest = score - scale * product
    size = float(score[seen].abs().max())
    constant = float(rest[masked].mean())
    spread = float((rest[masked] - constant).abs().max())
    is_scaled = float(rest[seen].abs().max()) < 1e-3 * size
    return constant if is_scaled and spread < 1e-3 * size < -constant else None


def _weak(one: Watched, head: int, constant: float, masked: Tensor) -> Finding:
    cells = one.softmax[..., : masked.shape[-1]].double() * masked
    largest = float(cells[0, head].max())
    if largest == 0.0:
        cells = one.key_scores.double().masked_fill(~masked, -float("inf"))
    cell = worst_cell(cells[:, head : head + 1]) | {"head": head}
    already = f" (already {largest:.2g})" if largest > 0 else ""
    sentence = (
        f"Masked scores are only lowered to {constant:.3g}: with large scores, masked keys get attention{already}."
    )
    return placed(one, cell, sentence, "Mask with −∞, or with torch.finfo(scores.dtype).min.", abs(constant), "mask")


@check("key_value_groups", "query head h uses key/value head h // group, and no other")
def key_value_groups(exam: Exam) -> Finding:
    """Change one key/value head at a time, and see which heads the output projection reads differently."""
    subject = exam.subject
    assume(not subject.reads_images, "The model reads images.")
    run = shortened(subject, N_GROUP_TOKENS)
    assume(run.read.shape[1] >= 2, "The input has one token; give at least two.")
    plan = _planned(subject, run)
    assume(plan, "The model has one head, or the matrices of its keys and values could not be found.")
    seen, is_ours = 0, isinstance(subject.module, Transformer)
    for one, heads_of in _measured(subject, run, plan):
        if one.n_groups > 1 and all(len(heads) == one.n_heads for heads in heads_of):
            continue  # something after attention mixes the heads, as a norm does
        seen += any(heads_of)
        if (wrong := _wrong_head(heads_of, one, is_ours=is_ours)) is not None:
            head, group = wrong
            return broken(
                f"Query head {head} reads key/value head {group}, and should read {head // one.group}.",
                "Repeat keys and values head by head (repeat_interleave, or expand and reshape), not the whole block of "
                "heads (repeat), and split heads before positions are moved.",
                layer=one.layer,
                head=head,
                cause="v",
            )
    assume(seen, "What follows attention mixes its heads, so they could not be separated.")
    kinds = sorted({f"{one.n_groups} for {one.n_heads} query heads" for one in plan})
    return Finding("holds", f"Every query head uses the key/value head of its group ({', '.join(kinds)}).")


@dataclass
class _Matrices:
    """The matrices around one attention, by the order of their calls: those whose output has key/value heads, and the last."""

    path: str
    layer: int | None
    n_heads: int
    n_groups: int
    read_by: int
    makers: list[tuple[int, list[int]]]
    """The matrices that make keys and values, and the widths of the heads that each makes."""

    @property
    def group(self) -> int:
        """How many query heads share a key/value head."""
        return self.n_heads // self.n_groups


class _Blocks(Watch):
    """Changes one head of a projection in each row of a batch, and compares the rows where the output projection reads them.

    After that, all rows go on as the first does, so that one run measures all layers.
    """

    def __init__(self, subject: Subject, n_rows: int, plan: list[_Matrices]) -> None:
        super().__init__(subject.module, n_rows)
        self.events: list[Any] = []
        """The attentions, and the matrices: (path, number of the call, width read, width given)."""
        self.heads_of: dict[tuple[int, int], list[set[int]]] = {}
        self._call, self._read = -1, 0
        self._read_by = {one.read_by: one for one in plan}
        self._rows = {}
        for one in plan:
            row = 1
            for maker, widths in one.makers:
                self._rows[maker] = (row, widths)
                row += len(widths)

    def _add(self, q: Tensor | None, k: Tensor | None, scores: Tensor, axis: int, softmax: Tensor) -> None:
        super()._add(q, k, scores, axis, softmax)
        self.events.append(self.seen[-1])

    def linear_reads(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._call += 1
        read = args[0] if args else options["input"]
        self._read = read.shape[-1]
        plan = self._read_by.get(self._call)
        if plan is None or read.dim() != 3 or not args or len(read) != self._n_batch:
            return args, options
        heads = read.unflatten(-1, (plan.n_heads, -1)).double()  # [row, pos, head, width]
        apart = (heads - heads[:1]).abs().amax(dim=(1, 3))  # [row, head]
        limit = 100 * torch.finfo(read.dtype).eps * float(heads[0].abs().max())
        for maker, _ in plan.makers:
            row, widths = self._rows[maker]
            self.heads_of[plan.read_by, maker] = [
                set((apart[row + block] > limit).nonzero().flatten().tolist()) for block in range(len(widths))
            ]
        return (read[:1].expand_as(read), *args[1:]), options

    def linear_gives(self, output: Tensor) -> Tensor:
        self.events.append((self.path, self._call, self._read, output.shape[-1]))
        if self._call not in self._rows or output.dim() != 3 or len(output) != self._n_batch:
            return output
        row, widths = self._rows[self._call]
        draw = torch.Generator().manual_seed(0)
        output, start = output.clone(), 0
        for block, width in enumerate(widths):  # at one position: all keys changed alike would change no weight
            change = 5 * output[0].std() * torch.randn(width, generator=draw).to(output)
            output[row + block, 1, start : start + width] += change
            start += width
        return output


def _planned(subject: Subject, run: Run) -> list[_Matrices]:
    """Which matrices make the keys and values of each attention, and which one reads what it gives."""
    copied = subject.shared()
    with _Blocks(copied, 1, []) as watching:
        copied.logits(run)
    plan: list[_Matrices] = []
    before: list[tuple[str, int, int]] = []
    waiting: tuple[Watched, list[tuple[str, int, int]]] | None = None
    for event in watching.events:
        if isinstance(event, Watched):
            waiting, before = (event, before), []
            continue
        path, number, n_read, n_given = event
        if waiting is not None and n_read % waiting[0].scores.shape[1] == 0:
            one, makers = waiting
            inside = [each[1:] for each in makers if each[0] == one.path or each[0].startswith(f"{one.path}.")]
            plan += _matrices(one, number, n_read // one.scores.shape[1], inside)
            waiting = None
        before.append((path, number, n_given))
    return plan


def _matrices(one: Watched, read_by: int, d_value: int, inside: list[tuple[int, int]]) -> list[_Matrices]:
    """The matrices of one attention by the width of what they give; empty where they could not be found."""
    n_heads, given = one.scores.shape[1], dict(inside)
    d_head = one.q.shape[-1] if one.q is not None and one.q.dim() == 4 else d_value
    queries, last = n_heads * d_head, inside[-1][0] if inside else -1
    if len(inside) == 1:  # queries, keys and values in one
        n_groups, makers = (given[last] - queries) / (d_head + d_value), [(last, [d_head, d_head, d_value])]
    elif len(inside) == 2:  # queries, then keys and values in one
        n_groups, makers = given[last] / (d_head + d_value), [(last, [d_head, d_value])]
    else:
        sizes = list(given.values())
        both = [n for n in range(1, n_heads + 1) if {n * d_head, n * d_value} <= set(sizes)]
        n_groups = next((n for n in both if sizes.count(n * d_head) + sizes.count(n * d_value) > 1), 0)
        widths = {n_groups * d_head: d_head, n_groups * d_value: d_value}
        if d_head == d_value and sizes.count(n_groups * d_head) < 2:
            return []
        makers = [(number, [widths[n]]) for number, n in inside if n in widths]
    if one.layer is None or n_heads == 1 or n_groups < 1 or n_groups != int(n_groups) or n_heads % n_groups:
        return []
    n_groups = int(n_groups)
    counts = {1: [n_groups], 2: [n_groups] * 2, 3: [n_heads, n_groups, n_groups]}
    blocks = [
        (number, [width for width, n in zip(widths, counts[len(widths)], strict=True) for _ in range(n)])
        for number, widths in makers
    ]
    return [_Matrices(one.path, one.layer, n_heads, n_groups, read_by, blocks)]


def _measured(subject: Subject, run: Run, plan: list[_Matrices]) -> list[tuple[_Matrices, list[set[int]]]]:
    """For each matrix, the query heads that each of its heads changes."""
    n_rows = 1 + max(sum(len(widths) for _, widths in one.makers) for one in plan)
    copied, batch = subject.shared(), stacked([run] * n_rows)
    with _Blocks(copied, n_rows, plan) as watching:
        copied.logits(batch)
    return [
        (one, watching.heads_of[one.read_by, maker])
        for one in plan
        for maker, _ in one.makers
        if (one.read_by, maker) in watching.heads_of
    ]


def _wrong_head(heads_of: list[set[int]], one: _Matrices, *, is_ours: bool) -> tuple[int, int] | None:
    """The first query head that reads the keys or values of another group, and that key/value head; None for none."""
    groups = [set(range(group * one.group, (group + 1) * one.group)) for group in range(one.n_groups)]
    if is_ours or len(heads_of) == one.n_groups:  # queries, if they are among them, come first
        expected = [{head} for head in range(one.n_heads)] if len(heads_of) > 2 * one.n_groups else []
        n_queries = len(expected)
        expected += groups * ((len(heads_of) - n_queries) // one.n_groups)
        wrong = [  # a head may be missing where its change is too small to see
            (min(found - wanted), (number - n_queries) % one.n_groups)
            for number, (found, wanted) in enumerate(zip(heads_of, expected, strict=True))
            if found - wanted
        ]
    else:  # in any order: heads alone are queries, the others whole groups
        mixed = [found for found in heads_of if len(found) > 1 and not any(found <= group for group in groups)]
        wrong = [(max(found), min(found) // one.group) for found in mixed]
    return min(wrong, default=None)
