"""Checks of the whole run: finite numbers, positions, logits, initialisation, heads and neurons.

Positions are recomputed by their registered encoding; learned tables are needed for that.

Glorot & Bengio (2010) initialise with a standard deviation of s = √(2 / (fan_in + fan_out)). Other sound choices are close:
PyTorch's default for a linear layer is 0.58 s, GPT-2's 0.02 at width 768 is 0.55 s. Initialisation is reported only if every
matrix of the model is above 3 s, or every one below 0.1 s, because training can stretch single matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from xformer.doctor.equations.case import (
    Case,
    Deviation,
    Mistake,
    TraceLayer,
    broken,
    error,
    positions_of,
    relative,
    warning,
)
from xformer.doctor.equations.rounding import OTHER_ROUNDINGS, epsilon, excess

EQUAL_STREAMS = 1e-5


def check_finite(case: Case) -> Iterator[Mistake]:
    """softmax_of_nothing · not_finite: the first activation that holds a NaN or an infinity (a masked score may be −∞)."""
    for name in case.trace:
        value = case[name]
        if not value.is_floating_point() or value.sum().isfinite():  # fast: NaN and infinity survive in the sum
            continue
        bad = ~value.isfinite()
        if name.endswith(".scores"):
            bad = bad & ~value.isneginf()
        if not bool(bad.any()):
            continue
        share = bad.double().mean().item()
        path, _, what = name.rpartition(".")
        if what == "pattern" and case.has(path, "scores"):
            empty = case[f"{path}.scores"].isneginf().all(dim=-1)  # [batch, head, query]
            if bool(empty[bad.any(dim=-1)].all()):
                sentence = "NaN first appears here, in rows whose scores are all −∞: the softmax of such a row is 0/0."
                yield error("softmax_of_nothing", name, sentence, {"share": share})
                return
        yield error("not_finite", name, "NaN or infinity first appears here.", {"share": share})
        return


def check_positions(case: Case) -> Iterator[Mistake]:
    """no_positions: the first layer's input is the embedding alone, or attention has no rotation angles or bias.

    The tolerance is rounding: no position vector is below 10⁻⁵ of an embedding.
    """
    kind = case.trace.config.position_kind
    for stack in dict.fromkeys(block.split(".")[0] for block in case.blocks):
        prefix = f"{stack}." if case.trace.config.architecture == "encoder-decoder" else ""
        embed, first = f"{prefix}embed", f"{stack}.0.resid_pre"
        adds = kind.acts_on == "stream" and embed in case and first in case
        if adds and relative(case[first] - case[embed], case[embed]) < EQUAL_STREAMS:
            sentence = f"The first layer reads the bare embeddings: no {kind.name} positions were added."
            yield error("no_positions", first, sentence)
    for layer in case.layers:
        name, inside = kind.activation, kind.acts_on in ("queries and keys", "scores")
        if not inside or layer.is_cross or case[f"{layer.path}.pattern"].shape[-1] < 2:
            continue
        if f"{layer.path}.{name}" not in case or not bool(case[f"{layer.path}.{name}"].any()):
            sentence = f"The configuration has positions={kind.name!r}, but this attention uses no positions."
            yield error("no_positions", layer.path, sentence)


def check_logits(case: Case) -> Iterator[Mistake]:
    """softmax_before_loss: logits that are never negative and sum to 1 at every position."""
    if "logits" not in case or case.trace.config.vocab_size < 2:
        return
    logits = case["logits"].double()
    sums = logits.sum(dim=-1)
    if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        sentence = "The logits are already probabilities: a loss that applies the softmax itself cannot get near 0."
        numbers = {"sum": sums.mean().item(), "least": logits.min().item()}
        yield error("softmax_before_loss", "logits", sentence, numbers)


Tables = dict[str, Tensor]


def positions(case: Case) -> Iterator[Deviation]:
    """The added position vectors are those of the configured encoding; there are none if it adds none."""
    config = case.trace.config
    kind = config.position_kind
    for at in case.stacks:
        name = f"{at.prefix}pos_embed"
        if name not in case:
            continue
        if kind.acts_on != "stream":
            yield broken(name, f"The configuration has positions={kind.name!r}, which adds no vectors.")
            continue
        made = case[name].expand(*at.valid.shape, -1)[at.valid]  # [token, d_model]
        index, mirrored = (place[at.valid] for place in positions_of(at.valid))
        tables = _tables(case, at.stack)
        expected = None if tables is None else kind.add(config, tables, index, mirrored)
        if tables is None or expected is None:
            continue
        size = torch.ones_like(expected)  # the amplitude of fixed waves
        if kind.learned(config):
            size = kind.add(config, {part: table.abs() for part, table in tables.items()}, index, mirrored)
        assert size is not None
        yield Deviation(name, excess(made, expected, OTHER_ROUNDINGS * epsilon(made) * size))


def turns(case: Case) -> Iterator[Deviation]:
    """The rotation angles of queries and keys, and the score biases, are those of the configured encoding."""
    config = case.trace.config
    for layer in case.layers:
        if layer.is_cross or layer.queries.shape != layer.keys.shape:
            continue
        index, _ = positions_of(layer.queries)
        if case.has(layer.path, "pos_angles"):
            made, expected = case[f"{layer.path}.pos_angles"], config.position_kind.angles(config, index)
            if expected is None:
                yield broken(layer.path, f"The configuration has positions={config.positions!r}, which has no angles.")
            else:
                here = layer.queries[..., None].expand_as(expected)
                made = made.expand(expected.shape) if made.shape[-2:] == expected.shape[-2:] else made
                yield _compared(layer.path, made, expected, here)
        if case.has(layer.path, "pos_bias"):
            yield from _bias(case, layer, index)


def _bias(case: Case, layer: TraceLayer, index: Tensor) -> Iterator[Deviation]:
    config, stack = case.trace.config, layer.path.partition(".")[0]
    if config.position_kind.acts_on != "scores":
        yield broken(layer.path, f"The configuration has positions={config.positions!r}, which has no score bias.")
        return
    tables = _tables(case, stack)
    if tables is None:
        return
    expected = config.position_kind.bias(config, tables, index, index, causal=config.looks_back_only(stack))
    assert expected is not None
    made = case[f"{layer.path}.pos_bias"]
    here = (layer.queries[:, :, None] & layer.keys[:, None, :])[:, None].expand(expected.shape)
    made = made.expand(expected.shape) if made.shape[1:] == expected.shape[1:] else made
    yield _compared(layer.path, made, expected, here)


def _compared(path: str, made: Tensor, expected: Tensor, here: Tensor) -> Deviation:
    size = epsilon(made)
    if made.shape == expected.shape:
        made, expected = made[here], expected[here]
    return Deviation(path, excess(made, expected, OTHER_ROUNDINGS * size * expected.abs()))


def _tables(case: Case, stack: str) -> Tables | None:
    """Return the position tables of a stack in double precision; None if a learned one is unknown."""
    config = case.trace.config
    tables = {name: table.double() for name, table in config.position_kind.fixed(config).items()}
    for name in config.position_kind.learned(config):
        table = case.weight(f"{stack}.positions.table.{name}")
        if table is None:
            return None
        tables[name] = table.double()
    return tables


LARGEST_RATIO, SMALLEST_RATIO = 3.0, 0.1
ONE_HEAD = "Two heads have the same queries, keys and values, and equal gradients keep them identical."
SAME_HEAD = 1e-5
UNIFORM_LIMIT = 1e-3
SAME_FACTOR = 1e-3
"""Largest relative misfit of a gated product; rounding of the right one leaves far less."""


def check_init(case: Case) -> Iterator[Mistake]:
    """init_too_large · init_too_small."""
    ratios = {}
    for name, ratio in weight_ratios(case):
        if SMALLEST_RATIO <= ratio <= LARGEST_RATIO:
            return
        ratios[name] = ratio
    if len(ratios) < 2:
        return
    least, most = min(ratios.values()), max(ratios.values())
    numbers = {"ratio_least": least, "ratio_most": most}
    times = f"{least:.3g} to {most:.3g} times Glorot's standard deviation"
    if least > LARGEST_RATIO:
        sentence = f"Every weight matrix is initialised too large, {times}: the softmax starts out saturated."
        yield Mistake("init_too_large", tuple(ratios), "error", sentence, numbers)
    elif most < SMALLEST_RATIO:
        sentence = f"Every weight matrix is initialised too small, {times}: no sublayer has a noticeable effect."
        yield Mistake("init_too_small", tuple(ratios), "error", sentence, numbers)


def weight_ratios(case: Case) -> Iterator[tuple[str, float]]:
    """Yield each known matrix ("encoder.0.attn.q", "encoder.0.ffn.weight_in", …) and its std relative to Glorot's."""
    config = case.trace.config
    for layer in case.layers:
        weight_in, weight_out = case.weight(f"{layer.path}.weight_in"), case.weight(f"{layer.path}.weight_out")
        if weight_in is not None and weight_out is not None:
            parts = zip("qkv", weight_in.split(config.kv_component.widths(config)), strict=True)
            yield from ((f"{layer.path}.{name}", _ratio(part)) for name, part in parts)
            yield f"{layer.path}.out", _ratio(weight_out)
    for block in case.blocks:
        for name in ("weight_gate", "weight_in", "weight_out"):
            if (weight := case.weight(f"{block}.ffn.{name}")) is not None:
                yield f"{block}.ffn.{name}", _ratio(weight)


