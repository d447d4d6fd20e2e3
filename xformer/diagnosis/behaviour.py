"""Checks of what a model does on other inputs: other tokens, padding, batches and orders, and the same input twice.

Each compares two runs that must be equal, in double precision: rounding leaves about 10⁻¹³ of a score, a wrong dependence far
more than the limit of 10⁻⁸. Where the code of a model insists on single precision the limit is 10⁻⁴. The fused path is
compared with the recorded one in the model's own precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.diagnosis.case import Finding, error, relative
from xformer.layers.attention import Cache
from xformer.model import Transformer
from xformer.trace import Trace, record


@dataclass(frozen=True, eq=False)
class Examination:
    """Inputs as `record` takes them. Of images `valid` is [batch, 1 + patch], true throughout."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]
    target: Int[Tensor, "batch target"] | None = None
    target_valid: Bool[Tensor, "batch target"] | None = None

    @property
    def out_valid(self) -> Bool[Tensor, "batch out"]:
        """Which cells of what is answered are tokens."""
        return self.valid if self.target_valid is None else self.target_valid

    def record(self, model: Transformer) -> Trace:
        """The recorded run of a model on them."""
        valid = None if model.config.image else self.valid  # images have no padding
        return record(model, self.tokens, self.target, valid=valid, target_valid=self.target_valid)

    def run(self, model: Transformer) -> Float[Tensor, "batch out vocab"]:
        """The scores of a run that is not recorded. Where nothing is padded, no mask of padding is given."""
        if model.config.image or bool(self.valid.all() and self.out_valid.all()):
            return model(self.tokens, self.target)
        return model(self.tokens, self.target, valid=self.valid, target_valid=self.target_valid)

    def rows(self, which: Int[Tensor, " row"]) -> Examination:
        """Some of the inputs, in that order."""
        target, valid = self.target, self.target_valid
        return Examination(
            self.tokens[which],
            self.valid[which],
            None if target is None else target[which],
            None if valid is None else valid[which],
        )

    def row(self, index: int) -> Examination:
        """One input alone, without its padding."""
        return self.rows(torch.tensor([index])).each(_cut)

    def each(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Examination:
        """The inputs with their source, and their target where there is one, changed."""
        if self.target is None or self.target_valid is None:
            return Examination(*change(self.tokens, self.valid))
        return Examination(*change(self.tokens, self.valid), *change(self.target, self.target_valid))

    def with_longer_source(self, config: ModelConfig) -> Examination | None:
        """More padding behind the source; where the model has no room for it, behind the target; None without room."""
        if self.target is None or self.target_valid is None:
            return None
        pad = config.pad_token
        if (room := config.max_len - self.tokens.shape[1]) > 0:
            more = min(3, room)
            return replace(self, tokens=F.pad(self.tokens, (0, more), value=pad), valid=F.pad(self.valid, (0, more)))
        if (room := config.max_len - self.target.shape[1]) > 0:
            more = min(3, room)
            target = F.pad(self.target, (0, more), value=pad)
            return replace(self, target=target, target_valid=F.pad(self.target_valid, (0, more)))
        return None

    def with_other_token(self, at: int, config: ModelConfig) -> Examination:
        """Another token at one position of what is answered."""
        if self.target is not None:
            return replace(self, target=_other(self.target, at, config))
        return replace(self, tokens=_other(self.tokens, at, config))

    def with_other_padding(self, config: ModelConfig) -> Examination:
        """Another token in every padded cell."""
        other = (config.pad_token + 1) % config.vocab_size
        tokens = self.tokens.masked_fill(~self.valid, other)
        if self.target is None or self.target_valid is None:
            return replace(self, tokens=tokens)
        return replace(self, tokens=tokens, target=self.target.masked_fill(~self.target_valid, other))


def _cut(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    if valid.shape != tokens.shape:  # of an image
        return tokens, valid
    return tokens[:, valid[0]], valid[:, valid[0]]


def _to_the_right(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    turned = torch.argsort(valid.long(), dim=1, stable=True)  # padding first, tokens in their order behind it
    return tokens.gather(1, turned), valid.gather(1, turned)


def _other(tokens: Tensor, at: int, config: ModelConfig) -> Tensor:
    changed = tokens.clone()
    changed[:, at] = (changed[:, at] + 1) % config.vocab_size
    return changed


DOUBLE_LIMIT, SINGLE_LIMIT = 1e-8, 1e-4
N_ALONE = 4
"""Inputs that are run on their own: enough for different lengths."""
MOST_TOKENS = 256
"""In the batches that are compared (but never fewer than `N_ALONE` inputs): one wrong row is enough."""
SLOPE_LIMIT = 1e-3
"""A central difference of step 10⁻⁶ in double precision knows a slope to about 10⁻⁷; a ReLU that closes on the way adds a
little; a gradient that is cut anywhere is off by its share of the whole."""


@dataclass(frozen=True, eq=False)
class Examined:
    """The model, its inputs, and how far apart equal runs may be."""

    model: Transformer
    plain: Transformer
    """The model in its own precision."""
    inputs: Examination
    limit: float

    def logits(self, inputs: Examination) -> Tensor:
        """Not recorded, as it is trained and used."""
        return inputs.run(self.model)

    @property
    def out_valid(self) -> Tensor:
        return self.inputs.out_valid


Differences = Iterator[float]
"""How far apart runs are that should be equal, relative to the scores."""


@dataclass(frozen=True)
class Behaviour:
    """One thing that a model should do, and the name of its not doing so."""

    kind: str
    rule: str
    apart: Callable[[Examined], Differences]
    limit: float | None = None


def future(of: Examined) -> Differences:
    """Another token changes no score before it."""
    config, inputs = of.model.config, of.inputs
    if not config.causal:
        return
    before = of.logits(inputs)
    n = of.out_valid.shape[1]
    for at in sorted({1, n // 2, n - 1} - {0}):
        after = of.logits(inputs.with_other_token(at, config))
        seen = of.out_valid[:, :at]
        if bool(seen.any()):
            yield relative((after - before)[:, :at][seen], before[:, :at][seen])


def padding(of: Examined) -> Differences:
    """What stands in padded cells changes no score of a token."""
    if of.model.config.image or (of.inputs.valid.all() and of.out_valid.all()):
        return
    before, after = of.logits(of.inputs), of.logits(of.inputs.with_other_padding(of.model.config))
    yield relative((after - before)[of.out_valid], before[of.out_valid])


def alone(of: Examined) -> Differences:
    """An input in a padded batch scores as it does alone, be the padding behind it or before it."""
    if of.model.config.image:
        whole = of.logits(of.inputs)
        yield from (relative(of.logits(of.inputs.row(i))[0] - whole[i], whole[i]) for i in range(N_ALONE))
        return
    whole, moved = of.logits(of.inputs), of.inputs.each(_to_the_right)
    before = of.logits(moved)
    for i in range(min(N_ALONE, len(whole))):
        expected = of.logits(of.inputs.row(i))[0]
        yield relative(whole[i][of.out_valid[i]] - expected, expected)
        yield relative(before[i][moved.out_valid[i]] - expected, expected)


def neighbours(of: Examined) -> Differences:
    """The rows of a batch in another order score the same, in that order."""
    order = torch.arange(len(of.inputs.tokens)).flip(0)
    whole, turned = of.logits(of.inputs), of.logits(of.inputs.rows(order))
    valid = of.out_valid[order]
    yield relative((turned - whole[order])[valid], whole)


def widths(of: Examined) -> Differences:
    """More padding behind the source changes no score."""
    wider = of.inputs.with_longer_source(of.model.config)
    if wider is None:
        return
    n = of.out_valid.shape[1]
    before, after = of.logits(of.inputs), of.logits(wider)[:, :n]
    yield relative((after - before)[of.out_valid], before[of.out_valid])


def order(of: Examined) -> Differences:
    """Without positions and without a mask, tokens in another order score the same, in that order."""
    config = of.model.config
    if config.position_kind.acts_on != "nothing" or config.architecture != "encoder" or config.causal or config.image:
        return
    for i in range(min(N_ALONE, len(of.inputs.tokens))):
        one = of.inputs.row(i)
        there, rolled = of.logits(one), of.logits(Examination(one.tokens.roll(1, dims=1), one.valid))
        yield relative(rolled.roll(-1, dims=1) - there, there)


def again(of: Examined) -> Differences:
    """A second run is the first: nothing is drawn, and nothing is left behind."""
    first, _, second = of.logits(of.inputs), of.logits(of.inputs.row(0)), of.logits(of.inputs)
    yield relative((second - first)[of.out_valid], first[of.out_valid])


def unrecorded(of: Examined) -> Differences:
    """The run that is trained is the run that is shown, in the model's own precision: padded, and one row without padding."""
    for inputs in (of.inputs, of.inputs.row(0)):
        fast, recorded, valid = inputs.run(of.plain), inputs.record(of.plain).logits, inputs.out_valid
        yield relative((fast - recorded)[valid], recorded[valid])


def cached(of: Examined) -> Differences:
    """Decoding token by token from a cache gives the scores of the whole run."""
    config = of.model.config
    if config.architecture == "encoder" or not config.position_kind.keeps_keys:
        return
    one = of.inputs.row(0)
    whole = of.logits(one)
    memory = of.model.encode(one.tokens) if one.target is not None else None
    cache = Cache.empty(config.n_layers)
    tokens = one.tokens if one.target is None else one.target
    steps = [of.model.extend(tokens[:, i : i + 1], cache, memory) for i in range(tokens.shape[1])]
    yield relative(torch.cat(steps, dim=1) - whole, whole)


def gradients(of: Examined) -> Differences:
    """The gradient is the slope: along a random direction for each weight, against a difference of two runs."""
    if of.limit != DOUBLE_LIMIT:
        return
    model = copy.deepcopy(of.model).requires_grad_(True)
    one = of.inputs.rows(torch.arange(min(N_ALONE, len(of.inputs.tokens))))
    draw = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        logits = one.run(model)
        weight = torch.randn(logits.shape, generator=draw, dtype=logits.dtype)
        named = list(model.parameters())
        found = torch.autograd.grad((logits * weight).sum(), named, allow_unused=True)
    ways = [torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in named]
    ways = [way * p.norm().clamp(min=1.0) / way.norm().clamp(min=1e-12) for way, p in zip(ways, named, strict=True)]
    parts = [0.0 if g is None else (g * way).sum().item() for g, way in zip(found, ways, strict=True)]
    ends = []
    for step in (1e-6, -1e-6):
        for p, way in zip(named, ways, strict=True):
            p.data.add_(way, alpha=step)
        ends.append((one.run(model) * weight).sum().item())
        for p, way in zip(named, ways, strict=True):
            p.data.sub_(way, alpha=step)
    slope = (ends[0] - ends[1]) / 2e-6
    size = max(abs(slope), sum(part**2 for part in parts) ** 0.5)
    yield abs(slope - sum(parts)) / size if size else 0.0


BEHAVIOURS = (
    Behaviour("differs-again", "the same input twice gives the same scores", again),
    Behaviour("sees-the-future", "a later token changes no earlier score", future),
    Behaviour("sees-padding", "what stands in padded cells changes nothing", padding),
    Behaviour("differs-alone", "an input scores the same alone and in a padded batch, padded behind or before", alone),
    Behaviour("differs-with-source-length", "more padding behind the source changes nothing", widths),
    Behaviour("mixes-the-batch", "the rows of a batch in another order score the same", neighbours),
    Behaviour("order-in-a-set", "without positions, tokens in another order score the same", order),
    Behaviour("differs-unrecorded", "an unrecorded run, as in training, is the recorded one", unrecorded, SINGLE_LIMIT),
    Behaviour("differs-from-cache", "token by token from a cache scores as the whole run does", cached),
    Behaviour("gradient-is-no-slope", "the gradient of all weights is the slope of the scores", gradients, SLOPE_LIMIT),
)


@torch.no_grad()
def check_behaviours(model: Transformer, inputs: Examination) -> tuple[list[Finding], dict[str, int]]:
    """One finding for each behaviour that is not as it should be, and how many pairs of runs were compared for each."""
    few = max(N_ALONE, MOST_TOKENS // inputs.tokens.shape[1])
    subject, found, looked = _examined(model, inputs.rows(torch.arange(min(few, len(inputs.tokens))))), [], {}
    for behaviour in BEHAVIOURS:
        try:
            differences = list(behaviour.apart(subject))
        except RuntimeError as failure:  # of shapes that the recorded run does not have
            sentence = f"Right is: {behaviour.rule}. Here the model fails: {str(failure).splitlines()[0]}"
            found.append(error(behaviour.kind, "logits", sentence))
            continue
        looked[behaviour.kind] = len(differences)
        limit = behaviour.limit or subject.limit
        worst = max((float("inf") if d != d else d for d in differences), default=0.0)
        if worst > limit:
            sentence = (
                f"Right is: {behaviour.rule}. Here runs that should be equal differ by {worst:.2g} of the scores."
            )
            found.append(error(behaviour.kind, "logits", sentence, {"apart": worst, "limit": limit}))
    return found, looked


def _examined(model: Transformer, inputs: Examination) -> Examined:
    double = copy.deepcopy(model).double().eval()
    try:
        inputs.row(0).run(double)
    except RuntimeError:  # somewhere its code makes a float32 of its own
        return Examined(model, model, inputs, SINGLE_LIMIT)
    return Examined(double, model, inputs, DOUBLE_LIMIT)
