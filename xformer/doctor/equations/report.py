"""Diagnose an xformer model from the trace of one run: what is wrong, where, and by how much.

    check_trace(record(model, tokens)).mistakes            [] for a correct model, fresh or trained
    check_trace(record(broken, tokens)).mistakes[0].kind   the bug's name in `xformer.doctor.faults`, if it has one
    check_model(model).mistakes                            the same for a run on inputs chosen to reveal most bugs

Every step is recomputed (`IDENTITIES`): a correct run satisfies each identity up to rounding, with any weights. If one is
broken, known mistakes are tried by name (`STEPS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.doctor.equations.attention import (
    check_future,
    check_padding,
    check_scores,
    check_softmax,
    masks,
    mixes,
    outputs,
    patterns,
    projections,
    scores,
)
from xformer.doctor.equations.case import Case, Deviation, Mistake, error, tokens_that_count
from xformer.doctor.equations.projections import check_clones, check_projections
from xformer.doctor.equations.stream import (
    activations,
    between_layers,
    check_additions,
    check_residual,
    embeddings,
    final_norms,
    first_streams,
    hidden,
    inputs,
    logits,
    second,
    sums,
)
from xformer.doctor.equations.whole_run import (
    check_finite,
    check_gate,
    check_heads,
    check_init,
    check_logits,
    check_neurons,
    check_positions,
    positions,
    turns,
)
from xformer.errors import InputError
from xformer.layers.masks import SequencePacking
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.trace import Trace, record

STEPS = (
    check_softmax,
    check_projections,
    check_scores,
    check_future,
    check_padding,
    check_residual,
    check_gate,
    check_logits,
)
"""Checks that name the cause of a broken step, causes before their consequences."""
OTHERS = (check_positions, check_neurons, check_init, check_heads, check_clones, check_additions)
"""Checks for mistakes that break no step."""

OF_THE_WEIGHTS = {
    "init_too_large", "init_too_small", "identical_heads", "uniform_heads", "dead_neurons",
    "cloned_layers", "adds_nothing",
}  # fmt: skip
"""Mistakes about the weights. They explain no broken step, because correct code computes every step with any weights."""

RANK = {"error": 0, "warning": 1, "note": 2}


@torch.no_grad()
def check_trace(
    trace: Trace,
    *,
    valid: Bool[Tensor, "batch pos"] | None = None,
    target_valid: Bool[Tensor, "batch target"] | None = None,
    model: Transformer | None = None,
) -> EquationReport:
    """Check every equation of a recorded run.

    A check is skipped if its activations were not recorded or the rows are too few to decide; a padded batch of different
    inputs reveals most. NaN spreads to everything after it, so it is then the only mistake.

    Args:
        trace: The run; it needs the attention patterns.
        valid: True where there is a token, [batch, pos]. By default taken from the trace; if the trace has none, runs of the
            configuration's padding token at the ends of a row are padding.
        target_valid: The same for the target, [batch, target].
        model: The model, to recompute each step with its weights; without it, with the best-fitting weights.

    Returns:
        The mistakes, errors first and one per kind with all its locations, and how often each equation was checked.

    Raises:
        InputError: `valid` does not fit the tokens, or the trace has no attention pattern.
    """
    if not trace.attention_layers():
        raise InputError("A diagnosis needs the attention patterns; record with keep=('*',), which is the default.")
    pad = trace.config.pad_token
    if trace.config.image:  # positions are the class token and the patches, never padding
        valid = torch.ones(len(trace.tokens), trace.config.max_len, dtype=torch.bool, device=trace.tokens.device)
    else:
        valid = _fit(trace.valid if valid is None else valid, trace.tokens, "valid", pad)
    kept = trace.target_valid if target_valid is None else target_valid
    target_valid = None if trace.target is None else _fit(kept, trace.target, "target_valid", pad)
    case = Case(trace, valid, target_valid, None if model is None else model.state_dict())
    if broken := list(check_finite(case)):
        return EquationReport(broken, {}, model is not None)
    steps, n_checked = check_identities(case)
    checks = (*STEPS, *OTHERS) if steps or model is None else OTHERS
    found = [mistake for check in checks for mistake in check(case)]
    found += [mistake for mistake in steps if not _is_explained(mistake, found)]
    return EquationReport(
        sorted(_by_kind(found), key=lambda mistake: RANK[mistake.severity]), n_checked, model is not None
    )


def too_few_rows(trace: Trace) -> bool:
    """Return whether there are too few tokens, at most d_model + 1, to decide from which stream q, k and v come."""
    sizes = [trace.tokens.numel(), *([] if trace.target is None else [trace.target.numel()])]
    return min(sizes) <= trace.config.d_model + 1


def mistakes_frame(mistakes: Iterable[Mistake]) -> pd.DataFrame:
    """Return a table with one row per mistake: severity, kind, where, finding, numbers (as text)."""
    rows = []
    for one in mistakes:
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in one.numbers.items())
        rows.append((one.severity, one.kind, ", ".join(one.where), one.sentence, numbers))
    return pd.DataFrame(rows, columns=["severity", "kind", "where", "finding", "numbers"])


def _fit(valid: Tensor | None, tokens: Tensor, name: str, pad: int) -> Tensor:
    if valid is None:
        return tokens_that_count(tokens, pad)
    if valid.shape != tokens.shape or valid.dtype != torch.bool:
        raise InputError(
            f"{name} must be boolean and shaped like the tokens, {list(tokens.shape)}, got {valid.dtype} "
            f"{list(valid.shape)}; for example {name} = tokens != 0."
        )
    return valid


def _is_explained(step: Mistake, found: list[Mistake]) -> bool:
    """Return whether a named mistake was found at the same location, which then explains the broken step."""
    place = step.where[0]
    return any(
        where == place or where.startswith(f"{place}.") or place.startswith(f"{where}.")
        for mistake in found
        if mistake.kind not in OF_THE_WEIGHTS
        for where in mistake.where
    )


def _by_kind(found: list[Mistake]) -> list[Mistake]:
    """Merge mistakes of the same kind into the first one, with all locations."""
    kinds: dict[str, Mistake] = {}
    for mistake in found:
        earlier = kinds.setdefault(mistake.kind, mistake)
        kinds[mistake.kind] = replace(earlier, where=tuple(dict.fromkeys((*earlier.where, *mistake.where))))
    return list(kinds.values())


@dataclass(frozen=True)
class Identity:
    """An equation, the kind of mistake if it is broken, and a function that measures it wherever a trace allows."""

    kind: str
    equation: str
    measure: Callable[[Case], Iterator[Deviation]]


IDENTITIES = (
    Identity("wrong_embedding", "each token’s embedding is its row of the table", embeddings),
    Identity("wrong_positions", "a position’s vector is that of its index from the sequence’s first token", positions),
    Identity("wrong_start", "the first layer reads embedding + position", first_streams),
    Identity("wrong_order", "each layer reads the output of the one before", between_layers),
    Identity("wrong_input", "each sublayer reads the stream (pre-norm: the normalised stream)", inputs),
    Identity("wrong_projection", "q, k, v = x W + b, each from its own row and stream", projections),
    Identity("wrong_rotary", "rotations of queries and keys, and score biases, match the position encoding", turns),
    Identity("wrong_scores", "scores = q·k/√d_head (+ bias), −∞ where masked", scores),
    Identity("wrong_mask", "the mask matches the configuration and the padding", masks),
    Identity("wrong_pattern", "pattern = softmax(scores) over the keys", patterns),
    Identity("wrong_attention_output", "z = pattern · v", mixes),
    Identity("wrong_output", "the attention’s output = z W_O + b, heads joined in order", outputs),
    Identity("wrong_sum", "the stream after a sublayer = the stream before + its output (post-norm: normalised)", sums),
    Identity("wrong_hidden", "feed-forward pre-activation = x W₁ + b₁", hidden),
    Identity("wrong_activation", "feed-forward activation = nonlinearity(pre-activation)", activations),
    Identity("wrong_feed_forward", "feed-forward output = activation · W₂ + b₂", second),
    Identity("wrong_final_norm", "there is a final norm exactly if it is configured", final_norms),
    Identity("wrong_logits", "logits = final stream · W + b", logits),
)


def check_identities(case: Case) -> tuple[list[Mistake], dict[str, int]]:
    """Return a mistake for each broken identity and location, and at how many locations each identity was checked."""
    found, n_checked = [], {}
    for identity in IDENTITIES:
        excesses = [(at, at.excess) for at in identity.measure(case) if at.excess is not None]
        n_checked[identity.kind] = len(excesses)
        for at, excess in excesses:
            if excess > 1:
                sentence = f"Expected: {identity.equation}. {at.why or 'This does not hold here.'}"
                numbers = {} if excess == float("inf") else {"off_by_times_rounding": excess}
                found.append(error(identity.kind, at.place, sentence, numbers))
    return found, n_checked


WITHOUT_WEIGHTS = ("errors that unknown weights could absorb: a constant factor, or heads in a different order",)
OUT_OF_SIGHT = (
    "behaviour that is unrecorded or on other inputs: padding, later tokens, other rows of a batch, the cache, gradients",
    "the training: the loss, the labels, the batches, clipping, dropout, the learning rate",
    "whether the weights are any good: score them with eval",
    "terms that the current weights cancel (a bias of 0, a gain of 1), and code that only other inputs reach",
)


@dataclass(frozen=True)
class EquationReport:
    """The mistakes, errors first, and at how many locations each equation was checked."""

    mistakes: list[Mistake]
    n_checked: dict[str, int]
    has_weights: bool

    @property
    def checked(self) -> list[str]:
        """One line for each equation that was checked."""
        n_checked = [(one.equation, n) for one in IDENTITIES if (n := self.n_checked.get(one.kind))]
        return [f"{equation} ({n} place{'s' * (n != 1)})" for equation, n in n_checked]

    @property
    def unchecked(self) -> list[str]:
        """Equations that were not checked: not part of this model, not recorded, or too few tokens to decide."""
        return [one.equation for one in IDENTITIES if not self.n_checked.get(one.kind)]

    @property
    def not_checkable(self) -> list[str]:
        """What could still be wrong."""
        return [*(() if self.has_weights else WITHOUT_WEIGHTS), *OUT_OF_SIGHT]


N_INPUTS = 24
"""Number of inputs; at a dozen tokens each, they have more rows than a stream of 128 dimensions."""

MIN_TOKENS = 768
"""Fewer inputs are used if they are longer: enough for this many tokens, or for four times the width of the stream."""

LONGEST_TASK = 64
"""Tasks with longer inputs are checked on random tokens, because the work grows with the square of the length."""


@dataclass(frozen=True, eq=False)
class VariedInputs:
    """Inputs for `record`. For images, `valid` is [batch, 1 + patch] and all true."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"]
    target: Int[Tensor, "batch target"] | None = None
    target_valid: Bool[Tensor, "batch target"] | None = None

    def record(self, model: Transformer) -> Trace:
        """Record a run of a model on these inputs."""
        valid = None if model.config.image else self.valid  # images have no padding
        return record(model, self.tokens, self.target, valid=valid, target_valid=self.target_valid)