def _ratio(weight: Tensor) -> float:
    return weight.double().std().item() / math.sqrt(2 / sum(weight.shape))


def check_heads(case: Case) -> Iterator[Mistake]:
    """identical_heads (two heads with the same q, k and v) · uniform_heads (no head of the model prefers any key)."""
    uniform = []
    for layer in case.layers:
        if case.has(layer.path, "q", "k", "v"):
            yield from _identical(case, layer.path)
        pattern = case[f"{layer.path}.pattern"]
        seen = (pattern > 0).sum(dim=-1, keepdim=True)  # [batch, head, query, 1]
        evenly = (pattern * seen - 1).abs().masked_fill((pattern <= 0) | (seen < 2), 0.0)
        uniform.append(bool((seen >= 2).any()) and evenly.max().item() < UNIFORM_LIMIT)
    different = any(len(row.unique()) > 1 for row in case.trace.tokens)
    if different and uniform and all(uniform):
        sentence = "No head prefers any key: every pattern is uniform to a thousandth, so attention only averages."
        yield Mistake("uniform_heads", tuple(layer.path for layer in case.layers), "note", sentence)


def _identical(case: Case, path: str) -> Iterator[Mistake]:
    parts = [case[f"{path}.{name}"].double().transpose(0, 1).flatten(1) for name in "qkv"]
    whole = torch.cat(parts, dim=-1)  # [head, …]
    lengths = whole.norm(dim=-1)
    for head in range(1, len(whole)):
        for other in range(head):
            apart = (whole[head] - whole[other]).norm()
            if lengths[other] > 0 and apart <= SAME_HEAD * lengths[other]:
                where = (f"{path} heads {other} and {head}",)
                yield warning("identical_heads", where, ONE_HEAD, {"apart": (apart / lengths[other]).item()})
                break


