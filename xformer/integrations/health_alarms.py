"""The alarms of `AttentionHealth`: a table of rules, each with its threshold and its reason.

    RULES["score_explosion"].threshold        100.0
    AttentionHealth(probe, thresholds={"score_explosion": 50.0, "loss_spike": None})     changes one and turns one off

A rule checks the probes and losses so far. The sentence of an alarm states the measured value and the limit.
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
"""The measures of each head, by the path of the layer and the name of the measure."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measurements of one step, as plain numbers."""

    step: int
    heads: Heads
    layers: dict[str, dict[str, float]]
    loss: float = math.nan
    """The loss of the probe's next tokens in nats; NaN if the model does not predict them."""
    note: str = ""
    """A sentence on where the first value that is not finite is; empty if there is none."""
    note_layer: str | None = None
    """The path of the layer in which that value is, "" outside of all layers; None if there is none."""
    own_loss: float = math.nan
    """The loss of predicting each token itself in place of the next one, in nats."""
    leak: tuple[str, str, float] | None = None
    """The first activation at earlier positions that later tokens change: its layer, its name, and the share of the change."""

    @property
    def induction(self) -> dict[str, list[float]]:
        """The induction score of each head by the path of its layer, for layers in which all are known."""
        scores = {path: [float(s) for s in measures["induction"]] for path, measures in self.heads.items()}
        return {path: heads for path, heads in scores.items() if all(map(math.isfinite, heads))}


@dataclass(frozen=True)
class Setting:
    """The properties of a model that rules need. The keys of `is_causal` and `d_head` are paths of layers."""

    is_causal: Mapping[str, bool] = field(default_factory=dict)
    d_head: Mapping[str, int] = field(default_factory=dict)
    n_outputs: int = 0
    """The size of the predicted vocabulary; 0 if it predicts no tokens."""
    has_own_scale: bool = False
    """Whether its family uses a score factor other than 1/√d_head, as T5 does."""
    has_adapters: bool = False
    """Whether some projections are frozen on purpose (PEFT)."""


