"""The cause of a difference between two runs that should agree: of the cache, of padding, or of attention to the encoder.

    named(context, finding)         the finding with a cause and a line, if one is certain

Each cause is a mask, positions or keys that the code might have used in place of the right ones. It is named only if it
reproduces what was recorded; otherwise the finding has no cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from xformer.adapters.attention import for_each_head
from xformer.adapters.module_map import Layers
from xformer.doctor.check import CheckContext, Finding, stacked
from xformer.doctor.formulas import BREAKS_A_RULE, CAUSES_OF_FORMULAS, formulas
from xformer.doctor.formulas.flow import parting
from xformer.doctor.formulas.masks import APPLIED, maker
from xformer.doctor.formulas.numbers import TIMES
from xformer.doctor.localise import with_other_length
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Watched, read_layer, recorded
from xformer.program.attention import PARTS, FoundAttention
from xformer.program.record import Operation, Program, Recorder, SourceLine, Value

CLOSE = 1e-4
"""Largest difference between tensors that count as the same, relative to the largest entry."""
_ADDED = {"add", "mul", "multiply"}
"""The operations that bring positions into a model: a sum with embeddings, or a product with cos and sin."""
_JOINS = {"cat", "concat", "setitem", "index_copy", "roll", "scatter"}
"""The operations that put new keys into a cache."""
_COUNTS = {"arange", "cumsum", "add", "sub", "clamp"}
"""The operations that make positions."""


class Cause(NamedTuple):
    """What is wrong, a key of `CAUSES_OF_CHECKS`, in one sentence, and where."""

    cause: str
    sentence: str
    line: SourceLine | None
    layer: int | None = None


class _Recording(NamedTuple):
    program: Program
    attentions: list[tuple[FoundAttention, Watched]]


def named(context: CheckContext, finding: Finding) -> Finding:
    """Return a finding of a broken rule with its cause and line, if a cause reproduces what was recorded."""
    if finding.pair is None:
        return finding
    pair = with_other_length(finding.pair)
    if pair.second.with_attention or finding.check == "backends":
        return _as_read(pair.second_model or context.model, pair.second, finding)
    if pair.second.n_cached:
        found = cause_of_cache(context.model, pair.second)
    elif pair.second.valid is not None:
        found = cause_of_padding(context.model, pair.first, pair.second, pair.row_second)
    elif pair.second.target is not None:
        found = next(decoder_read_as_encoder(context.model), None)
    else:
        return finding
    if found is None:
        return finding
    return with_cause(replace(finding, sentence=f"{finding.sentence} {found.sentence}"), found)


def _as_read(model: TokenModel, run: ModelCall, finding: Finding) -> Finding:
    """Return a finding with the fault that is read from the code of the second path."""
    read = next((one for one in formulas(model, run) if one.cause in BREAKS_A_RULE and one.layer is not None), None)
    if read is None:
        return finding
    sentence = f"{finding.sentence} On that path {CAUSES_OF_FORMULAS[read.cause]} ({read.line})."
    return replace(finding, cause=read.cause, line=read.line, sentence=sentence, remedy=_with_text(finding, read.text))


def with_cause(finding: Finding, found: Cause) -> Finding:
    """Return a finding whose sentence ends with the cause, with its line."""
    line, text = ("", "") if found.line is None else (str(found.line), found.line.text)
    sentence = f"{finding.sentence[:-1]}{f' ({line})' if line else ''}."
    return replace(finding, cause=found.cause, line=line, sentence=sentence, remedy=_with_text(finding, text))


def _with_text(finding: Finding, text: str) -> str:
    return f"{finding.remedy} The line reads `{text}`." if text else finding.remedy


@torch.no_grad()
def _recorded(model: TokenModel, run: ModelCall) -> _Recording:
    """The program of the last call of a run, with the tensors of its attentions and of what is added and multiplied."""
    _, last = recorded(model, run, partial(Recorder, keep_of={*PARTS, *_ADDED}, with_callers=True))
    layers = Layers(model.module, [heads[0].first.address.module for heads in last.attentions])
    seen = ((heads[0], read_layer(heads)) for heads in last.attentions)
    found = [(one, replace(read, layer=layers.of(one.first.running))) for one, read in seen if read is not None]
    return _Recording(last.program, found)


def _longer(model: TokenModel, run: ModelCall, n: int) -> ModelCall:
    """The run with other tokens behind it, up to `n`, as far as the model reads."""
    n = min(n, model.max_len)
    rest = model.other_tokens(run.read.repeat(1, 2 + n // run.read.shape[1]))[:, : max(0, n - run.read.shape[1])]
    return replace(run.with_read(torch.cat([run.read, rest], dim=1)), valid=None, positions=None)


# The cache


def cause_of_cache(model: TokenModel, run: ModelCall) -> Cause | None:
    """What is wrong in the second call of a run, which reads the tokens after the cached ones."""
    n, n_cached = run.read.shape[1], run.n_cached
    whole = _recorded(model, _longer(model, replace(run, n_cached=0), 2 * n + 2))
    cached = _recorded(model, run)
    for (found, one), (_, other) in zip(cached.attentions, whole.attentions, strict=False):
        n_key, n_needed = one.pattern.shape[-1], int(other.allowed[..., n - 1, :n].any(dim=(0, 1)).sum())
        if one.pattern.shape[2] == n - n_cached and n_key < n_needed:
            words = f"The last token reads {n_key} keys, and without a cache {n_needed}."
            return Cause("cache_not_updated", words, _reading(found, "k"), one.layer)
    if (found := _moved(whole, cached, slice(None), n_cached)) is not None:
        start, line = found
        sentence = f"With {n_cached} cached tokens, the positions of the new ones start at {start}, not at {n_cached}."
        return Cause("cache_offset", sentence, line)
    for (found_one, one), (found_other, other) in zip(cached.attentions, whole.attentions, strict=False):
        if one.pattern.shape[1] != other.pattern.shape[1] or one.pattern.shape[2] != n - n_cached:
            continue
        if (cause := _of_cached_attention(found_one, one, found_other, other, n, n_cached)) is not None:
            return cause._replace(layer=one.layer)
    return None


def _of_cached_attention(
    found: FoundAttention, one: Watched, without: FoundAttention, whole: Watched, n: int, n_cached: int
) -> Cause | None:
    """What is wrong in one attention with a cache: its keys, its values or its mask."""
    n_key = one.pattern.shape[-1]
    is_needed = whole.allowed[0].any(dim=0)[n_cached:n, :n].cpu()  # [query, key]
    columns = list(range(n_key)) if n_key == n else None
    for name, what in (("k", "keys"), ("v", "values")):
        mine, theirs = getattr(one, name), getattr(whole, name)
        if mine is None or theirs is None or mine.shape[1] != theirs.shape[1]:
            continue
        of = _matches(mine[0], theirs[0][:, :n])
        swapped = whole.v if name == "k" else whole.k
        if None in of and swapped is not None and swapped.shape == theirs.shape:
            as_other = _matches(mine[0], swapped[0][:, :n])
            if as_other[:n_cached] == list(range(n_cached)):
                other = "values" if name == "k" else "keys"
                return Cause("cache_keys_values_swapped", f"The {what} of the cached tokens are their {other}.", None)
        missing = [key for key in range(n) if key not in of and bool(is_needed[:, key].any())]
        is_new_read = set(range(n_cached, n)) <= set(of)
        if is_new_read and not set(of) & set(range(n_cached)):
            return Cause("cache_not_updated", f"The {what} of the cached tokens are not read.", _reading(found, name))
        if missing and None not in of and missing == list(range(missing[0], missing[-1] + 1)) and is_new_read:
            words = f"The {what} of token {missing[0]} left the cache, and the window still covers it."
            return Cause("cache_evicted_early", words, _join(found, name))
        if None not in of and not missing:
            if of == [*range(n_cached, n), *range(n_cached)]:
                words = f"The {what} of the cached tokens come after the new ones."
                return Cause("cache_in_wrong_order", words, _join(found, name))
            columns = [key for key in of if key is not None] if name == "k" else columns
    if columns is None:
        return None
    allowed = torch.zeros_like(is_needed)
    allowed[:, columns] = one.allowed[0].any(dim=0).cpu()
    if torch.equal(allowed, is_needed) or len(set(columns)) < len(columns):
        return None
    if allowed.all():
        words = "With a cache, every new token attends to all others."
        by = maker(found, "cache_not_masked")
        by = maker(without, "mask_not_applied") if by is found.first else by
        return Cause("cache_not_masked", words, by.line)
    back = torch.arange(n) - torch.arange(n - n_cached)[:, None]
    for ahead in range(n):
        if ahead != n_cached and torch.equal(allowed, back <= ahead):
            words = f"New token i attends to keys ≤ i{f' + {ahead}' if ahead else ''}, not to keys ≤ i + {n_cached}."
            return Cause("cache_mask_misaligned", words, maker(found, "cache_mask_misaligned").line)
    words = "With a cache, new tokens attend to other keys than without."
    return Cause("cache_mask_misaligned", words, maker(found, "cache_mask_misaligned").line)


def _matches(mine: Float[Tensor, "head key width"], theirs: Float[Tensor, "head pos width"]) -> list[int | None]:
    """For each key, the position with the same key; None for a key that no position has."""
    one, other = (x.transpose(0, 1).flatten(1).double() for x in (mine, theirs))
    apart = (one[:, None] - other).abs().amax(dim=-1)  # [key, pos]
    limit = CLOSE * float(other.abs().max())
    return [int(row.argmin()) if float(row.min()) <= limit else None for row in apart]


def _reading(found: FoundAttention, name: str) -> SourceLine | None:
    """The line of `_join`; None where keys or values are joined to given ones, as what is wrong is then what was kept."""
    join = _joining(found, name)
    is_given = join is not None and any(one.operation is None and one.is_from_inputs for one in join.inputs)
    return None if is_given else _join(found, name)


def _join(found: FoundAttention, name: str) -> SourceLine | None:
    """The line that puts the keys ("k") or values ("v") into the cache, or else the line that reads them."""
    return (_joining(found, name) or found.first).line


def _joining(found: FoundAttention, name: str) -> Operation | None:
    """The operation that puts the keys ("k") or values ("v") into the cache; None if there is none."""
    operand, at = found.operands.get(name), "kv".index(name) + 1
    value = operand.value if operand is not None else found.first.inputs[at if found.kernel is not None else 1]
    for _ in range(12):
        if value.operation is None:
            break
        if value.operation.name in _JOINS:
            return value.operation
        if not value.operation.inputs:
            break
        value = value.operation.inputs[0]
    return None


# Positions


def _moved(whole: _Recording, other: _Recording, rows: slice, expected: int) -> tuple[int, SourceLine | None] | None:
    """The position at which positions start in another run in place of `expected`; None if they are right or unknown.

    Args:
        whole: A run without padding and without a cache, long enough for all positions.
        other: The other run.
        rows: Its positions that are compared.
        expected: The position in the whole run of the first of them.
    """
    known: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for operation, _, table in _tables(whole):
        known[operation.address.module, operation.name].append(table)
    for operation, value, part in _tables(other):
        tables = known[operation.address.module, operation.name]
        starts = {at for table in tables for at in _starts(table, part[rows])}
        if starts and expected not in starts:
            return min(starts), _line_of_positions(value, len(part)) or operation.line
    return None


def _tables(recording: _Recording) -> Iterator[tuple[Operation, Value, Tensor]]:
    """The operands that may hold a row for each position, [pos, width]; none that an attention computed."""
    mixed = {found.z for found, _ in recording.attentions}
    for operation in recording.program.operations if mixed else ():
        if not mixed.isdisjoint(operation.inputs):
            mixed.update(operation.results)
        if operation.name in _ADDED:
            for value in operation.inputs:
                table = value.tensor
                if value in mixed or table is None or not (table.is_floating_point() or table.is_complex()):
                    continue
                if table.dim() >= 2 and table.shape[-1] > 1 and table.shape[:-1].numel() == max(table.shape[:-1]):
                    yield operation, value, table.reshape(-1, table.shape[-1])


def _starts(table: Tensor, part: Tensor) -> list[int]:
    """The rows of a table at which a part of it starts."""
    n, m = len(table), len(part)
    if m == 0 or m > n or table.shape[1] != part.shape[1] or torch.equal(table[:1].expand_as(table), table):
        return []
    limit = CLOSE * float(table.abs().max())
    return [at for at in range(n - m + 1) if float((table[at : at + m] - part).abs().max()) <= limit]


def _line_of_positions(value: Value, n: int) -> SourceLine | None:
    """The line that counts `n` positions, or cuts them from a table."""
    cut: Operation | None = None
    todo = [value]
    for _ in range(40):
        if not todo or (operation := todo.pop(0).operation) is None:
            continue
        if operation.name in _COUNTS and operation.result.shape.numel() == n:
            return operation.line
        is_cut = operation.name in ("getitem", "narrow", "embedding") and cut is None
        if is_cut and any(one.shape.numel() > operation.result.shape.numel() for one in operation.inputs):
            cut = operation
        todo += operation.inputs
    return None if cut is None else cut.line


# Padding


def cause_of_padding(model: TokenModel, plain: ModelCall, padded: ModelCall, row: int) -> Cause | None:
    """What is wrong in a run with padding: the mask of one of its attentions, or its positions."""
    assert padded.valid is not None
    if len(padded.valid) == 1:  # heads that are flattened into a batch of one could not be distinguished from it
        padded = stacked([padded, padded])
    valid = padded.valid
    assert valid is not None
    recording, n = _recorded(model, padded), padded.tokens.shape[1]
    right = set[SourceLine | None]()  # the lines of attentions whose mask is right
    for found, one in recording.attentions:
        if found.is_masked_later and float((one.pattern.double().sum(dim=-1) - 1).abs().max()) > 0.01:
            words = "The mask is applied after the softmax, so that rows do not sum to 1."
            return Cause(
                "mask_after_softmax", words, found.pattern.operation and found.pattern.operation.line, one.layer
            )
        n_query, n_key = one.allowed.shape[-2:]
        if n_key == n:
            is_causal = model.causal and padded.target is None
            seen = torch.ones(n_query, n).bool()
            queries = valid if n_query == n else valid.new_ones(len(valid), n_query)
            seen = seen.tril() if is_causal else seen
            cause = _of_padding_mask(one.allowed.cpu(), seen, valid.cpu(), queries.cpu())
            if cause is not None:
                hidden = (seen & ~valid[:, None, None].cpu()).expand_as(one.scores)
                number = _number_at(one, hidden) if cause[0] == "padding_not_masked" else None
                products = (
                    [one for one in found.chain if one.name in TIMES and len(one.inputs) > 1] if number == 0 else []
                )
                if products:
                    cause = "mask_multiplied", "The scores of padded keys are 0, not −∞."
                elif number is not None:
                    cause = "mask_too_small", f"The number at padded keys is {number:.3g}, too small to hide them."
                by = products[-1] if products else maker(found, cause[0], number or 0.0)
                is_right_elsewhere = by in found.chain and by.line in right
                return Cause(*cause, None if is_right_elsewhere else by.line, one.layer)
            right.update(one.line for one in found.chain if one.name in APPLIED)
    first, n_plain = int(valid[row].long().argmax()), plain.read.shape[1]
    if not first or padded.target is not None:
        return None
    whole = _recorded(model, _longer(model, plain, n))
    found = _moved(whole, recording, slice(first, first + n_plain), 0)
    if found is None or found[0] != first:
        return None
    return Cause("positions_from_padding", f"After {first} pads, the first token has position {first}.", found[1])


def _of_padding_mask(
    allowed: Bool[Tensor, "batch head query key"],
    seen: Bool[Tensor, "query key"],
    valid: Bool[Tensor, "batch key"],
    valid_queries: Bool[Tensor, "batch query"],
) -> tuple[str, str] | None:
    """The cause of a mask that is not the right one, and its sentence; None for a right mask or an unknown one."""
    n_rows, n_heads = len(valid), allowed.shape[1]
    allowed = allowed.expand(n_rows, -1, -1, -1)
    keys, queries = valid[:, None, None, :], valid_queries[:, None, :, None]
    if torch.equal(allowed & queries, (seen & keys & queries).expand_as(allowed)):
        return None
    if not (allowed & queries).any():
        return "padding_inverted", "The mask hides every key."
    if torch.equal(allowed & queries, (keys & queries).expand_as(allowed)):
        return "mask_not_applied", "With padding, no causal mask hides later tokens."
    open_to = (allowed != (seen & keys)).any(dim=-1, keepdim=True) & queries  # where the mask is not the right one
    order = torch.arange(n_rows * n_heads).view(n_rows, n_heads) % n_rows  # of mask.repeat(n_heads, 1, 1)
    for cause, words, mask in (
        (
            "padding_on_queries",
            "The mask hides the rows of padded queries, not the columns of padded keys.",
            seen & queries,
        ),
        ("padding_inverted", "The mask hides the tokens and shows the padding.", seen & ~keys),
        (
            "padding_in_head_order",
            "A head uses the mask of another row: the mask is repeated in the order [head, batch].",
            seen & valid[order][:, :, None, :],
        ),
    ):
        mask = mask.expand_as(allowed)
        if torch.equal(allowed, mask) and not torch.equal(mask, seen.expand_as(mask)):
            return cause, words
    if torch.equal(allowed & open_to, seen & open_to):
        where = "" if torch.equal(open_to, queries.expand_as(open_to)) else " from some of the queries"
        return "padding_not_masked", f"The mask hides no padded key{where}."
    return None


def _number_at(one: Watched, hidden: Bool[Tensor, "batch head query key"]) -> float | None:
    """The number that a mask puts at some scores, or adds to them; None if it does not."""
    scores = one.scores.cpu().double()
    if float(scores[hidden].std()) == 0:
        return float(scores[hidden][0])
    if one.q is None or one.k is None:
        return None
    product = (one.q @ for_each_head(one.k, one.q.shape[1]).transpose(-2, -1)).cpu().double()
    shown, hidden = (cells & one.allowed.cpu() for cells in (~hidden, hidden))
    factor = (product[shown] * scores[shown]).sum() / product[shown].square().sum()
    rest, limit = scores - factor * product, CLOSE * float(scores[shown].abs().max())
    added = float(rest[hidden].max())
    return added if added < -limit and float(rest[shown].abs().max()) <= limit else None


# Attention to the encoder


def decoder_read_as_encoder(model: TokenModel) -> Iterator[Cause]:
    """Each layer of a decoder with two attentions to its own stream and none to the encoder's."""
    run = model.base
    assert run.target is not None
    n = run.target.shape[1]
    if run.tokens.shape[1] == n:  # other lengths tell the streams apart
        run = replace(run, tokens=torch.cat([run.tokens, run.tokens[:, :1]], dim=1))
    by_layer: dict[int | None, list[tuple[FoundAttention, Watched]]] = defaultdict(list)
    for found, one in _recorded(model, run).attentions:
        if one.pattern.shape[-2] == n:
            by_layer[one.layer].append((found, one))
    for layer, every in by_layer.items():
        if layer is not None and len(every) > 1 and all(one.pattern.shape[-1] == n for _, one in every):
            words = "The keys of its second attention come from the decoder's own stream, not from the encoder."
            one, other = (_projection(found) or found.first for found, _ in (every[-1], every[0]))
            yield Cause("cross_attention_from_decoder", words, parting(one, other), layer)


def _projection(found: FoundAttention) -> Operation | None:
    """The projection that makes the keys."""
    todo = [found.operands["k"].value] if "k" in found.operands else []
    for _ in range(20):
        if not todo or (operation := todo.pop(0).operation) is None:
            return None
        if operation.name in ("linear", "addmm", "matmul") and any(one.is_weight for one in operation.inputs):
            return operation
        todo += operation.inputs[:1]
    return None