def check_gate(case: Case) -> Iterator[Mistake]:
    """gate_and_up_swapped: the nonlinearity is applied to the wrong factor of a gated feed-forward layer."""
    component = case.trace.config.ffn_component
    if not component.is_gated:
        return
    for path, (pre, up, post) in case.feed_forward("pre", "up", "post"):
        right, swapped = component.post(pre.double(), up.double()), component.post(up.double(), pre.double())
        if relative(post - right, post) > SAME_FACTOR >= relative(post - swapped, post):
            act = component.function_name
            sentence = f"The neurons are pre · {act}(up), not {act}(pre) · up: gate and up projection are swapped."
            yield error("gate_and_up_swapped", path, sentence, {"misfit": relative(post - right, post)})


def check_neurons(case: Case) -> Iterator[Mistake]:
    """dead_neurons: a feed-forward layer none of whose ReLUs is active for any token.

    A fresh neuron is active for a token with probability ½. If all tokens were equal, all d_ff neurons would be inactive with
    probability 2^(−d_ff), so layers of fewer than 32 neurons are not judged.
    """
    config = case.trace.config
    if not config.ffn_component.closes or config.d_ff < 32:
        return
    for path, (pre, post) in case.feed_forward("pre", "post"):
        closed = (post <= 0).flatten(0, -2).all(dim=0)  # [d_ff]
        if bool(closed.all()):
            sentence = (
                f"None of the {config.d_ff} neurons is active for any token: the layer adds the same vector everywhere, and no "
                "gradient can revive it."
            )
            numbers = {"highest_input": pre.max().item(), "neurons": float(config.d_ff)}
            yield error("dead_neurons", path, sentence, numbers)
