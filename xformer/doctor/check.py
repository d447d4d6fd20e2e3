"""Checks and their findings. A check is a rule on which pairs of runs should agree, where it applies.

    @check("causality", "changing a later token changes no earlier output")
    def causality(context: CheckContext) -> Finding:
        ...
        return context.compare(pairs, "…", "…", "…")

Importing a module of `xformer/doctor/checks` registers its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.doctor.formulas import Formula, formulas
from xformer.doctor.model_call import TENSORS, ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import stepwise
from xformer.errors import UnavailableError

Verdict = Literal["holds", "broken", "unusual", "not applicable", "could not run"]

LIMIT = 20.0
"""Largest difference, in rounding floors, between runs that count as equal."""
MIN_FLOOR, MAX_FLOOR = 16, 512
"""Bounds of the rounding floor, in units of the weights' machine epsilon.

Without the upper bound, a model that mixes the rows of a batch would raise its own floor and pass.
"""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two calls of a model, and the positions at which they should agree.

    Attributes:
        first: The reference call.
        second: The call that is compared with it.
        at: The compared positions of the first call, as indices into `ModelCall.read`.
        at_second: The corresponding positions of the second call; None: the same indices.
        row_second: The compared row of the second call; the first call has one row.
        title: A human-readable description of what the second call changes: "token 5 changed from 9 to 3".
        second_model: The model of the second call; None: the same model.
    """

    first: ModelCall
    second: ModelCall
    at: Sequence[int]
    at_second: Sequence[int] | None = None
    row_second: int = 0
    title: str = ""
    second_model: TokenModel | None = None

    @property
    def positions(self) -> tuple[list[int], list[int]]:
        """The compared positions in the first and in the second call."""
        return list(self.at), list(self.at if self.at_second is None else self.at_second)


CAUSES = {
    "q": "the queries",
    "k": "the keys",
    "v": "the values",
    "mask": "the mask",
    "scores": "the scores",
    "pattern": "the softmax",
    "rows": "attention over the rows of the batch, not over the positions",
    "z": "the weighted sum of the values",
    "positions": "the positions",
    "norm": "the norm",
    "out": "the output projection",
    "embedding": "the embedding",
    "feed-forward": "the feed-forward layer",
    "residual": "the residual sum",
    "output": "the output layer",
}
"""Human-readable names of the first wrong component of a layer."""


