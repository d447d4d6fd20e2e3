"""Checks that outputs do not depend on later tokens, padding, other rows of the batch, the cache, or other documents."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import torch
import torch.nn.functional as F

from xformer.doctor.arguments import ARGUMENTS
from xformer.doctor.causes import decoder_read_as_encoder, with_cause
from xformer.doctor.check import (
    CheckContext,
    Finding,
    NotApplicableError,
    Pair,
    assume,
    broken,
    by,
    check,
    count,
    stacked,
)
from xformer.doctor.formulas.masks import PREFIX
from xformer.doctor.localise import first_not_finite, localise
from xformer.doctor.model_call import ModelCall
from xformer.doctor.watch import watch
from xformer.errors import UnavailableError
from xformer.model import Transformer

N_CHANGED = 6
"""Number of positions, spread over the input, at which the token is changed."""
LONGEST = 32
"""Number of tokens of the input that are used."""
FULL = "The input fills the context length, so there is no room for"
REMEDY = (
    "Check how the mask is built and whether it reaches the scores: it must be −∞ above the diagonal (torch.triu with "
    "diagonal=1), added before the softmax, and applied on every path."
)


def later_tokens(context: CheckContext, base: ModelCall) -> list[Pair]:
    """Return pairs of a run and the same run with one token changed; outputs before that token should agree."""
    tokens = base.read[:, :LONGEST]
    base, n = base.with_read(tokens), tokens.shape[1]
    other = context.model.other_tokens(tokens)
    at = sorted({1 + round(i * (n - 2) / max(1, min(N_CHANGED, n - 1) - 1)) for i in range(min(N_CHANGED, n - 1))})
    pairs = []
    for position in at:
        changed = tokens.clone()
        changed[:, position] = other[:, position]
        title = f"token {position} changed from {int(tokens[0, position])} to {int(other[0, position])}"
        pairs.append(Pair(base, base.with_read(changed), range(position), title=title))
    return pairs


def _assume_causal(context: CheckContext) -> None:
    model = context.model
    assume(model.causal or not model.mask_left_out, NOT_CAUSAL_HERE.format(name=model.mask_left_out))
    assume(model.causal, "The model is not causal: every token may attend to every other.")
    assume(model.base.read.shape[1] >= 2, "The input has only one token; give at least two.")
    assume(model.has_output_by_position, "The model has a single output for the whole input.")


@check("causality", "changing a later token changes no earlier output")
def causality(context: CheckContext) -> Finding:
    """Compare the outputs before a changed token."""
    model = context.model
    if model.base.target is not None and not (model.causal or model.is_causal_given or model.mask_left_out):
        return Finding("unusual", OPEN_DECODER, f"If it is meant to generate token by token: {PASS_TARGET_MASK}.")
    _assume_causal(context)
    pairs = later_tokens(context, model.base)
    holds = f"Changing a later token changes no earlier output ({len(pairs)} positions)."
    broken = "With {title}, earlier outputs change {by}: the model sees the future."
    remedy = (
        f"Pass the argument {model.mask_left_out}, which the call leaves out. {REMEDY}"
        if model.mask_left_out
        else REMEDY
    )
    found = context.compare(pairs, holds, broken, remedy)
    is_meant = model.is_causal_given or (context.spec and isinstance(context.spec, str))  # causal without a prefix
    n = _prefix(context) if found.verdict == "broken" and not is_meant else 0
    if n and all(context.apart(pair) <= context.limit for pair in pairs if len(pair.at) >= n):
        sentence = f"The first {n} tokens see each other, as in a prefix language model; the others see no later one."
        return Finding(
            "unusual", sentence, f"If this is not meant: {remedy[0].lower()}{remedy[1:]}", found.size, found.floor
        )
    return found


def _prefix(context: CheckContext) -> int:
    """The number of tokens that every query sees, if that is the mask of all attentions; 0 if it is not."""
    masks = {one.formula for one in context.formulas if one.part == "mask"}
    sizes = [one.removeprefix(PREFIX) for one in masks]
    return int(sizes[0]) if len(sizes) == 1 and sizes[0].isdigit() else 0


@check("causality_with_attention", "causality also holds, with the same outputs, when attention weights are returned")
def causality_with_attention(context: CheckContext) -> Finding:
    """ModelCall `causality` on the path that returns attention weights."""
    _assume_causal(context)
    model = context.model
    assume(model.can("attention"), "The model cannot return its attention weights.")
    base = replace(model.base, with_attention=True)
    holds = "When attention weights are returned, changing a later token changes no earlier output."
    broken = "With {title} and attention returned, earlier outputs change {by}: that path ignores the mask."
    remedy = "Check the branch that returns attention weights: it must apply the same mask as the other branch."
    found = context.compare(later_tokens(context, base), holds, broken, remedy)
    if found.verdict == "holds":
        short = model.base.with_read(model.base.read[:, :LONGEST])  # the model returns all of its patterns
        at = range(short.read.shape[1])
        same = [Pair(short, replace(short, with_attention=True), at, title="requesting attention weights")]
        broken = "Requesting attention weights changes the outputs {by}."
        remedy = "Check the branch that returns attention weights: it must give the same outputs as the other branch."
        found = context.compare(same, holds, broken, remedy)
    if found.verdict == "broken" and causality(context).verdict == "broken":
        raise NotApplicableError("The model sees the future on every path; see causality.")
    return found


OPEN_DECODER = "The decoder is not causal: a token of the target may attend to later ones."
PASS_TARGET_MASK = "pass a causal mask for the target, as the argument tgt_mask of nn.Transformer"
NOT_CAUSAL_HERE = (
    "Without the argument {name}, every token may attend to every other: if the model is meant to be causal, its caller "
    "passes a mask. Pass one, as in diagnose(model, {{…, '{name}': mask}}), to check it."
)
PADDED_TOKENS = 6
"""Number of tokens of the padded input; few, because many padding lengths are tried."""
MAX_PADS = 40
"""Largest number of padding tokens on the left."""
MASK_REMEDY = (
    "Check how the padding mask is built and combined with the causal mask: the scores of padded keys must be −∞ in every "
    "layer and head, at every length."
)


def _pads(n: int, side: str) -> str:
    return f"{count(n, 'pad')} on the {side}"


PADDING_BROKEN = "With {title}, the outputs at the real tokens change {by}."


def _padded(
    context: CheckContext, run: ModelCall, n: int, *, left: bool, content: int | None = None, with_positions: bool
) -> ModelCall:
    """Return a run with `n` tokens of padding, and if asked, with positions that count from the first real token."""
    sides = (n, 0) if left else (0, n)
    content = context.model.pad if content is None else content
    valid = F.pad(torch.ones_like(run.tokens), sides).bool()
    positions = (valid.long().cumsum(dim=1) - 1).clamp(min=0) if with_positions else None
    return replace(run, tokens=F.pad(run.tokens, sides, value=content), valid=valid, positions=positions)


def _short(context: CheckContext, n: int = PADDED_TOKENS) -> ModelCall:
    """Return a run over the first tokens of the input, fewer than the model can read, so that there is room for padding."""
    model = context.model
    n = max(1, min(n, model.max_len - 3))
    tokens = model.base.tokens[:, :n]
    if model.pad_in_code is not None:
        tokens = torch.where(tokens == model.pad_in_code, model.other_tokens(tokens), tokens)
    return replace(model.base, tokens=tokens)


def _assume_padding(context: CheckContext) -> None:
    model = context.model
    if model.can("valid"):
        return
    unknown = model.unknown_arguments
    if named := [name for name in unknown if "pad" in name.lower()]:
        what = f"The meaning of the argument {named[0]} is not known"
        raise UnavailableError(f"{what}; a padding mask is recognised as {', '.join(ARGUMENTS['valid'])}.")
    rest = f" None of its other arguments ({', '.join(unknown)}) is recognised as one." if unknown else ""
    raise NotApplicableError(f"The model takes no padding mask.{rest}")


def _pair(context: CheckContext, base: ModelCall, padded: ModelCall, n_before: int, title: str) -> Pair:
    """Pair a run with a padded one; outputs at the real tokens should agree (or the target's, or the only one)."""
    n = base.read.shape[1]
    if not context.model.has_output_by_position:
        return Pair(base, padded, [0], title=title)
    if base.target is not None:
        return Pair(base, padded, range(n), title=title)
    return Pair(base, padded, range(n), range(n_before, n_before + n), title=title)


@check("left_padding", "padding on the left changes no output, at any length")
def left_padding(context: CheckContext) -> Finding:
    """Try every length from 0 to 40: some bugs appear only at a few (alignment to 8, 16 or 32)."""
    _assume_padding(context)
    model, base = context.model, _short(context)
    room = min(MAX_PADS, model.max_len - base.tokens.shape[1])

    cache: dict[int, torch.Tensor] = {}
    agrees: set[str] = set()  # the lengths that change nothing

    def compare(*, with_positions: bool) -> Finding:
        pairs = [
            _pair(
                context, base, _padded(context, base, n, left=True, with_positions=with_positions), n, _pads(n, "left")
            )
            for n in range(max(0, room) + 1)
        ]
        holds = f"Padding on the left changes no output ({len(pairs)} lengths)."
        sizes = [context.apart(pair, cache) for pair in pairs]
        agrees.update(pair.title for pair, size in zip(pairs[1:], sizes[1:], strict=True) if size <= context.limit)
        return context.finding(pairs, sizes, holds, PADDING_BROKEN, remedy)

    remedy = f"{MASK_REMEDY} Positions must count from the first real token."
    found = compare(with_positions=False)  # as a caller would
    if found.verdict == "holds" or isinstance(model.module, Transformer):
        return found
    if agrees and not model.can("positions"):  # so positions do not count the padding
        return found
    if base.target is not None or not model.can("positions"):
        place = None if found.pair is None else localise(context, found.pair)
        is_mask = place is not None and place.cause == "mask"
        assume(is_mask, "The model takes no positions, so padding on the left shifts its tokens.")
        return replace(found, place=place)
    given = compare(with_positions=True)
    if given.verdict == "broken":
        return given
    name = model.takes["positions"]
    if model.is_transformers:  # generate() passes positions that count from the first real token
        without = f"Without {name}, padding on the left changes the outputs {by(found.size or 0.0)}: positions count it"
        assume(model.causal, f"{without}. Pad on the right, or pass {name}.")
        return replace(given, sentence=f"{given.sentence} {without}; generate() passes {name}.")
    sentence = f"{found.sentence} Positions count the padding, unless {name} is given."
    return replace(found, sentence=sentence, remedy="Count positions from the first real token, by default as well.")


def with_padding(context: CheckContext, *, left: bool) -> ModelCall | None:
    """A run with three tokens of padding; None if there is no room for them."""
    base = _short(context)
    has_room = base.tokens.shape[1] + 3 <= context.model.max_len
    return _padded(context, base, 3, left=left, with_positions=False) if has_room else None


@check("right_padding", "padding on the right changes no output, whatever token it contains")
def right_padding(context: CheckContext) -> Finding:
    """Try several lengths, filled with the padding token and with another token."""
    _assume_padding(context)
    base, model = _short(context), context.model
    room = model.max_len - base.tokens.shape[1]
    other = int(model.other_tokens(base.tokens)[0, 0])
    has_mask = model.has_output_by_position and model.pad_in_code is None
    contents = [model.pad, other] if has_mask else [model.pad if model.pad_in_code is None else model.pad_in_code]
    pairs = [
        _pair(
            context,
            base,
            _padded(context, base, n, left=False, content=content, with_positions=False),
            0,
            f"{count(n, 'pad')} ({content}) on the right",
        )
        for n in (1, 3, 7)
        if n <= room
        for content in contents
    ]
    assume(pairs, f"{FULL} padding.")
    holds = "Padding on the right changes no output" + (", whatever token it contains." if has_mask else ".")
    return context.compare(pairs, holds, PADDING_BROKEN, MASK_REMEDY)


@check("cross_attention", "each layer of a decoder that reads an encoder attends to it")
def cross_attention(context: CheckContext) -> Finding:
    """Look for layers whose attentions all have the keys of the decoder."""
    assume(context.model.base.target is not None, "The model has no encoder.")
    found = next(decoder_read_as_encoder(context.model), None)
    if found is None:
        return Finding("holds", "No layer of the decoder reads its own stream in place of the encoder's.")
    remedy = "Take the keys and values from the encoder's output, and the queries from the decoder."
    finding = broken(found.sentence, remedy, layer=found.layer, cause="k")
    return with_cause(finding, found)


@check("batch", "an input gives the same output alone and in a batch of unequal lengths")
def batch(context: CheckContext) -> Finding:
    """Compare the input alone with a batch of it, a longer and a shorter one; of equal lengths if the model takes no mask."""
    model = context.model
    can_pad = model.can("valid") and model.has_output_by_position
    base = _short(context, 12) if can_pad else model.base.with_read(model.base.read[:, :12])
    base = model.base if model.reads_images else base
    n = base.tokens.shape[1]
    other = model.other_tokens(base.tokens, seed=1)
    longer = min(3, model.max_len - n) if can_pad else 0
    rows = [base.tokens, torch.cat([other, other[:, :longer]], dim=1), other[:, : max(1, n - 2)] if can_pad else other]
    width = n + longer
    tokens = torch.cat([F.pad(row, (0, width - row.shape[1]), value=model.pad) for row in rows])
    valid = torch.cat([F.pad(torch.ones_like(row), (0, width - row.shape[1])) for row in rows]).bool()
    target = None if base.target is None else base.target.expand(3, -1)
    positions = None if base.positions is None else torch.arange(width).expand(3, -1)
    whole = ModelCall(tokens, valid if can_pad else None, positions, target=target)
    pairs = []
    for number, row in enumerate(rows):
        one = replace(base, tokens=row, positions=None if positions is None else positions[:1, : row.shape[1]])
        pair = _pair(context, one, whole, 0, f"row {number}")
        pairs.append(replace(pair, row_second=number))
    return context.compare(
        pairs,
        "An input gives the same output alone and in a batch of 3" + (" of unequal lengths." if can_pad else "."),
        "In a batch of 3, the outputs of {title} change {by}.",
        "Look for operations that mix rows: statistics over the batch (BatchNorm), a reshape that confuses the batch with "
        "another axis, nn.MultiheadAttention without batch_first=True, or a mask built only from the first row.",
    )


@check("masked_row", "a query without any permitted key gives finite outputs")
def masked_row(context: CheckContext) -> Finding:
    """Try padding on the left of a causal model, or a row that is all padding."""
    _assume_padding(context)
    base, model = _short(context), context.model
    assume(model.pad_in_code is None, "The model takes no padding mask: it finds padding in its tokens.")
    assume(base.tokens.shape[1] + 3 <= model.max_len, f"{FULL} padding.")
    run, what = _padded(context, base, 3, left=True, with_positions=False), "padding on the left"
    if not model.causal or base.target is not None:
        assume(model.has_output_by_position, "The model has a single output for the whole input.")
        full = _padded(context, base, 3, left=False, with_positions=False)
        run = stacked([full, replace(full, valid=torch.zeros_like(full.tokens).bool())])
        what = "a row that is all padding"
    logits = model.logits(run)
    if bool(logits.isfinite().all()):
        return Finding("holds", "Queries without any permitted key give finite outputs.")
    n = int((~logits.isfinite()).any(dim=-1).sum())
    sentence = f"When all keys of a query are masked ({what}), outputs at {count(n, 'position')} are not finite."
    remedy = (
        "Look at the softmax of fully masked rows: −∞ everywhere gives NaN, which spreads to the next layer and to all "
        "gradients. Mask with a large finite number, or set such rows to 0."
    )
    return Finding("broken", sentence, remedy, float("inf"), context.floor, place=first_not_finite(model, run))


N_TOKENS = 10
FIRST_SEGMENT = 5
"""Number of tokens of the first document in a packed row."""


@check("cache", "decoding with a key/value cache gives the outputs of the full run, wherever the input is split")
def cache(context: CheckContext) -> Finding:
    """Try every split: cache the first part, and read the rest in one call; then read one token at a time."""
    model = context.model
    assume(model.causal, "The model is not causal, so it has no cache.")
    assume(model.can("past"), "The model takes no cache.")
    can_cache_keys = not isinstance(model.module, Transformer) or model.module.config.position_kind.can_cache_keys
    assume(can_cache_keys, "Its positions change with the length of the text, so earlier keys cannot be cached.")
    base = model.base.with_read(model.base.read[:, :N_TOKENS])
    n = base.read.shape[1]
    assume(n >= 2, "The input has only one token; give at least two.")
    pairs = [
        Pair(base, replace(base, n_cached=split), range(split, n), title=f"a cache of {count(split, 'token')}")
        for split in range(1, n)
    ]
    one_by_one = replace(base, n_cached=n - 1, cached_by=1)
    pairs.append(Pair(base, one_by_one, range(1, n), title="a cache that grows by one token at a time"))
    return context.compare(
        pairs,
        f"Decoding with a cache gives the outputs of the full run ({n - 1} splits, and one token at a time).",
        "With {title}, the outputs of the remaining tokens change {by}.",
        "Check the positions of the new tokens (they start at the length of the cache), the causal mask for several new "
        "tokens, and how keys and values are appended.",
    )


@check("packing", "documents packed in one row do not attend to each other")
def packing(context: CheckContext) -> Finding:
    """Compare a document alone with the same document packed after another one."""
    model = context.model
    is_one_stream = model.base.target is None and model.has_output_by_position
    assume(model.causal and is_one_stream, "Packing is for causal models with one stack.")
    assume(model.can("segments") or _reads_packed_positions(context), "The model takes no segment ids.")
    tokens = model.base.tokens[:, : min(N_TOKENS, model.max_len - FIRST_SEGMENT)]
    before = model.other_tokens(tokens)[:, :FIRST_SEGMENT]
    n_before, n = before.shape[1], tokens.shape[1]
    assume(n and n_before + n <= model.max_len, f"{FULL} a second document.")
    segments = torch.tensor([[1] * n_before + [2] * n])
    positions = torch.tensor([[*range(n_before), *range(n)]]) if model.can("positions") else None
    packed = ModelCall(
        torch.cat([before, tokens], dim=1), positions=positions, segments=segments if model.can("segments") else None
    )
    is_masked = packed.segments is not None or _blocks(context, packed, n_before)
    assume(is_masked, "The model builds no mask from positions that restart.")
    pairs = [
        Pair(ModelCall(tokens), packed, range(n), range(n_before, n_before + n), title="another document before it")
    ]
    leak = "With {title} in the row, outputs change {by}: documents attend to each other."
    finding = context.compare(
        pairs,
        "A document gives the same output alone and packed after another one.",
        leak,
        "Check how the mask is built from the segments (or from positions that restart): it must be block-diagonal, and "
        "positions must start at 0 in each document.",
    )
    usual = _with_cache(context)
    if finding.verdict == "holds" and packed.segments is None and not _blocks(usual, packed, n_before):
        found = usual.compare(pairs, "", leak, "").sentence
        assume(
            not found,
            f"The model builds a mask from positions that restart only if it is given use_cache=False. {found}",
        )
    return finding


def _with_cache(context: CheckContext) -> CheckContext:
    """Return the context of calls as users make them: with the cache that the configuration asks for."""
    model = context.model
    name = model.takes.get("keep")
    if name is None or not getattr(model.config, "use_cache", False):
        return context
    return replace(context, model=replace(model, extra={name: True, **model.extra}))


def _blocks(context: CheckContext, packed: ModelCall, n_before: int) -> bool:
    """Return whether some layer masks the first document for the second."""
    n = packed.read.shape[1]
    seen = [one for one in watch(context.model, packed) if one.scores.shape[-2:] == (n, n)]
    return any(float(one.pattern[:, :, n_before:, :n_before].abs().max()) == 0 for one in seen)


def _reads_packed_positions(context: CheckContext) -> bool:
    """Return whether a Transformers model detects documents by restarting positions, as the library's shared masks do."""
    model = context.model
    if not model.is_transformers or not model.can("positions"):
        return False
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    family = import_module(type(model.module).__module__)
    return hasattr(family, "create_causal_mask") and kinds <= {"full_attention", "sliding_attention"}
