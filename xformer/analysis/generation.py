"""The tokens that a model generates, step by step, and how several models compare at each step.

    step s      p_s = softmax(logits at the deciding position)      token_s is chosen from p_s by the sampling rule
    entropy     H(p) = −Σ p log₂ p, in bits                         (Shannon 1948, §6)

The steps of an encoder are the positions with a right answer. The steps of a decoder are the tokens that it generates: when
free-running it reads its own tokens, when teacher-forced the right answer. Decoding ends at the end token (free-running only),
or after as many tokens as the right answer has, including its end token.

A text has no right answer. A free-running decoder continues it by `CONTINUATION_LENGTH` tokens; when teacher-forced, the answer
of a step is the next token of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice
from math import log, nan

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.comparison import (
    Variant,
    check_names,
    check_several,
    clip_edges_to_length,
    joint_labels,
    to_joint,
)
from xformer.arguments import Count
from xformer.decoding import Step, continue_text, decode
from xformer.edits import Edit, SetEdges, steer
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import record

SCALES = tuple(range(-5, 6))
"""The default scales of steering vectors."""
CONTINUATION_LENGTH = 32
"""The number of tokens that a decoder generates after a text."""


@dataclass(frozen=True, eq=False)
class DecodedSteps:
    """The steps of one variant on one input. `run[3]` is the reading of the forward pass that decided step 3."""

    variant: Variant
    source: tuple[int, ...]
    """The input, before the variant's own token replacements."""
    example: Example
    forced: bool
    answer: tuple[int, ...]
    """The right token at each step, including steps after the last; for a text its next tokens, empty if it is continued."""
    steps: tuple[Step, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Reading]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> Reading:
        """Record a forward pass over the tokens read at this step; its only target position is that of the step."""
        if not 0 <= step < len(self):
            raise InputError(f"{self.name} has steps 0 to {len(self) - 1}, got {step}.")
        taken = self.steps[step]
        trace = taken.trace()
        labels = trace.tokens.new_full(trace.logits.shape[:2], IGNORED)
        right = self.answer if step < len(self.answer) else self.predicted
        labels[0, -1 if self.variant.writes else taken.position] = right[step]
        example = replace(self.example, input_ids=trace.read_by(), target=trace.target, labels=labels)
        code = f"{self.code}[{step}]" if self.code else None
        return Reading(self.variant.adapter, example, trace, self.has_right_answer, code)

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def code(self) -> str:
        """The call that repeats the run, or ""."""
        if not self.variant.code:
            return ""
        source, forced = list(self.source), ", forced=True" if self.forced else ""
        return f"xformer.analysis.decode_steps({self.variant.code}, {source}{forced})"

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token."""
        return self.variant.adapter.token_labels

    @property
    def predicted(self) -> tuple[int, ...]:
        """The token that the variant chose at each step."""
        return tuple(step.predicted for step in self.steps)

    @property
    def read(self) -> tuple[int, ...]:
        """The tokens read after each step: the chosen ones, or the right ones when teacher-forced."""
        return self.answer[: len(self)] if self.forced else self.predicted

    @cached_property
    def probabilities(self) -> Float[Tensor, "step vocab"]:
        """The model's probabilities, before the sampling rule."""
        return torch.stack([step.probabilities for step in self.steps])

    @cached_property
    def drawn_from(self) -> Float[Tensor, "step vocab"]:
        """The distribution from which each token was sampled, after temperature, top-k and top-p."""
        return torch.stack([step.drawn_from for step in self.steps])

    @property
    def has_right_answer(self) -> bool:
        """Whether the input has a right answer; a text has none."""
        return self.variant.adapter.has_right_answer(self.example)

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each step predicted the right token; empty without a right answer."""
        if not self.has_right_answer:
            return ()
        return tuple(token == right for token, right in zip(self.predicted, self.answer, strict=False))

    def probability(self, step: int) -> float:
        """Return the model's probability of the token that it chose."""
        return self.probabilities[step, self.predicted[step]].item()

    def top(self, step: int, k: int = 5) -> list[tuple[int, float]]:
        """Return the k likeliest tokens with their probabilities, likeliest first."""
        best = self.probabilities[step].topk(min(k, self.probabilities.shape[1]))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def entropy(self) -> Float[Tensor, " step"]:
        """Return the entropy of each step in bits: 0 if one token has probability 1, log₂(vocab) if all are equally likely."""
        p = self.probabilities.double()
        return -torch.special.xlogy(p, p).sum(dim=-1) / log(2.0)


