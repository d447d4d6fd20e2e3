"""Checks of positions: relative encodings, rotary embeddings, sliding windows, and precision at far positions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from xformer.adapters.attention import for_each_head
from xformer.doctor.check import (
    CheckContext,
    Finding,
    NotApplicableError,
    Pair,
    assume,
    broken,
    by,
    check,
    distance,
    share,
    stacked,
)
from xformer.doctor.checks.attention import finding_at, loose, worst_cell
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Watched, watch, watch_outputs
from xformer.formatting import error_message
from xformer.model import Transformer

N_TOKENS = 12
SHIFTS = (1, 5, 32)
LONGEST, FARTHEST, WIDEST = 512, 4096, 256
SHORT = 5
"""The window given to a copy of a model whose own window is too wide to check."""
WINDOWS = ("sliding_window", "window_size", "window")
PAIRING = (
    "Check which dimensions share an angle: either halves (i, i + d/2, with cos and sin concatenated twice) or neighbours "
    "(2i, 2i + 1, with each repeated), the same for q and k."
)
HALF = "Compute positions and angles in float32, and cast only cos and sin; bfloat16 cannot represent angles of far positions."


def with_positions(run: ModelCall, start: int = 0, step: int = 1) -> ModelCall:
    """Return the call with explicit positions: start, start + step, …"""
    n = run.read.shape[1]
    return replace(run, positions=(start + step * torch.arange(n))[None].expand(len(run.read), -1))


@check("position_shift", "with relative positions, shifting all positions by the same offset changes no output")
def position_shift(context: CheckContext) -> Finding:
    """Compare the same tokens at later positions, for models with relative positions that take a positions argument."""
    model = context.model
    assume(model.can("positions"), "The model takes no positions.")
    base = model.shortened(N_TOKENS)
    n = base.read.shape[1]
    shifts = [shift for shift in SHIFTS if shift + n <= model.max_len]
    assume(n >= 2 and shifts, "The input is too short, or as long as the context length.")
    context.need_determinism()
    runs = [with_positions(base, shift) for shift in (0, *shifts)]
    backwards = replace(base, positions=torch.arange(n).flip(0)[None])
    seen, outputs = watch_outputs(model, stacked([*runs, backwards]))
    assume(distance(outputs[0], outputs[-1]) > context.limit, "The outputs do not depend on the given positions.")
    sizes = [distance(outputs[0], outputs[row]) for row in range(len(runs))]
    size = max(sizes)
    worst = max(1, sizes.index(size))  # row 0 is not shifted
    # Angles of larger positions have larger rounding errors.
    limit = context.limit + 200 * model.eps * (n + shifts[-1])
    if size <= limit:
        return Finding("holds", "Shifting all positions changes no output.", size=size, floor=context.floor)
    kinds = set(getattr(model.config, "layer_types", None) or ())
    is_relative = kinds <= {"full_attention", "sliding_attention", "linear_attention"}
    assume(is_relative, "Some layers use blocks of absolute positions, so positions are not relative.")
    stream = seen[0].entered if seen else None
    if stream is None or len(stream) != len(outputs):
        raise NotApplicableError("It could not be determined whether this model's positions are relative.")
    is_relative = distance(stream[0], stream[worst]) <= limit
    assume(is_relative, "Positions are added to the embeddings, so they are not relative.")
    sentence = f"Shifting all positions by {shifts[worst - 1]} changes the outputs {by(size)}."
    remedy = "Rotate queries and keys by the same positions, and values not at all; compute biases from distances only."
    for one, after in zip(seen, [*seen[1:], None], strict=True):
        scores = one.scores.masked_fill(~one.allowed, 0.0).double()
        apart = (scores[0] - scores[worst]).abs() / scores[0].abs().max().clamp(min=1e-30)
        if float(apart.max()) > 10 * limit:
            return finding_at(one, worst_cell(apart[None]), sentence, remedy, size, "positions")
        entered = None if after is None else after.entered
        if entered is not None and distance(entered[0], entered[worst]) > 10 * limit:
            return broken(sentence, remedy, size, context.floor, cause="v", layer=one.layer)
    at = range(outputs.shape[1])
    return Finding("broken", sentence, remedy, size, context.floor, Pair(runs[0], runs[worst], at))


@check("rotary", "rotary positions preserve the norms of queries and keys, and scores depend only on the distance")
def rotary(context: CheckContext) -> Finding:
    """Put one token at every position, so that the queries and keys of a layer differ only by their rotation."""
    model = context.model
    base = model.shortened(N_TOKENS)
    assume(base.read.shape[1] >= 4 and not model.reads_images, "The input is too short; give at least four tokens.")
    same = replace(base.with_read(base.read[:, :1].expand_as(base.read)))
    turned, limit = [], loose(model)
    for one in watch(model, same):
        if (pair := _turning(one, limit)) is not None:
            turned.append(one)
            if (found := _no_rotation(one, *pair, limit)) is not None:
                return found
    assume(turned, "Queries and keys are not rotated by position.")
    return _unscaled(model, same) or Finding(
        "holds", f"Queries and keys are rotated in {len(turned)} layers, and scores depend only on the distance."
    )


def _spread(value: Tensor) -> float:
    """Return the largest difference between positions of a value [batch, …, pos, width], relative to its size."""
    return float((value - value[..., :1, :]).abs().max() / value.abs().max().clamp(min=1e-30))


def _turning(one: Watched, limit: float) -> tuple[Tensor, Tensor] | None:
    """Return queries and keys if they vary with the position although the stream does not, else None.

    The first positions are left out, because a short convolution over queries and keys is padded there.
    """
    if one.q is None or one.k is None or one.entered is None or not one.is_finite:
        return None
    is_one_stream = one.q.shape[-2] == one.k.shape[-2] == one.entered.shape[1] and one.q.shape[-1] == one.k.shape[-1]
    if not is_one_stream or _spread(one.entered) > limit:
        return None
    start = _start(one)
    q, k = one.q[..., start:, :].double(), for_each_head(one.k, one.q.shape[1])[..., start:, :].double()
    return (q, k) if max(_spread(q), _spread(k)) > 10 * limit else None


def _start(one: Watched) -> int:
    return 4 if one.scores.shape[-2] >= 8 else 0


def _no_rotation(one: Watched, q: Tensor, k: Tensor, limit: float) -> Finding | None:
    """Return a finding if the norms of queries or keys change, or scores depend on more than the distance."""
    start, scores = _start(one), q @ k.transpose(-2, -1)  # [batch, head, query, key]
    at = torch.arange(scores.shape[-1])
    first = torch.minimum(at[:, None], at)  # the offset to the first query and key at this distance
    size = float((q.norm(dim=-1).max() * k.norm(dim=-1).max()).clamp(min=1e-30))
    apart = (scores - scores[..., at[:, None] - first, at - first]).abs() / size
    apart = F.pad(apart, (start, 0, start, 0)).masked_fill(~one.allowed, 0.0)
    if float(apart.max()) <= limit:
        return None
    sentence = "With equal tokens, scores depend on more than the distance: q and k are not rotated in the same way."
    for name, x in (("queries", q), ("keys", k)):
        lengths = x.norm(dim=-1)
        change = float((lengths / lengths[..., :1].clamp(min=1e-30) - 1).abs().max())
        if change > 10 * limit:
            sentence = f"The norm of the {name} changes by {share(change)} with the position: this is not a rotation."
            break
    return finding_at(one, worst_cell(apart), sentence, PAIRING, float(apart.max()), "positions")


def _scaling(config: Any, layer: int | None) -> Mapping[str, Any] | None:
    """Return the configured RoPE scaling of a layer, if it is of a type that applies at every length, else None."""
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    kinds = getattr(config, "layer_types", None)
    if isinstance(given, Mapping) and kinds is not None and layer is not None and kinds[layer] in given:
        given = given[kinds[layer]]
    if not isinstance(given, Mapping) or given.get("factor") in (None, 1, 1.0):
        return None
    return given if given.get("rope_type", given.get("type", "linear")) in ("linear", "yarn", "llama3") else None


def _unscaled(model: TokenModel, same: ModelCall) -> Finding | None:
    """Return a finding if a layer's queries are rotated by unscaled angles although a scaling is configured."""
    config, n = model.config, same.read.shape[1]
    step = max(1, min(model.max_len, 2048) // n) if model.can("positions") else 1
    far, limit = with_positions(same, 0, step) if step > 1 else same, loose(model)
    for one in watch(model, far) if _scaling(config, 0) or _scaling(config, -1) else []:
        scaling = _scaling(config, one.layer)
        if scaling is None or one.q is None or _turning(one, limit) is None:
            continue
        theta = scaling.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0
        share_turned = scaling.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
        width = int(one.q.shape[-1] * share_turned) // 2 * 2
        slowest = float(theta) ** (2 / width - 1)  # the rate of the last pair
        old = scaling.get("original_max_position_embeddings") or 0
        fewest = {"llama3": scaling.get("low_freq_factor", 1.0), "yarn": scaling.get("beta_slow") or 1.0}
        kind = scaling.get("rope_type", scaling.get("type", "linear"))
        if kind in fewest and slowest * old / (2 * torch.pi) >= fewest[kind]:
            continue  # all wavelengths are short, and those are not scaled
        q, angles = one.q[0].double().cpu(), slowest * step * torch.arange(n, dtype=torch.float64)
        usual, scaled = (torch.polar(torch.ones(n).double(), angles / by) for by in (1.0, float(scaling["factor"])))
        for pair in ([width // 2 - 1, width - 1], [width - 2, width - 1]):  # halves, neighbours
            turned = torch.view_as_complex(q[..., pair].contiguous()) / q.abs().max()  # [head, pos]
            visible = float((turned[:, :1] * (usual - scaled)).abs().max())
            if visible > 10 * limit and float((turned - turned[:, :1] * usual).abs().max()) <= limit:
                what = f"The configured RoPE scaling ({kind}, factor {scaling['factor']:g})"
                remedy = "Compute the angles from the configuration; rope_scaling is ignored."
                sentence = f"{what} has no effect on the queries."
                return broken(sentence, remedy, visible, layer=one.layer, cause="positions")
    return None


@check("window", "a sliding window of w covers the query itself and exactly w − 1 keys before it")
def window(context: CheckContext) -> Finding:
    """Measure the farthest key that each layer can attend to."""
    model = context.model
    is_known = model.causal or isinstance(model.module, Transformer)
    assume(is_known and model.base.target is None, "Windows are only checked in causal models with one stack.")
    widths = {width for one in watch(model, model.shortened(3)) if (width := _window_of(model, one)) is not None}
    assume(widths, "No layer has a sliding window.")
    width, changed = max(widths), False
    if width > WIDEST:
        assume(model.is_transformers and len(widths) <= 1, f"A window of {width} is too wide for this check.")
        model, changed = _with_window(model, width, SHORT), True
        width = SHORT
    n = min(width + 4, model.max_len)
    assume(n > width, "The context length is no larger than the window.")
    tokens = model.base.tokens
    run = ModelCall(tokens.repeat(1, -(-n // tokens.shape[1]))[:, :n])
    seen = [one for one in watch(model, run) if one.is_square and one.scores.shape[-2] == n and one.is_finite]
    wanted = [_window_of(model, one) for one in seen]
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()  # [query, key]
    reaches = [(one.allowed[0] * apart).flatten(1).amax(dim=1) for one in seen]  # one number for each head
    windows = [(one, w, reach) for one, w, reach in zip(seen, wanted, reaches, strict=True) if w is not None and w < n]
    assume(windows, "No attention with a window was observed.")
    has_effect = not changed or any(bool((reach < n - 1).any()) for _, _, reach in windows)
    assume(has_effect, "The window is too wide for this check, and a smaller one in the configuration has no effect.")
    for one, w, reach in windows:
        if bool((reach != w - 1).any()):
            head = int((reach != w - 1).nonzero()[0])
            far = int(reach[head])
            cell = (one.allowed[0, head] & (apart == far)).nonzero()[-1] if far >= w else torch.tensor([n - 1, n - w])
            place = {"head": head, "query": int(cell[0]), "key": int(cell[1])}
            sentence = f"With a window of {w} (including itself), a query should reach {w - 1} back but reaches {far}."
            remedy = "Mask with query − key < window; in flash attention's window_size=(left, 0), left is window − 1."
            found = finding_at(one, place, sentence, remedy, float(abs(far - w + 1)), "mask")
            return replace(found, cause="window_off_by_one") if abs(far - w + 1) == 1 else found
    return Finding("holds", f"Each window of {width} reaches exactly {width - 1} back, in {len(windows)} layers.")


def _width(owner: Any) -> int | Literal["none"] | None:
    """Return the window declared by a module or configuration; "none" if it declares none; None if it has no such field."""
    for name in WINDOWS:
        if hasattr(owner, name):
            value = getattr(owner, name)
            if value is None or (isinstance(value, int) and value <= 0):
                return "none"
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _window_of(model: TokenModel, one: Watched) -> int | None:
    """Return the window of one layer; None if it has none or it is unknown."""
    config, module = model.config, model.module
    if isinstance(module, Transformer):
        return config.mask_component.width(config)
    if getattr(config, "use_sliding_window", True) is False:
        return None
    parts = one.path.split(".") if one.path else []
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds is not None and one.layer is not None and one.layer < len(kinds):
        is_sliding = "sliding" in kinds[one.layer] or kinds[one.layer] == "local"
        width = _width(config) if is_sliding else None
    else:
        owners = (module.get_submodule(".".join(parts[:end])) for end in range(len(parts), -1, -1))
        width = next((found for owner in (*owners, config) if (found := _width(owner)) is not None), None)
    return width if isinstance(width, int) else None


def _with_window(model: TokenModel, old: int, new: int) -> TokenModel:
    """Return a copy with a shorter window."""
    model = model.shared()
    for owner in (model.config, *model.module.modules()):
        for name in WINDOWS:
            if getattr(owner, name, None) == old:
                setattr(owner, name, new)
    return model


@check("precision", "in bfloat16, far positions are as exact as near ones")
def precision(context: CheckContext) -> Finding:
    """Compare a bfloat16 copy with float32 at the same rounded weights, near the start and far from it."""
    model = context.model
    assume(not model.reads_images, "The model reads images, which have no far positions.")
    half = _in_half(model)
    whole = half.copied(torch.float32)
    base = model.shortened(8)
    n = base.read.shape[1]
    if model.can("positions") and (far := _farthest(whole, base)) > 4 * n:
        run, places = stacked([with_positions(base), with_positions(base, far)]), ((0, slice(None)), (1, slice(None)))
    else:
        for module in (half.module, whole.module):
            if isinstance(module, Transformer) and module.config.position_kind.acts_on == "queries and keys":
                module.config = module.config.replace(max_len=LONGEST)  # rotations work at any position
        long = min(half.max_len, LONGEST)
        assume(base.target is None and long >= 4 * n, "The model takes neither far positions nor long inputs.")
        tokens, far = model.base.tokens, long - n
        run = ModelCall(tokens.repeat(1, -(-long // tokens.shape[1]))[:, :long])
        places = ((0, slice(0, n)), (0, slice(far, long)))
    others, exact = watch_outputs(whole, run)
    try:
        ones, output = watch_outputs(half, run)
    except RuntimeError as error:  # some PyTorch kernels reject the sizes of tiny models
        raise NotApplicableError(f"The model does not run in bfloat16 here: {error_message(error, 100)}.") from None
    if not torch.equal(output.isfinite(), exact.isfinite()):
        remedy = "Look for a mask constant or a sum that overflows, such as a mask that is added twice."
        return broken("An output is finite in float32 but not in bfloat16.", remedy, float("inf"))
    for one, other in zip(ones, others, strict=True):
        near, beyond = (_error(_seen_scores(one, *at), _seen_scores(other, *at)) for at in places)
        if beyond > max(4 * near, 0.05) and not (one.layer and _is_worse_before(one, other, places)):
            errors = f"{share(beyond)} at position {far}, but only {share(near)} at the start"
            sentence = f"In bfloat16, the error of the scores is {errors}."
            return broken(sentence, HALF, beyond, layer=one.layer, cause="positions")
    return Finding("holds", f"In bfloat16, the scores are as accurate at position {far} as at the start.")


Places = tuple[tuple[int, slice], tuple[int, slice]]
"""Row and positions near the start, and row and positions far from it."""


def _is_worse_before(one: Watched, other: Watched, places: Places) -> bool:
    """Return whether a layer's input is already less accurate far from the start, as after summing many values."""
    if one.entered is None or other.entered is None or one.entered.shape[:2] != other.entered.shape[:2]:
        return False
    near, beyond = (_error(one.entered[at], other.entered[at]) for at in places)
    return beyond > max(2 * near, 0.01)


def _seen_scores(one: Watched, row: int, queries: slice) -> Tensor:
    """Return the scores of some queries, 0 where masked."""
    return one.scores.masked_fill(~one.allowed, 0.0)[row, :, queries]


def _error(one: Tensor, other: Tensor) -> float:
    """Return the root-mean-square error of a value, relative to the root mean square of the exact one."""
    one, other = one.double(), other.double()
    return float((one - other).square().mean().sqrt() / other.square().mean().sqrt().clamp(min=1e-30))


def _farthest(model: TokenModel, base: ModelCall) -> int:
    """Return where the farthest usable positions start; rotations have no limit, tables do."""
    n, on_cpu = base.read.shape[1], next(model.module.parameters()).device.type == "cpu"
    if on_cpu and model.max_len < FARTHEST:  # on a GPU an index out of range would abort the process
        with suppress(Exception):
            model.logits(with_positions(base, FARTHEST - n))
            return FARTHEST - n
    return min(model.max_len, FARTHEST) - n


def _in_half(model: TokenModel) -> TokenModel:
    """Return a bfloat16 copy; RoPE frequencies of Transformers models stay in float32, as after loading in bfloat16."""
    kept = {name: one.clone() for name, one in model.module.named_buffers() if model.is_transformers}
    half = model.copied(torch.bfloat16)
    for name, one in kept.items():
        if one.is_floating_point() and "freq" in name:
            owner, _, last = name.rpartition(".")
            setattr(half.module.get_submodule(owner), last, one)
    return half
