"""Checks of the loss: its targets, its padding, its first value, and its mean over tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.adapters.huggingface_opening import text_config
from xformer.doctor.check import CheckContext, Finding, NotApplicableError, assume, broken, by, check
from xformer.doctor.formulas.flow import Flow
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.program.record import Operation, Recorder, SourceLine, watched

IGNORED = (-100, -1)
"""The usual labels of ignored tokens: that of torch.nn.functional.cross_entropy, and that of many hand-written models."""
NO_IGNORED = "The model ignores no label (−100 or −1), so there are no rows of unequal length."
LONGEST = 64
"""Number of tokens of the input that are used."""
MATCH = 100
"""Largest relative difference, in machine epsilons, between a loss and its formula."""
DRAWS = 4
"""Largest number of batches on which a loss is compared with several formulas, with which it may agree by chance."""
TOO_SHORT = "The input has fewer than four tokens."
NOT_CROSS_ENTROPY = "The loss equals neither the mean nor the sum of the cross-entropy of its outputs over the tokens."
AMBIGUOUS = f"Several formulas agree with the loss in {DRAWS} batches, so it is not known which tokens it scores."


class _Scored(NamedTuple):
    """What a loss computes."""

    of: str
    """What the outputs are scored on: "labels" that are passed, or the "tokens" themselves."""
    shift: int
    """Output t is scored on what is at t + shift."""
    form: str
    """Whether it is the "sum" over tokens, or of a "softmax" of the outputs; "" for the mean cross-entropy."""


class _Run(NamedTuple):
    """A loss, the line that computes it, and the product that gives the logits."""

    value: float
    line: SourceLine | None
    head: Operation | None
    is_of_softmax: bool
    """Whether the function of the cross-entropy reads a softmax."""


@check("loss", "output t is scored on token t + 1, not on padding, and the loss of a new model is ln(vocabulary)")
def loss(context: CheckContext) -> Finding:
    """Compare the loss with the cross-entropy of the outputs against the tokens at several distances."""
    model = context.model
    assume(model.causal and model.base.target is None, "The loss is that of next tokens only in a causal model.")
    assume(model.has_output_by_position, "The model has a single output for the whole input.")
    one = model.base.tokens[:, :LONGEST]
    assume(one.shape[1] >= 4, TOO_SHORT)
    fitting = set[_Scored]()
    for draw in range(DRAWS):
        tokens = torch.cat([one, model.other_tokens(one, seed=draw)])
        labels = model.other_tokens(tokens, seed=2 + draw)
        run = _recorded(model, tokens, labels)
        assume(run is not None, "The model computes no loss; give one, as in diagnose(model, inputs, loss=function).")
        assert run is not None
        logits = model.logits(ModelCall(tokens)).float()
        if run.is_of_softmax:
            return _of_softmax(logits.shape[-1], run.line)
        found = _scored(run.value, logits, tokens, labels, min(MATCH * model.eps, 1e-3))
        fitting = fitting & found if draw else found
        assume(fitting, NOT_CROSS_ENTROPY)
        if draw and len(fitting) == 1:  # one batch may agree with another formula by chance
            return _judged(context, fitting.pop(), run, tokens, labels, logits)
    raise NotApplicableError(AMBIGUOUS)


def _judged(
    context: CheckContext, scored: _Scored, run: _Run, tokens: Tensor, labels: Tensor, logits: Tensor
) -> Finding:
    """The finding about a loss of which it is known what it computes."""
    model = context.model
    verdict = "broken" if context.spec else "unusual"
    for found in (
        *_of_targets(model, scored, run.line),
        *_of_padding(model, scored, run.line, tokens, logits),
        *_of_form(scored, run, logits, verdict),
        *_of_start(model, scored, run, logits, tokens if scored.of == "tokens" else labels, verdict),
    ):
        return found
    if scored.of == "labels" and model.labelled is None:
        name = model.takes["labels"]
        return Finding("holds", f"Output t is scored on {name}[t{f' + {scored.shift}' if scored.shift else ''}].")
    return Finding("holds", "Output t is scored on token t + 1.")


def _recorded(model: TokenModel, tokens: Tensor, labels: Tensor) -> _Run | None:
    """The loss of a batch; None if the model computes none."""
    function = model.loss
    given = {"tokens": tokens.to(model.device), "labels": labels.to(model.device)}

    def call() -> Any:
        if function is not None:
            return function(model.module, given["tokens"])
        named = model.arguments(ModelCall(given["tokens"]))
        return model.call(named | ({model.takes["labels"]: given["labels"]} if model.can("labels") else {}))

    recorder = Recorder(model.module, given)
    with watched(model.module, recorder):
        value = _loss_in(call())
    if value is None:
        return None
    program = recorder.finish(value)
    named = [one for one in program.operations if one.name in ("cross_entropy", "nll_loss") and one.line is not None]
    last = named[-1] if named else program.outputs[0].operation
    head = None if last is None else _head(last)
    by = Flow.root(named[-1].inputs[0]).operation if named and named[-1].name == "cross_entropy" else None
    is_of_softmax = by is not None and by.name == "softmax"
    return _Run(float(value), None if last is None else last.line, head, is_of_softmax)


def _loss_in(returned: Any) -> Tensor | None:
    """The loss in what a call returns: `.loss`, an item "loss", or a single number."""
    value = getattr(returned, "loss", returned.get("loss") if isinstance(returned, Mapping) else None)
    if value is None and isinstance(returned, tuple | list | Tensor):
        every = [returned] if isinstance(returned, Tensor) else returned
        value = next((one for one in every if isinstance(one, Tensor) and one.dim() == 0), None)
    return value if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point() else None


def _head(operation: Operation) -> Operation | None:
    """The product with a weight that gave the first input of an operation."""
    for _ in range(12):
        before = operation.inputs[0].operation if operation.inputs else None
        if before is None:
            return None
        if any(value.is_weight for value in before.inputs[1:]) and before.name in ("linear", "matmul", "addmm", "mm"):
            return before
        operation = before
    return None


def _scored(
    value: float,
    logits: Float[Tensor, "batch pos vocab"],
    tokens: Int[Tensor, "batch pos"],
    labels: Int[Tensor, "batch pos"],
    limit: float,
) -> set[_Scored]:
    """What a loss of this value may compute; several may agree by chance."""
    found, forms = set[_Scored](), {"": logits, "sum": logits, "softmax": logits.softmax(dim=-1)}
    for of, targets in (("labels", labels), ("tokens", tokens)):
        for shift in (1, 0, 2, -1):
            for n in (tokens.shape[1], tokens.shape[1] - 1):  # a loss may cut its last token
                for form, outputs in forms.items():
                    expected = cross_entropy(outputs[:, :n], targets[:, :n], shift)
                    expected *= len(tokens) * (n - abs(shift)) if form == "sum" else 1
                    if abs(value - expected) <= limit * max(1.0, abs(expected)):
                        found.add(_Scored(of, shift, form))
    return found


def cross_entropy(
    logits: Float[Tensor, "batch pos vocab"], targets: Int[Tensor, "batch pos"], shift: int, ignored: int = IGNORED[0]
) -> float:
    """The mean cross-entropy of output t against target t + shift."""
    ahead, back, n = max(shift, 0), max(-shift, 0), logits.shape[1]
    logits, targets = logits[:, back : n - ahead], targets[:, ahead : n - back]
    return float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=ignored))


_TARGETS = {
    0: ("targets_not_shifted", "the token at its own position: the loss rewards copying the input"),
    2: ("targets_shifted_twice", "the token two positions later: the targets are shifted twice"),
    -1: ("targets_shifted_back", "the token before it, which it has read"),
}
_AHEAD = "Score output t on token t + 1: F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())."


def _of_targets(model: TokenModel, scored: _Scored, line: SourceLine | None) -> Iterator[Finding]:
    """The finding if outputs are scored on another token than the next."""
    shift, verdict, rest = scored.shift, "broken", ""
    if scored.of == "labels" and model.labelled is not None:
        caller = _shift_of_caller(model.labelled)
        if caller is None:
            return
        shift += caller
        rest = f" The labels are the tokens {f'shifted by {caller}' if caller else 'themselves'}, and the model shifts "
        rest += f"by {scored.shift}."
    elif scored.of == "labels" and shift in (0, 1):
        if shift == 1 or model.takes["labels"] != "labels":  # a caller passes `targets` that it has shifted
            return
        verdict, rest = "unusual", " That is right only if the caller shifts the labels; models of Transformers do it."
    if shift not in _TARGETS:
        return
    cause, words = _TARGETS[shift]
    what = "label" if verdict == "unusual" else "token"
    words = words.replace("token", what, 1)
    yield _finding(verdict, cause, f"Each output is scored on {words}.{rest}", _AHEAD, line)


def _finding(verdict: Any, cause: str, sentence: str, remedy: str, line: SourceLine | None) -> Finding:
    """A finding at a line."""
    text = f" The line reads `{line.text}`." if line is not None and line.text else ""
    return Finding(verdict, sentence, remedy + text, cause=cause, line="" if line is None else str(line))


def _shift_of_caller(labelled: Mapping[str, Tensor]) -> int | None:
    """How far the caller shifted the tokens to make the labels; None if they are something else."""
    tokens, labels = labelled["tokens"], labelled["labels"]
    for shift in (1, 0, -1):
        ahead, back, n = max(shift, 0), max(-shift, 0), tokens.shape[1]
        one, other = tokens[:, ahead : n - back], labels[:, back : n - ahead]
        counted = other >= 0
        if counted.any() and torch.equal(one[counted], other[counted]):
            return shift
    return None


_PADDING = (
    "Set the labels of padding to the ignored index: labels.masked_fill(mask == 0, -100), or "
    "F.cross_entropy(…, ignore_index=pad)."
)


def _of_padding(
    model: TokenModel, scored: _Scored, line: SourceLine | None, tokens: Tensor, logits: Tensor
) -> Iterator[Finding]:
    """The finding if padding counts in the loss: of the function, or of the batch that the caller passes."""
    padded = None
    if model.loss is not None and (pad := _pad(model)) is not None:
        tokens = tokens.clone()
        tokens[1, tokens.shape[1] // 2 :] = pad
        padded = tokens == pad
        labels, logits = tokens, model.logits(ModelCall(tokens)).float()
        run = _recorded(model, tokens, tokens)
    elif model.labelled is not None and scored.of == "labels":
        tokens, labels = model.labelled["tokens"], model.labelled["labels"]
        caller, valid = _shift_of_caller(model.labelled), model.labelled.get("valid")
        if caller is None or (valid is None and _pad(model) is None):
            return
        padded = tokens == _pad(model) if valid is None else valid == 0
        padded = padded.roll(-caller, dims=1) & (labels >= 0)
        logits = model.logits(ModelCall(tokens, None if valid is None else valid.bool())).float()
        run = _recorded(model, tokens, labels)
    else:
        return
    if not padded.any() or run is None:
        return
    counted, ignored = (
        cross_entropy(logits, one, scored.shift) for one in (labels, labels.masked_fill(padded, IGNORED[0]))
    )
    limit = min(MATCH * model.eps, 1e-3) * max(1.0, counted)
    if scored.form == "" and abs(run.value - counted) <= limit < abs(counted - ignored):
        sentence = f"Padding counts in the loss: it is {counted:.3g}, and {ignored:.3g} over the tokens."
        yield _finding("broken", "padding_in_loss", sentence, _PADDING, line)


def _pad(model: TokenModel) -> int | None:
    """The padding token, if there is one that is no other special token."""
    config = text_config(model.module)
    ends = {getattr(owner, "eos_token_id", None) for owner in (config, model.tokenizer)}
    tables = (one.padding_idx for one in model.module.modules() if isinstance(one, nn.Embedding))
    known = [getattr(owner, "pad_token_id", None) for owner in (config, model.tokenizer)]
    return next((one for one in (*known, *tables) if isinstance(one, int) and one >= 0 and one not in ends), None)


def _of_softmax(n: int, line: SourceLine | None) -> Finding:
    least = math.log(1 + (n - 1) / math.e)
    words = f"The cross-entropy is that of probabilities: it takes the softmax again, so it is at least {least:.3g}."
    return _finding("broken", "softmax_before_loss", words, "Pass logits to F.cross_entropy.", line)


def _of_form(scored: _Scored, run: _Run, logits: Tensor, verdict: str) -> Iterator[Finding]:
    """The finding if the loss is not the mean cross-entropy of the logits."""
    is_softmax = bool((logits >= 0).all()) and float((logits.sum(dim=-1) - 1).abs().max()) < 1e-3
    if scored.form == "softmax" or is_softmax:
        yield _of_softmax(logits.shape[-1], run.line)
    elif scored.form == "sum":
        sentence = f"The loss is the sum over tokens ({run.value:.3g}), not their mean, so it grows with the batch."
        yield _finding(verdict, "loss_summed", sentence, 'Use reduction="mean".', run.line)


def _of_start(
    model: TokenModel, scored: _Scored, run: _Run, logits: Tensor, targets: Tensor, verdict: str
) -> Iterator[Finding]:
    """The finding if an untrained model is far worse than guessing, because of the scale of its logits."""
    n, spread = logits.shape[-1], float(logits.std(dim=-1).mean())
    guess = math.log(n)
    if not _is_untrained(model.module) or run.value < 2 * guess:
        return
    if (scaled := cross_entropy(logits / spread, targets, scored.shift)) > 1.5 * guess:
        return
    weight = next((one for one in run.head.inputs[1:] if one.is_weight), None) if run.head is not None else None
    which = ""
    if weight is not None:
        std = float(model.module.get_parameter(weight.name).std())
        which = f", since {weight.name} has one of {std:.2g}"
    line = None if run.head is None else run.head.line
    sentence = (
        f"The loss of this untrained model is {run.value:.3g}, and guessing among {n} tokens gives ln {n} = {guess:.2f}: the "
        f"logits have a standard deviation of {spread:.3g}{which}. Divided by it, they give {scaled:.3g}."
    )
    remedy = "Initialise the output layer, and an embedding that is tied to it, with a standard deviation of 0.02."
    yield _finding(verdict, "initial_loss", sentence, remedy, line)


def _is_untrained(module: nn.Module) -> bool:
    """Whether all weights of norms are as they were made; training changes them."""
    norms = [one for one in module.modules() if "norm" in type(one).__name__.lower()]
    weights = [weight for one in norms for weight in one.parameters(recurse=False)]
    if not weights:  # of norms that are functions
        weights = [one for one in module.parameters() if one.dim() == 1 and len(one) > 1 and bool((one == 1).all())]
    return bool(weights) and all(bool((one == one.flatten()[0]).all()) for one in weights)


@check("accumulation", "the loss of a batch is the mean over its tokens, however they are split")
def accumulation(context: CheckContext) -> Finding:
    """Compare the loss of two rows, one partly ignored, with the mean over tokens: in one batch and accumulated."""
    model = context.model
    assume(model.can("labels") and model.base.target is None, "The model computes no loss over tokens.")
    assume(model.has_output_by_position, "The model has a single output for the whole input.")
    tokens = torch.cat([model.base.tokens, model.other_tokens(model.base.tokens)])
    n = tokens.shape[1]
    labels = tokens.clone()
    logits, loss = model.logits(ModelCall(tokens)).float(), _loss(model, tokens, labels)
    errors = {shift: _error(loss, logits, labels, shift) for shift in (1, 0)}  # both may be close by chance
    shift = min(errors, key=lambda one: errors[one])
    assume(n >= 4, TOO_SHORT)
    assume(errors[shift] <= 0.001, NOT_CROSS_ENTROPY)
    ignored, whole = _with_ignored(model, tokens, labels)
    expected = cross_entropy(logits, labels, shift, ignored)
    as_token = cross_entropy(logits, labels % logits.shape[-1], shift)  # a negative index counts from the end
    assume(abs(whole - as_token) > 1e-4 or abs(expected - as_token) <= 1e-4, NO_IGNORED)
    size = abs(whole - expected) / max(abs(expected), 1e-12)
    way = " in one batch"
    if (
        size <= context.limit
        and model.is_transformers
        and model.causal
        and getattr(model.module, "accepts_loss_kwargs", True)
    ):
        n_items = int((labels[:, shift:] != ignored).sum())
        steps = sum(_loss(model, tokens[i : i + 1], labels[i : i + 1], num_items_in_batch=n_items) for i in range(2))
        size, way = abs(steps - expected) / max(abs(expected), 1e-12), " in two steps of accumulation"
    if size <= max(context.limit, 1e-4):
        return Finding("holds", "The loss is the mean over all labelled tokens.", size=size, floor=context.floor)
    return broken(
        f"With rows of unequal length, the loss{way} differs {by(size)} from the mean over all tokens.",
        "Divide the summed loss by the number of labelled tokens in the whole batch (num_items_in_batch); do not average "
        "rows first.",
        size,
        context.floor,
    )


def _loss(model: TokenModel, tokens: Tensor, labels: Tensor, **more: Any) -> float:
    named = model.arguments(ModelCall(tokens)) | {model.takes["labels"]: labels} | more
    value = _loss_in(model.call(named))
    return math.nan if value is None else float(value)


def _with_ignored(model: TokenModel, tokens: Tensor, labels: Tensor) -> tuple[int, float]:
    """Mark most labels of the second row as ignored, in place; return the mark that the model knows, and its loss."""
    if model.device.type != "cpu" and not model.is_transformers:  # on a GPU an unknown label aborts the process
        model = model.copied()
        model.module.cpu()
    for ignored in IGNORED:
        labels[1, tokens.shape[1] // 4 :] = ignored
        with suppress(Exception):  # a model may raise anything for a label that it does not know
            return ignored, _loss(model, tokens, labels)
    raise NotApplicableError(NO_IGNORED)


def _error(loss: float, logits: Tensor, labels: Tensor, shift: int) -> float:
    """Return the distance between the model's loss and the cross-entropy of all labels; ∞ if it has no loss."""
    expected = cross_entropy(logits, labels, shift)
    error = abs(loss - expected) / max(1.0, abs(expected))
    return math.inf if math.isnan(error) else error