@dataclass(frozen=True)
class Alarm:
    """A violated rule.

    Args:
        rule: The name of the rule in `RULES`.
        step: The step of the probe that violated it.
        layer: The path of the layer; empty for the whole model.
        head: The most affected head, from 0; None for the whole layer.
        reason: A sentence with the measured value and the limit.
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
        """The fields as plain values, for a JSON file."""
        return asdict(self)


Found = tuple[str, int | None, str]
"""Layer, head and reason."""


@dataclass(frozen=True)
class TrainingHistory:
    """The input of the rules: the probes and the losses (step, nats) so far, and the model."""

    probes: Sequence[Measurement]
    losses: Sequence[tuple[int, float]]
    setting: Setting

    @property
    def now(self) -> Measurement:
        return self.probes[-1]

    def loss_at(self, step: int, window: int = 10) -> float:
        """The median of the last `window` losses up to a step; NaN if there are none."""
        before = [loss for at, loss in self.losses[-2000:] if at <= step][-window:]
        return float(np.median(before)) if before else math.nan


Check = Callable[[TrainingHistory, float], Iterator[Found]]


@dataclass(frozen=True)
class AlarmRule:
    """One kind of alarm, with its threshold and its check."""

    threshold: float
    condition: str
    """When the alarm is raised, as a phrase that calls the threshold “this”."""
    reason: str
    """The basis of the threshold."""
    check: Check = field(repr=False)


RULES: dict[str, AlarmRule] = {}
"""The rules by name."""


def rule(threshold: float, condition: str, reason: str) -> Callable[[Check], Check]:
    """Add the decorated check to `RULES`, under its own name."""

    def add(check: Check) -> Check:
        RULES[check.__name__] = AlarmRule(threshold, condition, reason, check)
        return check

    return add


def _above(state: TrainingHistory, measure: str, limit: float) -> Iterator[tuple[str, int, float]]:
    """The head with the largest value in each layer where a measure is above a limit."""
    for layer, measures in state.now.heads.items():
        values = measures[measure]
        if np.isfinite(values).any() and np.nanmax(values) > limit:
            yield layer, int(np.nanargmax(values)), float(np.nanmax(values))


def _median(values: Float[np.ndarray, " head"]) -> float:
    """The median of the known values; 0 if there are none."""
    return float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0


def _with_gradients(state: TrainingHistory) -> list[Measurement]:
    """The probes at which gradients are known."""
    return [one for one in state.probes if any(not math.isnan(measures["grad_q"]) for measures in one.layers.values())]


@rule(0.0, "a score, a weight or the loss is not finite", "Healthy values are finite.")
def nan(state: TrainingHistory, limit: float) -> Iterator[Found]:
    if state.now.note_layer is not None:  # all later layers are NaN as well
        heads = state.now.heads.get(state.now.note_layer, {}).get("entropy_p50", np.empty(0))
        bad = np.flatnonzero(~np.isfinite(heads))
        yield state.now.note_layer, int(bad[0]) if len(bad) else None, state.now.note
        return
    for layer, measures in state.now.heads.items():
        bad = ~np.isfinite(measures["entropy_p50"]) & np.isfinite(state.probes[0].heads[layer]["entropy_p50"])
        bad |= np.isposinf(measures["score_max"])
        bad |= np.isnan(measures["output_norm"]) & ~np.isnan(measures["entropy_p50"])
        if bad.any():
            yield layer, int(bad.argmax()), state.now.note or "Its scores or weights are not finite."
            return
    step = next((at for at, loss in state.losses[-2000:] if not math.isfinite(loss)), None)
    if step is not None:
        yield "", None, f"The loss of step {step:,} is not finite."


@rule(
    1e-4,
    "a causal layer puts more than this share of attention on later tokens, or of their change into earlier positions",
    "A masked weight is exactly 0, and an earlier position is computed from the same numbers.",
)
def leak(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "future", limit):
        if state.setting.is_causal.get(layer):
            what = f"{value:.2g} of its attention is on later tokens"
            yield layer, head, f"{what}, which a causal model must not attend to."
    if state.now.leak is not None and state.now.leak[2] > limit:
        layer, name, share = state.now.leak
        what = f"Later tokens change {name} at earlier positions, by {share:.2g} of their own change"
        yield layer, None, f"{what}: does a feed-forward network, a norm or a convolution mix positions?"


@rule(
    0.5,
    "the loss of predicting the token itself is below this share of the next token's, and nearer to the training loss",
    "A model that is trained on the next token predicts the token itself worse than by chance.",
)
def unshifted_labels(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """With tied embeddings, an untrained model predicts the token itself; the training loss tells it from a fault."""
    own, ahead, first = state.now.own_loss, state.now.loss, state.probes[0].own_loss
    train = state.loss_at(state.now.step)
    is_learned = own < limit * first if math.isnan(train) else train < (own + ahead) / 2
    if own < limit * ahead and is_learned:
        what = f"The model predicts each token itself (loss {own:.2g}), not the next one (loss {ahead:.3g})"
        yield "", None, f"{what}: are the labels equal to the inputs, without a shift?"


@rule(1e-3, "real tokens put more than this share of attention on padding", "A masked weight is exactly 0.")
def padding(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "padding", limit):
        yield layer, head, f"{value:.2g} of the attention of real tokens is on padding (limit {limit:g})."


@rule(
    1e-2,
    "scores / q·k is within this tolerance of 1, and the family has no scaling factor of its own",
    "q·k grows with √d_head (Vaswani et al. 2017, §3.2.1); rounding of bfloat16 is below 1%.",
)
def unscaled(state: TrainingHistory, limit: float) -> Iterator[Found]:
    if state.setting.has_own_scale:
        return
    for layer, measures in state.now.layers.items():
        full = math.sqrt(state.setting.d_head.get(layer, 1))
        if full >= 2 and abs(measures["score_factor"] / full - 1) < limit:
            yield layer, None, f"Its scores are q·k without the factor 1/√d_head = {1 / full:.3g}."


@rule(
    1.5,
    "the standard deviation over keys of the scores of an untrained model is above this",
    "Common initialisations give 0.01 to 1; at 1.5 the largest of 64 keys has 30 times the uniform weight.",
)
def saturated_at_start(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """A model counts as untrained if its loss is near ln n or above, the loss of a uniform prediction."""
    if len(state.probes) > 1 or not state.now.loss > 0.9 * math.log(max(2, state.setting.n_outputs)):
        return
    for layer, measures in state.now.heads.items():
        spread = _median(measures["score_spread"])
        if spread > limit:
            what = f"The scores of a query have a standard deviation of {spread:.2g} before training (limit {limit:g})"
            yield layer, None, f"{what}: is the factor 1/√d_head missing, or are the weights too large?"


@rule(
    100.0,
    "the largest score is above this",
    "The limit of MuonClip (Kimi K2, arXiv:2507.20534, §2.1); healthy runs here stay below 45.",
)
def score_explosion(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, head, value in _above(state, "score_max", limit):
        if math.isfinite(value):
            what = f"Its largest score is {value:.4g}, above {limit:g}"
            yield layer, head, f"{what}; softmax has almost no gradient there."


@rule(
    0.1,
    "all heads of a layer fall below this normalised entropy within five probes, and the loss does not fall",
    "Zhai et al. 2023, arXiv:2303.06296: collapse comes with a rising loss; sharp heads alone are healthy.",
)
def entropy_collapse(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """Sharp heads are common in trained models, but not a layer whose heads all turn sharp while the loss does not fall."""
    for layer, measures in state.now.heads.items():
        now = measures["entropy_p50"]
        if not np.isfinite(now).all() or now.max() >= limit:
            continue
        earlier = [one for one in state.probes[-6:-1] if float(np.median(one.heads[layer]["entropy_p50"])) > 4 * limit]
        if not earlier:
            continue
        then, loss = state.loss_at(earlier[-1].step), state.loss_at(state.now.step)
        if loss > 0.98 * then:
            what = f"The median entropy of all its heads has fallen below {limit:g} since step {earlier[-1].step:,}"
            yield layer, int(now.argmin()), f"{what}, but the loss has not fallen ({then:.3g} → {loss:.3g})."


@rule(
    1e-3,
    "a previously active head adds less than this share of its layer's median to the stream",
    "Heads of trained models differ by less than a factor of 100.",
)
def dead_head(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, measures in state.now.heads.items():
        now = measures["output_norm"]
        usual = _median(now)
        for head in np.flatnonzero(now <= limit * usual) if usual > 0 else ():
            alive = [one for one in state.probes[:-1] if _share(one, layer, int(head)) > 100 * limit]
            if alive:
                what = f"Its output has a norm of {now[head]:.2g}, the median head of its layer {usual:.2g}"
                yield layer, int(head), f"{what}; it was alive at step {alive[-1].step:,}."
                break


def _share(probe: Measurement, layer: str, head: int) -> float:
    """The norm of a head's output as a multiple of its layer's median."""
    norms = probe.heads[layer]["output_norm"]
    usual = _median(norms)
    return float(norms[head]) / usual if usual > 0 else 0.0


@rule(
    1e-5,
    "two heads of a layer have equal scores and patterns up to this relative difference",
    "The rounding error of float32; heads that start differently do not become equal.",
)
def identical_heads(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, measures in state.now.heads.items():
        # All-equal scores give equal patterns without equal weights, so a minimum spread is required.
        near = np.flatnonzero((measures["twin_distance"] < limit) & (measures["score_spread"] > 100 * limit))
        scores = np.stack([measures["score_max"], measures["score_spread"]], axis=1)  # [head, 2]
        for one, two in combinations(near, 2):
            if np.allclose(scores[one], scores[two], rtol=limit, atol=0):
                what = f"Heads {one} and {two} have the same scores and the same pattern"
                yield layer, int(one), f"{what}: one of them is redundant."
                break


@rule(
    1e-9,
    "the gradient of W_Q, W_K, W_V or W_O is below this share of the layer's largest in two probes",
    "Gradients of healthy projections differ by less than a factor of 10⁵.",
)
def frozen_projection(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """Two probes are needed: if one matrix starts at 0, the first gradient of others is 0 in a correct model as well."""
    known = _with_gradients(state)[-2:]
    if len(known) < 2 or state.setting.has_adapters:
        return
    for layer in state.now.layers:
        gradients = [{letter: one.layers[layer][f"grad_{letter}"] for letter in "qkvo"} for one in known]
        largest = [max(norms.values()) for norms in gradients]
        for letter in "qkvo":
            if all(norms[letter] <= limit * most and most > 0 for norms, most in zip(gradients, largest, strict=True)):
                what = f"W_{letter.upper()} gets no gradient, but the largest in its layer is {largest[-1]:.2g}"
                yield layer, None, f"{what}: it is frozen or detached."


@rule(
    10.0,
    "the norm of the stream is this many times the norm at the previous probe and at the first",
    "Healthy norms grow by less than a factor of 3 between probes.",
)
def stream_explosion(state: TrainingHistory, limit: float) -> Iterator[Found]:
    if len(state.probes) < 2:
        return
    first, before = state.probes[0], state.probes[-2]
    for layer, measures in state.now.layers.items():
        now, then = measures["stream_norm"], before.layers[layer]["stream_norm"]
        if math.isfinite(now) and then > 0 and now > limit * max(then, first.layers[layer]["stream_norm"]):
            yield layer, None, f"The norm of its stream grew from {then:.3g} at step {before.step:,} to {now:.3g}."
            return


@rule(
    0.25,
    "this share of all attention changes between probes, twice in a row, and the loss does not fall",
    "In healthy runs less attention moves, or the loss falls meanwhile.",
)
def unstable_attention(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """Patterns may change fast while the loss falls. Large changes without a falling loss are not learning."""
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
    "the largest gradient of W_Q and W_K is below this share of its first value, and the loss is above half of its first value",
    "Healthy attention gradients stay within a factor of 100 of the first while the loss is high.",
)
def stalled_attention(state: TrainingHistory, limit: float) -> Iterator[Found]:
    """No gradient reaches Q and K although the loss stays high. In a converged model the loss is low instead."""
    known, losses = _with_gradients(state), [loss for _, loss in state.losses[:10]]
    if len(known) < 3 or not losses or state.setting.has_adapters:
        return
    then, now = (
        max(np.nanmax([measures["grad_q"], measures["grad_k"]]) for measures in one.layers.values())
        for one in (known[0], known[-1])
    )
    loss = state.loss_at(state.now.step)
    if now < limit * then and loss > 0.5 * float(np.median(losses)):
        what = f"The largest gradient of W_Q and W_K fell from {then:.2g} at step {known[0].step:,} to {now:.2g}"
        yield "", None, f"{what} while the loss is still {loss:.3g}: attention has stopped learning."


@rule(
    0.9,
    "more than this share of a layer's neurons is inactive, and less than half of this share was at first",
    "Healthy ReLU layers here stay below 80%.",
)
def dead_neurons(state: TrainingHistory, limit: float) -> Iterator[Found]:
    for layer, measures in state.now.layers.items():
        now, then = measures["inactive_neurons"], state.probes[0].layers[layer]["inactive_neurons"]
        if now > limit and then < limit / 2:
            yield layer, None, f"{now:.0%} of its neurons are inactive, up from {then:.0%} at the first probe."


@rule(
    5.0,
    "three losses in a row exceed the median of 50 by this many robust standard deviations and by 10% of the first loss",
    "With three losses in a row, the noise of small batches stays below 3.",
)
def loss_spike(state: TrainingHistory, limit: float) -> Iterator[Found]:
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


def _largest_change(state: TrainingHistory) -> Found:
    """The measure of a head that changed by the largest factor between the last two probes, as a sentence."""
    best, found = 0.0, ("", None, "No earlier probe shows a change.")
    for layer, measures in state.now.heads.items() if len(state.probes) > 1 else ():
        for name in ("score_max", "score_spread", "output_norm"):
            then, now = np.abs(state.probes[-2].heads[layer][name]) + 1e-3, np.abs(measures[name]) + 1e-3
            ratio = np.nan_to_num(np.abs(np.log(now / then)), nan=0.0, posinf=0.0)
            if ratio.max() > best:
                best, head = float(ratio.max()), int(ratio.argmax())
                change = f"{name} of {layer}, head {head}: {then[head]:.3g} → {now[head]:.3g}"
                found = layer, head, f"The largest change before it is {change}."
    return found


def thresholds_of(changed: Mapping[str, float | None] | None) -> dict[str, float]:
    """The thresholds of all rules that are on. Raises `ConfigError` for an unknown rule."""
    changed = dict(changed or {})
    for name in changed:
        if name not in RULES:
            raise ConfigError(f"The key of a threshold must be one of {', '.join(RULES)}, got {name!r}.")
    found = {name: changed.get(name, rule.threshold) for name, rule in RULES.items()}
    return {name: value for name, value in found.items() if value is not None}


def raised(state: TrainingHistory, thresholds: Mapping[str, float], known: set[tuple[str, str]]) -> list[Alarm]:
    """The new alarms of the last probe. Each rule is raised only once per layer.

    Args:
        state: The probes and losses so far.
        thresholds: From `thresholds_of`.
        known: The (rule, layer) pairs of earlier alarms; new pairs are added.
    """
    found = []
    for name, limit in thresholds.items():
        for layer, head, reason in RULES[name].check(state, limit):
            if (name, layer) not in known:
                known.add((name, layer))
                found.append(Alarm(name, state.now.step, layer, head, reason, state.now.step))
    return found
