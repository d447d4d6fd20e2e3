"""The alarms of `AttentionHealth`: a table of rules, each with its threshold and its reason.

    RULES["score_explosion"].threshold        100.0
    AttentionHealth(probe, thresholds={"score_explosion": 50.0, "loss_spike": None})     another one; None turns a rule off

A rule sees the probes and the losses so far. Its sentence names what was measured and the limit, so that it can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from xformer.errors import ConfigError

Heads = dict[str, dict[str, Float[np.ndarray, " head"]]]
"""By the path of the layer and the name of the measure."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What was measured at one step, as plain numbers."""

    step: int
    heads: Heads
    layers: dict[str, dict[str, float]]
    loss: float = math.nan
    """Of the probe's next tokens in nats, where the model predicts them."""
    note: str = ""
    """Where the first NaN stands, as a sentence."""

    @property
    def induction(self) -> dict[str, list[float]]:
        """The induction score of each head by the path of its layer, where all of a layer are known."""
        scores = {path: [float(s) for s in of["induction"]] for path, of in self.heads.items()}
        return {path: of for path, of in scores.items() if all(map(math.isfinite, of))}


@dataclass(frozen=True)
class Setting:
    """What rules must know about a model. Of `d_head` and `is_causal`, the keys are the paths of layers."""

    is_causal: Mapping[str, bool] = field(default_factory=dict)
    d_head: Mapping[str, int] = field(default_factory=dict)
    n_outputs: int = 0
    """The size of the vocabulary that it predicts; 0 where it predicts none."""
    has_own_scale: bool = False
    """Whether its family fixes the factor of its scores, as T5 does."""
    has_adapters: bool = False
    """Whether some projections are frozen on purpose (PEFT)."""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong.

    Args:
        rule: Its name in `RULES`.
        step: The step of the probe that showed it.
        layer: The path of the layer; empty for the whole model.
        head: The head from 0, the clearest of all; None for the whole layer.
        reason: What was measured, and the limit.
        frame: The step of the snapshot that shows it.
    """

    rule: str
    step: int
    layer: str
    head: int | None
    reason: str
    frame: int

    def __str__(self) -> str:
        place = "" if not self.layer else f" in {self.layer}" + ("" if self.head is None else f", head {self.head}")
        return f"Step {self.step:,}, {self.rule}{place}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)


Found = tuple[str, int | None, str]
"""Layer, head and reason."""


@dataclass(frozen=True)
class State:
    """What the rules see: the probes, the losses (step, nats) so far, and the model."""

    probes: Sequence[Probe]
    losses: Sequence[tuple[int, float]]
    setting: Setting

    @property
    def now(self) -> Probe:
        return self.probes[-1]

    def loss_at(self, step: int, window: int = 10) -> float:
        """The median of the last losses up to a step; NaN without any."""
        before = [loss for at, loss in self.losses[-2000:] if at <= step][-window:]
        return float(np.median(before)) if before else math.nan


Check = Callable[[State, float], Iterator[Found]]


@dataclass(frozen=True)
class Rule:
    """One kind of alarm: when it is raised, and why that is wrong."""

    threshold: float
    condition: str
    reason: str
    """Where the threshold comes from."""
    check: Check = field(repr=False)


RULES: dict[str, Rule] = {}
"""The rules by name."""


def rule(threshold: float, condition: str, reason: str) -> Callable[[Check], Check]:
    """Add the decorated check to `RULES`, under its own name."""

    def add(check: Check) -> Check:
        RULES[check.__name__] = Rule(threshold, condition, reason, check)
        return check

    return add


def _above(state: State, measure: str, limit: float) -> Iterator[tuple[str, int, float]]:
    """The worst head of each layer in which a measure is above a limit."""
    for layer, of in state.now.heads.items():
        values = of[measure]
        if np.isfinite(values).any() and np.nanmax(values) > limit:
            yield layer, int(np.nanargmax(values)), float(np.nanmax(values))


def _with_gradients(state: State) -> list[Probe]:
    """The probes at which gradients are known."""
    return [one for one in state.probes if any(not math.isnan(of["grad_q"]) for of in one.layers.values())]


@rule(0.0, "a score, a weight or the loss is not finite", "Any is wrong.")
def nan(state: State, limit: float) -> Iterator[Found]:
    for layer, of in state.now.heads.items():
        bad = ~np.isfinite(of["entropy_p50"]) & np.isfinite(state.probes[0].heads[layer]["entropy_p50"])
        bad |= np.isposinf(of["score_max"]) | (np.isnan(of["output_norm"]) & ~np.isnan(of["entropy_p50"]))
        if bad.any():
            yield layer, int(bad.argmax()), state.now.note or "Its scores or weights are not finite."
            return  # everything behind it is NaN as well
    step = next((at for at, loss in state.losses[-2000:] if not math.isfinite(loss)), None)
    if step is not None:
        yield "", None, f"The loss of step {step:,} is not finite."


@rule(1e-4, "a causal layer puts more than this share on later tokens", "A masked weight is exactly 0.")
def leak(state: State, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "future", limit):
        if state.setting.is_causal.get(layer):
            yield layer, head, f"{value:.2g} of its attention is on later tokens, which a causal model must not see."


@rule(1e-3, "real tokens put more than this share on padding", "A masked weight is exactly 0.")
def padding(state: State, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "padding", limit):
        yield layer, head, f"{value:.2g} of the attention of real tokens is on padding (limit {limit:g})."


@rule(
    1e-2,
    "scores / q·k is 1 within this share, and the family has no factor of its own",
    "q·k grows with √d_head (Vaswani et al. 2017, §3.2.1); rounding of bfloat16 is below 1 %.",
)
def unscaled(state: State, limit: float) -> Iterator[Found]:
    if state.setting.has_own_scale:
        return
    for layer, of in state.now.layers.items():
        full = math.sqrt(state.setting.d_head.get(layer, 1))
        if full >= 2 and abs(of["score_factor"] / full - 1) < limit:
            yield layer, None, f"Its scores are q·k without a factor, expected 1/√d_head = {1 / full:.3g}."


@rule(
    1.5,
    "the scores of an untrained model spread by more than this, standard deviation over keys",
    "Usual initialisations give 0.01 to 1; at 1.5 the largest of 64 keys has 30 times the even share.",
)
def sharp_start(state: State, limit: float) -> Iterator[Found]:
    """An untrained model predicts no better than evenly, so its loss is at least about ln n."""
    if len(state.probes) > 1 or not state.now.loss > 0.9 * math.log(max(2, state.setting.n_outputs)):
        return
    for layer, of in state.now.heads.items():
        spread = float(np.nanmedian(of["score_spread"])) if np.isfinite(of["score_spread"]).any() else 0.0
        if spread > limit:
            what = f"The scores of a query spread by {spread:.2g} before training (limit {limit:g})"
            yield layer, None, f"{what}: is the factor 1/√d_head missing, or are the weights too large?"


@rule(
    100.0,
    "the largest score is above this",
    "The limit of MuonClip (Kimi K2, arXiv:2507.20534, §2.1); healthy runs here stay below 45.",
)
def score_explosion(state: State, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "score_max", limit):
        if math.isfinite(value):
            yield layer, head, f"Its largest score is {value:.4g}, above {limit:g}; softmax has no gradient there."


@rule(
    0.1,
    "all heads of a layer fall below this normalised entropy within five probes, and the loss does not fall",
    "Zhai et al. 2023, arXiv:2303.06296: collapse goes with a loss that rises; sharp heads alone are healthy.",
)
def entropy_collapse(state: State, limit: float) -> Iterator[Found]:
    """Sharp heads are usual in trained models; a layer whose heads all turn sharp while the loss does not fall is not."""
    for layer, of in state.now.heads.items():
        now = of["entropy_p50"]
        if not np.isfinite(now).all() or now.max() >= limit:
            continue
        earlier = [one for one in state.probes[-6:-1] if float(np.median(one.heads[layer]["entropy_p50"])) > 4 * limit]
        if not earlier:
            continue
        then, loss = state.loss_at(earlier[-1].step), state.loss_at(state.now.step)
        if loss > 0.98 * then:
            what = f"The median entropy of all its heads fell below {limit:g} since step {earlier[-1].step:,}"
            yield layer, int(now.argmin()), f"{what}, and the loss did not fall with it ({then:.3g} → {loss:.3g})."


@rule(
    1e-3,
    "a head that was alive adds less than this share of its layer's median to the stream",
    "Heads of trained models differ by less than 100.",
)
def dead_head(state: State, limit: float) -> Iterator[Found]:
    for layer, of in state.now.heads.items():
        now = of["output_norm"]
        usual = float(np.nanmedian(now)) if np.isfinite(now).any() else 0.0
        for head in np.flatnonzero(now <= limit * usual) if usual > 0 else ():
            alive = [one for one in state.probes[:-1] if _share(one, layer, int(head)) > 100 * limit]
            if alive:
                what = f"What it adds to the stream has a norm of {now[head]:.2g}, the median head of its layer {usual:.2g}"
                yield layer, int(head), f"{what}; it was alive at step {alive[-1].step:,}."
                break


def _share(probe: Probe, layer: str, head: int) -> float:
    """The norm of a head's output as a multiple of its layer's median."""
    norms = probe.heads[layer]["output_norm"]
    usual = float(np.nanmedian(norms)) if np.isfinite(norms).any() else 0.0
    return float(norms[head]) / usual if usual > 0 else 0.0


@rule(
    1e-5,
    "two heads of a layer have equal scores and patterns up to this relative difference",
    "Rounding of float32; heads that start differently do not become equal.",
)
def identical_heads(state: State, limit: float) -> Iterator[Found]:
    for layer, of in state.now.heads.items():
        # Scores that are all equal are not those of equal weights.
        near = np.flatnonzero((of["twin_distance"] < limit) & (of["score_spread"] > 100 * limit))
        scores = np.stack([of["score_max"], of["score_spread"]], axis=1)  # [head, 2]
        for one, two in combinations(near, 2):
            if np.allclose(scores[one], scores[two], rtol=limit, atol=0):
                what = f"Heads {one} and {two} have the same scores and the same pattern"
                yield layer, int(one), f"{what}: one of them is wasted."
                break


@rule(
    1e-9,
    "the gradient of W_Q, W_K, W_V or W_O is below this share of the layer's largest in two probes",
    "Gradients of healthy projections differ by less than 10⁵.",
)
def frozen_projection(state: State, limit: float) -> Iterator[Found]:
    """Of two probes with gradients: where a matrix starts at 0, the first gradient of others is 0 in a right model too."""
    known = _with_gradients(state)[-2:]
    if len(known) < 2 or state.setting.has_adapters:
        return
    for layer in state.now.layers:
        gradients = [{letter: one.layers[layer][f"grad_{letter}"] for letter in "qkvo"} for one in known]
        largest = [max(of.values()) for of in gradients]
        for letter in "qkvo":
            if all(of[letter] <= limit * most and most > 0 for of, most in zip(gradients, largest, strict=True)):
                what = f"W_{letter.upper()} gets no gradient, while others of its layer have {largest[-1]:.2g}"
                yield layer, None, f"{what}: it is frozen or detached."


@rule(
    10.0,
    "the norm of the stream is this many times that of the probe before and of the first",
    "Healthy norms grow by less than 3 between probes.",
)
def stream_explosion(state: State, limit: float) -> Iterator[Found]:
    if len(state.probes) < 2:
        return
    first, before = state.probes[0], state.probes[-2]
    for layer, of in state.now.layers.items():
        now, then = of["stream_norm"], before.layers[layer]["stream_norm"]
        if math.isfinite(now) and then > 0 and now > limit * max(then, first.layers[layer]["stream_norm"]):
            yield layer, None, f"The norm of its stream grew from {then:.3g} at step {before.step:,} to {now:.3g}."
            return


@rule(
    0.25,
    "this share of all attention moves between probes, twice in a row, and the loss does not fall",
    "Healthy runs move less, or learn while they do.",
)
def lurching_attention(state: State, limit: float) -> Iterator[Found]:
    """Training moves patterns fast while the loss falls; patterns that are thrown about while it does not are not learned."""
    recent = state.probes[-3:]
    if len(recent) < 3:
        return
    moved = [float(np.mean(np.concatenate([of["moved"] for of in one.heads.values()]))) for one in recent[1:]]
    then, loss = state.loss_at(recent[0].step), state.loss_at(state.now.step)
    if min(moved) > limit and loss > 0.98 * then:
        what = f"{moved[-1]:.0%} of all attention moved between two probes, twice in a row"
        yield "", None, f"{what}, and the loss did not fall ({then:.3g} → {loss:.3g}): is the learning rate too high?"


@rule(
    1e-3,
    "the largest gradient of W_Q and W_K is below this share of the first one, and the loss above half of the first",
    "Healthy gradients of attention stay within 100 of the first while there is something to learn.",
)
def stalled_attention(state: State, limit: float) -> Iterator[Found]:
    """No gradient reaches Q and K, and the loss stays high: in a converged model it is small instead."""
    known, losses = _with_gradients(state), [loss for _, loss in state.losses[:10]]
    if len(known) < 3 or not losses or state.setting.has_adapters:
        return
    then, now = (
        max(np.nanmax([of["grad_q"], of["grad_k"]]) for of in one.layers.values()) for one in (known[0], known[-1])
    )
    loss = state.loss_at(state.now.step)
    if now < limit * then and loss > 0.5 * float(np.median(losses)):
        what = f"The largest gradient of W_Q and W_K fell from {then:.2g} at step {known[0].step:,} to {now:.2g}"
        yield "", None, f"{what} while the loss is still {loss:.3g}: attention has stopped to learn."


@rule(
    0.9,
    "more than this share of a layer's neurons is inactive, less than half of it at first",
    "Healthy ReLU layers here stay below 80 %.",
)
def dead_neurons(state: State, limit: float) -> Iterator[Found]:
    for layer, of in state.now.layers.items():
        now, then = of["inactive_neurons"], state.probes[0].layers[layer]["inactive_neurons"]
        if now > limit and then < limit / 2:
            yield layer, None, f"{now:.0%} of its neurons are inactive, {then:.0%} at the first probe."


@rule(
    5.0,
    "three losses in a row are this many robust standard deviations, and 10 % of the first loss, above the median of 50",
    "Three in a row: noise of small batches stays below 3.",
)
def loss_spike(state: State, limit: float) -> Iterator[Found]:
    losses = [(step, loss) for step, loss in state.losses[-200:] if math.isfinite(loss)]
    if len(losses) < 30:
        return
    first = float(np.mean([loss for _, loss in state.losses[:5]]))
    since = state.probes[-2].step if len(state.probes) > 1 else -1
    for at in range(max(25, len(losses) - 100), len(losses) - 2):
        before = np.array([loss for _, loss in losses[max(0, at - 50) : at]])
        usual, after = float(np.median(before)), min(loss for _, loss in losses[at : at + 3])  # three in a row
        noise = 1.48 * float(np.median(np.abs(before - usual)))
        if losses[at][0] > since and after > usual + limit * noise and after > usual + 0.1 * first:
            layer, head, change = _largest_change(state)
            yield layer, head, f"The loss rose from {usual:.3g} to {after:.3g} at step {losses[at][0]:,}. {change}"
            return


def _largest_change(state: State) -> Found:
    """The measure of a head that changed by the largest factor between the last two probes, as a sentence."""
    best, found = 0.0, ("", None, "No probe before it shows a change.")
    for layer, of in state.now.heads.items() if len(state.probes) > 1 else ():
        for name in ("score_max", "score_spread", "output_norm"):
            then, now = np.abs(state.probes[-2].heads[layer][name]) + 1e-3, np.abs(of[name]) + 1e-3
            ratio = np.nan_to_num(np.abs(np.log(now / then)), nan=0.0, posinf=0.0)
            if ratio.max() > best:
                best, head = float(ratio.max()), int(ratio.argmax())
                change = f"{name} of {layer}, head {head}: {then[head]:.3g} → {now[head]:.3g}"
                found = layer, head, f"What changed most before it is {change}."
    return found


def thresholds_of(changed: Mapping[str, float | None] | None) -> dict[str, float]:
    """The thresholds of all rules that are on. Raises `ConfigError` for a name that is no rule's."""
    changed = dict(changed or {})
    for name in changed:
        if name not in RULES:
            raise ConfigError(f"A threshold is one of {', '.join(RULES)}, got {name!r}; for example 'score_explosion'.")
    found = {name: changed.get(name, rule.threshold) for name, rule in RULES.items()}
    return {name: value for name, value in found.items() if value is not None}


def raised(state: State, thresholds: Mapping[str, float], known: set[tuple[str, str]]) -> list[Alarm]:
    """The new alarms of the last probe: a rule is raised once a layer.

    Args:
        state: The probes and losses so far.
        thresholds: From `thresholds_of`.
        known: The (rule, layer) of earlier alarms; new ones are added.
    """
    found = []
    for name, limit in thresholds.items():
        for layer, head, reason in RULES[name].check(state, limit):
            if (name, layer) not in known:
                known.add((name, layer))
                found.append(Alarm(name, state.now.step, layer, head, reason, state.now.step))
    return found