@torch.no_grad()
def decode_steps(
    variant: Variant,
    source: Sequence[int],
    *,
    forced: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DecodedSteps:
    """Decode a variant's answer to an input step by step.

    Args:
        variant: The variant.
        source: The input, as token ids.
        forced: Teacher forcing: read the right answer instead of the generated tokens.
        progress: Called after each step with the number of steps done and the largest possible number.

    Returns:
        The steps; indexing them returns the reading of the forward pass that decided a step.

    Raises:
        InputError: If the input is too long for the model.
        EditError: If an edit does not fit the model or the input.

    Example:
        >>> import xformer
        >>> variant = xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained")
        >>> run = xformer.analysis.decode_steps(variant, (3, 7, 12, 9))
        >>> len(run)
        5
    """
    example = variant.to_example(source)
    answer = tuple(token for token in example.labels[0].tolist() if token != IGNORED)
    n_steps = len(answer)
    model, rule = variant.model, {"sampling": variant.sampling, "generator": variant.generator()}
    if variant.adapter.input.is_open_ended and example.target is None and not forced:
        answer, n_steps = (), CONTINUATION_LENGTH
        work = continue_text(model, example.input_ids, n_steps, edits=_decoding_edits(variant, example), **rule)
    elif not variant.writes:  # an encoder: only its predictions at positions with a right answer
        labelled = (example.labels[0] != IGNORED).tolist()
        every = decode(model, example.tokens, edits=variant.edits, **rule)
        work = (step for step in every if labelled[step.position])
    else:
        fed, edits = answer if forced else None, _decoding_edits(variant, example)
        work = decode(model, example.tokens, forced=fed, max_steps=n_steps, edits=edits, **rule)
    steps: list[Step] = []
    for step in work:
        steps.append(step)
        progress(len(steps), n_steps)
    return DecodedSteps(variant, tuple(source), example, forced, answer, tuple(steps))


def _decoding_edits(variant: Variant, example: Example) -> tuple[Edit, ...]:
    """Return the edits of a variant during decoding, which starts on a shorter input."""
    if not any(isinstance(edit, SetEdges) for edit in variant.edits):
        return variant.edits
    # This run raises for an edge that even the complete answer does not have.
    record(variant.model, example.input_ids, example.target, edits=variant.edits, keep=("logits",))
    return clip_edges_to_length(variant.edits)


def first_divergence(runs: Sequence[DecodedSteps]) -> int | None:
    """Return the first step at which any two runs predict different tokens, or None."""
    for step in range(max(map(len, runs))):
        if len({one.labels[one.predicted[step]] for one in runs if step < len(one)}) > 1:
            return step
    return None


def kl(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """Return KL(p‖q) in nats, in double precision; exactly 0 for equal p and q."""
    p, q = _normalised(p), _normalised(q)
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(dim=-1).clamp(min=0)


def total_variation(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """Return half the summed absolute differences: the largest difference in probability over all sets of tokens."""
    return (_normalised(p) - _normalised(q)).abs().sum(dim=-1) / 2


def same_context(one: DecodedSteps, other: DecodedSteps, step: int) -> bool:
    """Return whether two runs read the same tokens before a step.

    An encoder never reads its own predictions, so only its input counts. Decoders have different contexts after the first token
    that they read differently.
    """
    if one.example.source != other.example.source:
        return False
    if not (one.variant.writes or other.variant.writes):
        return True
    went_on = [[run.labels[token] for token in run.read[:step]] for run in (one, other)]
    return went_on[0] == went_on[1]


def predictions_by_step(runs: Sequence[DecodedSteps]) -> pd.DataFrame:
    """Tabulate what each model predicts at each step.

    Args:
        runs: The runs of different variants on one input, from `decode_steps`.

    Returns:
        A row per step and model: step (from 0), model, token (the chosen one), probability (the model's) and drawn (under the
        sampling rule) of that token, answer and answer_probability ("" and NaN without a right answer), right (None without a
        right answer), entropy (in bits), and same_context (whether all other models that reach this step read the same tokens
        before it).

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> table = xformer.analysis.predictions_by_step(runs)
        >>> list(table.columns)
        ['step', 'model', 'token', 'probability', 'drawn', 'answer', 'answer_probability', 'right', 'entropy',
         'same_context']
    """
    check_names([run.variant for run in runs])
    rows = []
    for run in runs:
        entropy, right = run.entropy().tolist(), run.right
        for step, token in enumerate(run.predicted):
            answer = run.answer[step] if step < len(run.answer) else None
            chosen = run.labels[token], run.probability(step), run.drawn_from[step, token].item()
            known = ("", nan) if answer is None else (run.labels[answer], run.probabilities[step, answer].item())
            is_right = right[step] if step < len(right) else None
            is_same = all(same_context(run, other, step) for other in runs if step < len(other))
            rows.append((step, run.name, *chosen, *known, is_right, entropy[step], is_same))
    columns = ["step", "model", "token", "probability", "drawn", "answer", "answer_probability", "right", "entropy"]
    table = pd.DataFrame(rows, columns=[*columns, "same_context"])
    return table.sort_values("step", kind="stable", ignore_index=True)


def divergence_by_step(runs: Sequence[DecodedSteps]) -> pd.DataFrame:
    """Compare the predictions of every pair of models at each step that both of them reach.

    Args:
        runs: The runs of different variants on one input, from `decode_steps`.

    Returns:
        A row per step and pair: step (from 0), one and other (names), pair (both names), kl (of one from other) and kl_back (of
        other from one) in nats, total_variation (0 to 1), same_token (whether they chose the same token) and same_context
        (whether they read the same tokens before the step).

    Raises:
        InputError: If there are fewer than two runs.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> table = xformer.analysis.divergence_by_step(runs)
        >>> list(table.columns)
        ['step', 'one', 'other', 'pair', 'kl', 'kl_back', 'total_variation', 'same_token', 'same_context']
    """
    check_several(runs)
    frames = []
    for (one, p), (other, q) in combinations(zip(runs, _joint_probabilities(runs), strict=True), 2):
        n = min(len(one), len(other))
        tokens = [[run.labels[token] for token in run.predicted[:n]] for run in (one, other)]
        columns = {
            "step": range(n),
            "one": one.name,
            "other": other.name,
            "pair": f"{one.name} | {other.name}",
            "kl": kl(p[:n], q[:n]).tolist(),
            "kl_back": kl(q[:n], p[:n]).tolist(),
            "total_variation": total_variation(p[:n], q[:n]).tolist(),
            "same_token": [a == b for a, b in zip(*tokens, strict=True)],
            "same_context": [same_context(one, other, step) for step in range(n)],
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames).sort_values("step", kind="stable", ignore_index=True)


def likeliest_tokens(runs: Sequence[DecodedSteps], step: int, k: Count = 5) -> pd.DataFrame:
    """Tabulate the likeliest tokens of all models at one step.

    Args:
        runs: The runs of different variants on one input, from `decode_steps`.
        step: The step, from 0.
        k: The number of likeliest tokens taken from each model.

    Returns:
        A row per token and model, likeliest token first, for the `k` likeliest of each model and the right token: step, token,
        model, probability (the model's; 0 if its vocabulary lacks the token), drawn (under the sampling rule), right (whether
        it is the right token) and predicted (whether the model chose it).

    Raises:
        InputError: If no model reaches the step.

    Example:
        >>> import xformer
        >>> variants = [
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "as_trained"),
        ...     xformer.analysis.Variant.load("checkpoints/reverse-decoder", "ablated", edits="ablate:decoder.0.attn.0"),
        ... ]
        >>> runs = [xformer.analysis.decode_steps(variant, (3, 7, 12, 9)) for variant in variants]
        >>> table = xformer.analysis.likeliest_tokens(runs, 1)
        >>> list(table.columns)
        ['step', 'token', 'model', 'probability', 'drawn', 'right', 'predicted']
    """
    labels = joint_labels([run.variant for run in runs])
    taking = [
        (run, p[step], q[step])
        for run, p, q in zip(runs, _joint_probabilities(runs), _joint_probabilities(runs, drawn=True), strict=True)
        if 0 <= step < len(run)
    ]
    if not taking:
        raise InputError(f"The models have steps 0 to {max(map(len, runs)) - 1}, got {step}.")
    shown = {labels.index(one.labels[one.answer[step]]) for one, _, _ in taking if step < len(one.answer)}
    for _, p, _ in taking:
        shown.update(p.topk(min(k, len(labels))).indices.tolist())
    highest = torch.stack([p for _, p, _ in taking]).amax(dim=0)  # [joint vocab]
    rows = []
    for token in sorted(shown, key=lambda token: (-highest[token].item(), token)):
        for one, p, q in taking:
            is_right = one.has_right_answer and labels[token] == one.labels[one.answer[step]]
            is_predicted = labels[token] == one.labels[one.predicted[step]]
            rows.append((step, labels[token], one.name, p[token].item(), q[token].item(), is_right, is_predicted))
    return pd.DataFrame(rows, columns=["step", "token", "model", "probability", "drawn", "right", "predicted"])


def _joint_probabilities(runs: Sequence[DecodedSteps], *, drawn: bool = False) -> list[Float[Tensor, "step joint"]]:
    """Return the probabilities of each run over the joint labels."""
    variants = [run.variant for run in runs]
    check_names(variants)
    labels = joint_labels(variants)
    found = []
    for run in runs:
        p = (run.drawn_from if drawn else run.probabilities).double()
        found.append(p.new_zeros(len(p), len(labels)).index_copy(1, to_joint(run.variant, labels), p))
    return found


def _normalised(p: Tensor) -> Float[Tensor, "*step vocab"]:
    """Normalise in double precision, so that float32 rounding cannot make a KL negative."""
    p = p.double()
    return p / p.sum(dim=-1, keepdim=True)


def next_tokens(reading: Reading, *, temperature: float = 1.0, k: Count = 10) -> pd.DataFrame:
    """Return the likeliest tokens after a text, with their probabilities at a temperature.

        p = softmax(logits / T)            T = 0: all on the likeliest token

    Args:
        reading: The run on a text to continue.
        temperature: T; above 1, the probabilities are more even.
        k: The number of tokens.

    Returns:
        A row per token, the likeliest first: rank, token, id, logit and probability.

    Raises:
        InputError: The temperature is negative.
        UnavailableError: The model does not continue its input.

    Example:
        >>> import xformer
        >>> story = xformer.read("checkpoints/characters", "To be")
        >>> table = xformer.analysis.next_tokens(story, k=3)
        >>> list(table.columns)
        ['rank', 'token', 'id', 'logit', 'probability']
    """
    if not temperature >= 0:
        raise InputError(f"A temperature is 0 or larger, got {temperature:g}; for example 1.")
    if reading.open_output is None:
        raise UnavailableError(f"{reading.adapter.name} does not continue its input, so there is no next token.")
    logits = reading.logits[0, reading.open_output].detach().double().cpu()  # [vocab]
    if temperature:
        p = (logits / temperature).softmax(dim=-1)
    else:
        p = torch.zeros_like(logits).scatter(0, logits.argmax(dim=0, keepdim=True), 1.0)
    found = logits.topk(min(k, len(logits)))
    return pd.DataFrame(
        {
            "rank": range(1, len(found.indices) + 1),
            "token": [reading.adapter.token_labels[token] for token in found.indices.tolist()],
            "id": found.indices.tolist(),
            "logit": found.values.tolist(),
            "probability": p[found.indices].tolist(),
        }
    )


def direction(towards: Reading, away: Reading, *, layer: int) -> Float[Tensor, " d_model"]:
    """Return the difference of the residual streams of two texts at their last tokens, after layer `layer` (from 0).

    Raises `UnavailableError` if there is no residual stream, and `InputError` if there is no such layer or no difference.
    """
    name = _stream_name(towards, layer)
    one, other = (reading[name][0, -1] for reading in (towards, away))
    if one.shape != other.shape:
        raise InputError("The texts to steer towards and away from must be read by the model that is steered.")
    if not bool((one != other).any()):
        raise InputError("Both texts leave the model in the same state, so there is no direction; change one of them.")
    return one - other


def steering_steps(
    reading: Reading, towards: Reading, away: Reading, *, layer: int, scale: float = 1.0, n: int = 16
) -> Iterator[Step]:
    """Generate up to `n` tokens after the text of `reading` while it is steered."""
    added = direction(towards, away, layer=layer)
    if len(added) != reading.adapter.shape.d_model:
        raise InputError("The texts to steer towards and away from must be read by the model that is steered.")
    edit = steer(_stream_name(reading, layer), added, float(scale))
    return islice(reading.adapter.steps(reading.example, n, edits=[*reading.edits, edit]), n)


def steered(
    reading: Reading, towards: Reading, away: Reading, *, layer: int, scale: float = 1.0, n: Count = 16
) -> pd.DataFrame:
    """Continue a text with and without steering, step by step.

    The steering vector is the difference of two residual streams, `towards` minus `away`, at the last tokens of their texts
    (Turner et al. 2023, arXiv:2308.10248).

    Args:
        reading: A run of the text to continue.
        towards: A run of a text to steer towards.
        away: A run of a text to steer away from.
        layer: The layer, from 0, after which the vector is added.
        scale: The factor of the steering vector.
        n: The number of tokens.

    Returns:
        A row per step: step (from 0), says and probability (token of the unsteered text), steered_says and
        steered_probability. If one text ends earlier, its columns are NaN from there on.

    Raises:
        InputError: If there is no such layer, or both texts lead to the same state.
        UnavailableError: If the model's residual stream was not found.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/characters", "import os")
        >>> towards, away = (xformer.read("checkpoints/characters", text) for text in ("return x", "import x"))
        >>> table = xformer.analysis.steered(reading, towards, away, layer=1, n=4)
        >>> list(table.columns)
        ['step', 'says', 'probability', 'steered_says', 'steered_probability']
    """
    own = islice(reading.adapter.steps(reading.example, n, edits=reading.edits), n)
    other = steering_steps(reading, towards, away, layer=layer, scale=scale, n=n)
    labels = reading.adapter.token_labels
    columns: dict[str, list[str] | list[float]] = {}
    for name, steps in (("", list(own)), ("steered_", list(other))):
        columns[f"{name}says"] = [labels[step.token] for step in steps]
        columns[f"{name}probability"] = [step.probabilities[step.token].item() for step in steps]
    table = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})  # one may end before the other
    return table.rename_axis("step").reset_index()


def steering_by_scale(
    reading: Reading, towards: Reading, away: Reading, *, layer: int, scales: Sequence[float] = SCALES, k: Count = 6
) -> pd.DataFrame:
    """Compute the probabilities of the likeliest next tokens at each scale of steering.

    Args:
        reading: A run of the text to continue.
        towards: A run of a text to steer towards.
        away: A run of a text to steer away from.
        layer: The layer, from 0, after which the vector is added.
        scales: The factors of the steering vector.
        k: The number of tokens: those with the largest probability at any scale.

    Returns:
        A row per scale and token: scale, token and probability; the last token of each scale, "all others", has the rest.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/characters", "import os")
        >>> towards, away = (xformer.read("checkpoints/characters", text) for text in ("return x", "import x"))
        >>> table = xformer.analysis.steering_by_scale(reading, towards, away, layer=1, scales=[0, 1], k=2)
        >>> table["scale"].tolist()
        [0, 0, 0, 1, 1, 1]
    """
    steps = [next(steering_steps(reading, towards, away, layer=layer, scale=scale, n=1)) for scale in scales]
    p = torch.stack([step.probabilities for step in steps])  # [scale, vocab]
    tokens = p.amax(dim=0).topk(min(k, p.shape[1])).indices
    names = [*(reading.adapter.token_labels[token] for token in tokens.tolist()), "all others"]
    shares = torch.cat([p[:, tokens], 1 - p[:, tokens].sum(dim=1, keepdim=True)], dim=1).clamp(min=0)
    table = pd.DataFrame(shares.tolist(), columns=names).assign(scale=list(scales))
    table = table.melt("scale", var_name="token", value_name="probability")
    return table.sort_values("scale", kind="stable", ignore_index=True)


def _stream_name(reading: Reading, layer: int) -> str:
    adapter, name = reading.adapter, f"{reading.output_stack}.{layer}.resid_post"
    if not 0 <= layer < adapter.shape.n_layers:
        raise InputError(f"{adapter.name} has layers 0 to {adapter.shape.n_layers - 1}, got {layer}.")
    if name not in reading:
        raise UnavailableError(f"No residual stream was found in {adapter.name}, so nothing can be added to it.")
    return name