def varied_inputs(config: ModelConfig, task: Task | None = None) -> VariedInputs:
    """Return inputs of different lengths: from the task if its inputs are short, otherwise random tokens.

    Lengths that a bug could confuse always differ: source and target of each row, and the padding of the rows.
    """
    if config.image:
        return _of_images(config, task)
    if task is not None and max(task.longest) > LONGEST_TASK:
        task = None
    if task is not None:
        n_inputs = min(N_INPUTS, -(-max(MIN_TOKENS, 4 * config.d_model) // max(task.longest)))
        batch = task.sample(n_inputs, seed=0, purpose="test")
        source = batch.tokens, _tokens_of(batch.tokens, batch.layout)
        target = ()
        if batch.target is not None and batch.target_layout is not None:
            target = batch.target, _tokens_of(batch.target, batch.target_layout)
        return _uneven(VariedInputs(*source, *target), config.pad_token)
    draw = torch.Generator().manual_seed(0)
    n_pos = min(config.max_len, 13)
    lengths = torch.randint(max(1, n_pos // 3), n_pos + 1, (N_INPUTS,), generator=draw)
    lengths[0] = n_pos
    valid = torch.arange(n_pos) < lengths[:, None]  # [batch, pos]

    def tokens() -> Tensor:
        drawn = torch.randint(0, config.vocab_size, valid.shape, generator=draw)
        other = (config.pad_token + 1) % config.vocab_size
        return drawn.masked_fill(drawn == config.pad_token, other).masked_fill(~valid, config.pad_token)

    if config.architecture != "encoder-decoder":
        return VariedInputs(tokens(), valid)
    return _uneven(VariedInputs(tokens(), valid, tokens(), valid), config.pad_token)


def check_model(model: Transformer, task: Task | None = None) -> EquationReport:
    """Check the trace of a run of the model on its `varied_inputs`."""
    inputs = varied_inputs(model.config, task)
    return check_trace(inputs.record(model), valid=inputs.valid, target_valid=inputs.target_valid, model=model)


def _of_images(config: ModelConfig, task: Task | None) -> VariedInputs:
    """Return the task's images, or random ones; no position is padding."""
    if task is not None:
        pixels = task.sample(N_INPUTS, seed=0, purpose="test").tokens
    else:
        draw = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, config.n_inputs, (N_INPUTS, config.image**2), generator=draw)
    return VariedInputs(pixels, torch.ones(N_INPUTS, config.max_len, dtype=torch.bool))


def _tokens_of(tokens: Int[Tensor, "batch pos"], layout: SequencePacking) -> Bool[Tensor, "batch pos"]:
    """Return True where there is a token."""
    return torch.ones_like(tokens).bool() if layout.segments is None else layout.segments > 0


def _uneven(inputs: VariedInputs, pad: int) -> VariedInputs:
    """Cut inputs at the end: in even rows the target becomes 1 to 3 tokens shorter than the source, in odd rows vice versa.

    Without a target, rows of equal length are cut by 0 to 2 tokens.
    """
    n, row = inputs.valid.sum(dim=1), torch.arange(len(inputs.tokens))  # [batch]
    if inputs.target is None or inputs.target_valid is None:
        keep = n - row % 3 if bool((n == n[0]).all()) else n
        return VariedInputs(*_cut(inputs.tokens, inputs.valid, keep, pad))
    n_target = inputs.target_valid.sum(dim=1)
    shorter = torch.minimum(n, n_target) - 1 - row // 2 % 3
    source = _cut(inputs.tokens, inputs.valid, torch.where(row % 2 == 0, n, shorter), pad)
    target = _cut(inputs.target, inputs.target_valid, torch.where(row % 2 == 0, shorter, n_target), pad)
    return VariedInputs(*source, *target)


def _cut(
    tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"], keep: Int[Tensor, " batch"], pad: int
) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """Keep the first tokens of each row, at least one, and replace the rest by padding."""
    valid = valid & (valid.cumsum(dim=1) <= keep.clamp(min=1)[:, None])
    return tokens.masked_fill(~valid, pad), valid