@dataclass(frozen=True, eq=False)
class FaultLocation:
    """The location where two runs first differ.

    Attributes:
        name: The first activation, or module, that differs.
        cause: The earliest cause, a key of `CAUSES`, "input" for the input of the module, or "" if only the module is known.
        layer: The layer, from 0; None outside the layers.
        head: The head, from 0; None if no single head is at fault.
        query: The query's position in the first run.
        key: The key's position in the run whose attention pattern is shown.
        pattern: The attention pattern of that head in that run, [query, key].
        labels: The token ids of that run, one for each key.
    """

    name: str
    cause: str
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None
    pattern: Float[Tensor, "query key"] | None = None
    labels: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """A human-readable description; layers and heads count from 0, as in the table."""
        what = self.what
        if self.layer is None:
            return f"First seen in {what}." if what else ""
        where = f"layer {self.layer}" + ("" if self.head is None else f", head {self.head}")
        cell = "" if self.key is None else f", where query {self.query} attends to key {self.key}"
        return f"First seen in {where}{cell}{': ' if what else ''}{what}."

    @property
    def what(self) -> str:
        """The component: one with a common name, or a module by its path; "" if it is not known."""
        if self.cause in CAUSES:
            return CAUSES[self.cause] + (f" ({self.name})" if self.name and self.layer is None else "")
        if not self.name:
            return ""
        return f"the input of {self.name}" if self.cause == "input" else self.name


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of one check.

    Attributes:
        verdict: "holds", "broken", "unusual" (legal, but not what most models of its kind do), "not applicable" or "could not
            run".
        sentence: The result, or why the check was not done, in one sentence, which leaves the layer and head to `place`.
        remedy: What to look for in the code, if the verdict is "broken".
        size: The largest difference, relative to the spread of the outputs.
        floor: The difference that rounding alone causes, relative to the spread of the outputs.
        pair: The two runs with the largest difference.
        place: The location of the fault; None if nothing is broken or it could not be located.
        cause: What is wrong or unusual, a key of `CAUSES_OF_FORMULAS` or `CAUSES_OF_CHECKS`; "" if it has no name.
        line: The line of code where it is, as "model.py:38"; "" if it is not known.
        formulas: What the attentions compute, for the check `formula`.
        check: The name of the check.
    """

    verdict: Verdict
    sentence: str
    remedy: str = ""
    size: float | None = None
    floor: float | None = None
    pair: Pair | None = None
    place: FaultLocation | None = None
    cause: str = ""
    line: str = ""
    formulas: tuple[Formula, ...] = ()
    check: str = ""

    @property
    def title(self) -> str:
        """The human-readable name of the check."""
        return self.check.replace("_", " ")

    @property
    def whole_sentence(self) -> str:
        """The sentence and the location, which formulas state themselves; layers and heads count from 0."""
        if self.place is None or self.formulas:
            return self.sentence
        return f"{self.sentence} {self.place.sentence}".rstrip()

    def row(self) -> dict[str, Any]:
        """Return the finding as a row of `Diagnosis.table`."""
        values = vars(self) | {name: getattr(self.place, name, None) for name in CELL}
        values["sentence"] = self.whole_sentence
        return {name: values[name] for name in COLUMNS}


CELL = ("layer", "head", "query", "key")
COLUMNS = ("check", "verdict", "cause", "line", "size", "floor", *CELL, "sentence", "remedy")
CAUSES_OF_CHECKS = {
    "window_off_by_one": "the sliding window is one key wider or narrower than it is said to be",
    "cache_offset": "the positions of the new tokens do not start at the number of cached ones",
    "cache_not_updated": "the keys or values of cached tokens are not read",
    "cache_keys_values_swapped": "the cache returns the values of a token as its keys",
    "cache_in_wrong_order": "the cached keys come after the new ones",
    "cache_evicted_early": "a key leaves the cache while the window still covers it",
    "cache_not_masked": "with a cache, new tokens attend to later ones",
    "cache_mask_misaligned": "with a cache, the causal mask starts at another key",
    "padding_not_masked": "no mask hides padded keys",
    "padding_on_queries": "the padding mask hides the rows of queries, not the columns of keys",
    "padding_inverted": "the padding mask hides the tokens and shows the padding",
    "padding_in_head_order": "the padding mask is repeated in the order [head, batch]",
    "positions_from_padding": "positions count the padding on the left",
    "cross_attention_from_decoder": "attention to the encoder reads the decoder's own stream",
    "targets_not_shifted": "the loss scores each output on its own input",
    "targets_shifted_twice": "the loss scores each output on the token two positions later",
    "targets_shifted_back": "the loss scores each output on the token before it",
    "padding_in_loss": "padding counts in the loss",
    "softmax_before_loss": "the cross-entropy takes the softmax of probabilities",
    "loss_summed": "the loss is a sum over tokens",
    "initial_loss": "an untrained model is far worse than guessing",
}
"""What a check found, by identifier."""


def broken(
    sentence: str,
    remedy: str,
    size: float | None = None,
    floor: float | None = None,
    *,
    cause: str = "",
    name: str = "",
    **at: Any,
) -> Finding:
    """Return a finding of a broken rule; `name` and `at` (layer, head, query, key and pattern) are its location."""
    place = FaultLocation(name, cause, **at) if cause or at.get("layer") is not None else None
    return Finding("broken", sentence, remedy, size, floor, place=place)


class NotApplicableError(Exception):
    """The rule does not apply to this model."""


def assume(condition: object, otherwise: str) -> None:
    """End the check as not applicable unless the condition holds; `otherwise` is the reason."""
    if not condition:
        raise NotApplicableError(otherwise)


@dataclass(frozen=True, eq=False)
class CheckContext:
    """A model being checked, with the results that its checks share."""

    model: TokenModel
    spec: str | tuple[Formula, ...] = ""
    """What the model is meant to be: one of `ARCHITECTURES`, "attention" for its attention alone, or the formulas of a
    reference; "" if that is not known."""
    reference: TokenModel | None = None
    """The module that the model is compared with, on the same input; None if there is none."""

    @property
    def has_same_weights(self) -> bool:
        """Whether the reference has weights of the same names and sizes, so that outputs can be compared."""
        other = self.reference
        return other is not None and sizes_of(self.model.module) == sizes_of(other.module)

    @cached_property
    def floor(self) -> float:
        """The difference caused by rounding, relative to the spread of the outputs: one input in several batches."""
        model, base = self.model, self.model.base
        eps = model.eps
        other = base.with_read(model.other_tokens(base.read))
        distances = []
        for rows, at in (([base, other], 0), ([other, base], 1), ([other, other, base], 2)):
            distances.append(distance(model.base_logits[0], model.logits(stacked(rows))[at]))
        return min(max(*distances, MIN_FLOOR * eps), MAX_FLOOR * eps)

    @cached_property
    def change_when_repeated(self) -> float:
        """The distance between the outputs of two calls with the same input."""
        model = self.model
        return distance(model.base_logits, model.logits(replace(model.base, seed=1)))

    @cached_property
    def formulas(self) -> tuple[Formula, ...]:
        """What the attentions compute, on the path with an explicit softmax; see `formulas`."""
        model = stepwise(self.model)
        run = model.shortened(16)
        with suppress(Exception):  # two rows tell the batch from the rest; a model may refuse or mix them
            found = tuple(formulas(model, stacked([run, run.with_read(model.other_tokens(run.read))])))
            if any(one.cause or one.part in ("scale", "softmax") for one in found):
                return found
        return tuple(formulas(model, run))

    @property
    def outputs(self) -> range:
        """All output positions."""
        return range(self.model.base_logits.shape[1])

    @property
    def limit(self) -> float:
        """The largest difference that counts as rounding."""
        return LIMIT * self.floor

    def need_determinism(self) -> None:
        """Raise `UnavailableError` if the model is not deterministic, so that its runs cannot be compared."""
        if self.change_when_repeated > self.limit:
            raise UnavailableError("Repeating the same input gives different outputs, so runs cannot be compared.")

    def apart(self, pair: Pair, cache: dict[int, Tensor] | None = None) -> float:
        """Return the distance between the outputs of two runs at the compared positions, see `distance`.

        Args:
            pair: The two runs.
            cache: Outputs of earlier runs, by the id of the run; the first run's are added.
        """
        cache = {} if cache is None else cache
        if id(pair.first) not in cache:
            cache[id(pair.first)] = self.model.logits(pair.first)
        at, at_second = pair.positions
        second = (pair.second_model or self.model).logits(pair.second)
        return distance(cache[id(pair.first)][0, at], second[pair.row_second][at_second])

    def compare(self, pairs: Sequence[Pair], holds: str, broken: str, remedy: str) -> Finding:
        """Compare pairs of runs that should agree, and return a finding about the worst pair.

        Args:
            pairs: At least one pair.
            holds: The sentence if all pairs agree.
            broken: The sentence otherwise; "{title}" is replaced by the pair's title, "{by}" by the difference ("by 12%").
            remedy: What to look for in the code.
        """
        cache = {id(self.model.base): self.model.base_logits}  # many pairs share a run
        sizes = [self.apart(pair, cache) for pair in pairs]
        return self.finding(pairs, sizes, holds, broken, remedy)

    def finding(self, pairs: Sequence[Pair], sizes: Sequence[float], holds: str, broken: str, remedy: str) -> Finding:
        """As `compare`, for differences that are already known.

        Raises:
            UnavailableError: The model is not deterministic, so its runs cannot be compared.
        """
        self.need_determinism()
        worst = max(range(len(pairs)), key=lambda i: sizes[i])
        size = sizes[worst]
        if size <= self.limit:
            return Finding("holds", holds, size=size, floor=self.floor)
        sentence = broken.format(title=pairs[worst].title, by=by(size))
        return Finding("broken", sentence, remedy, size, self.floor, pairs[worst])


def sizes_of(module: nn.Module) -> dict[str, torch.Size]:
    """The sizes of all weights and statistics of a module, by name; a weight with two names is in it twice."""
    statistics = {name: one for name, one in module.named_buffers() if name.endswith(("running_mean", "running_var"))}
    weights = dict(module.named_parameters(remove_duplicate=False)) | statistics
    return {name: one.shape for name, one in weights.items()}


def distance(first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"]) -> float:
    """Return the largest difference, relative to the spread of the first; ∞ if only one of them is finite somewhere."""
    if first.shape != second.shape:
        return float("inf")
    if first.numel() == 0:
        return 0.0
    first, second = first.double(), second.double().to(first.device)
    if not torch.equal(first.isfinite(), second.isfinite()):
        return float("inf")
    first, second = first.nan_to_num(0.0, 0.0, 0.0), second.nan_to_num(0.0, 0.0, 0.0)
    spread = float((first - first.mean(dim=-1, keepdim=True)).abs().max())
    return float((first - second).abs().max()) / max(spread, 1e-30)


def share(size: float) -> str:
    """Format a relative difference as a percentage: "12%", "0.03%"."""
    return f"{100 * size:.2g}%" if size < 1 else f"{100 * size:.0f}%"


def by(size: float) -> str:
    """Format a change: "by 12%", or in words where only one of two outputs is finite or their shapes differ."""
    return f"by {share(size)}" if isfinite(size) else "beyond comparison (NaN, infinity or another shape)"


def count(n: int, noun: str) -> str:
    """Format a number of things: "1 token", "2 tokens"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def stacked(runs: Sequence[ModelCall]) -> ModelCall:
    """Stack several calls of equal shape as the rows of one call."""

    def rows(name: str) -> Tensor | None:
        values = [getattr(run, name) for run in runs]
        return None if values[0] is None else torch.cat(values)

    return replace(runs[0], **{name: rows(name) for name in TENSORS})


@dataclass(frozen=True)
class Check:
    """A registered check."""

    name: str
    rule: str
    """What must hold, as a clause: "changing a later token changes no earlier output"."""
    run: Callable[[CheckContext], Finding]


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def check(name: str, rule: str) -> Callable[[Callable[[CheckContext], Finding]], Callable[[CheckContext], Finding]]:
    """Register a check."""

    def register(run: Callable[[CheckContext], Finding]) -> Callable[[CheckContext], Finding]:
        CHECKS[name] = Check(name, rule, run)
        return run

    return register
