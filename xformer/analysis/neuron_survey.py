"""What neurons fire on and which tokens they promote: of one run, and surveys over many inputs.

    survey = xformer.analysis.survey("checkpoints/reverse")          500 unseen inputs
    xformer.analysis.triggers(survey, layer=1)                       a row per neuron

A neuron is named only if it is clear: its activation is concentrated on few values, or its tokens exceed those of shuffled
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters import TaskModel, own_task_model
from xformer.analysis.ablation import logits_with_replacements
from xformer.analysis.feed_forward import (
    MAX_TOKENS,
    activity,
    direct_logit_effect,
    fires_above,
    writes_to_output_stream,
    written_norms,
)
from xformer.arguments import Count, Seed
from xformer.checkpoints import Checkpoint
from xformer.errors import UnavailableError
from xformer.formatting import check_index, check_indices
from xformer.layer_path import LayerPath
from xformer.memory import check_analysis
from xformer.reading import Reading, adapter_of
from xformer.trace import Trace, record

FAVOURITES = 3
"""Number of tokens listed that a neuron promotes, and that it suppresses."""
CANDIDATES, SHUFFLES, CLEARER = 200, 64, 1.2
"""With a vocabulary of more than `MAX_TOKENS`: the number of active neurons searched for clear tokens, the number of shuffled
vectors, and the factor by which a cosine has to exceed the largest of theirs."""
BEST = 8
"""The number of inputs kept for each neuron: those at which it is most active."""
MAX_TOKENS_AT_ONCE = 4096
"""Tokens per batch of a survey."""
CLEAR_SHARE, OVER_EVEN, MAX_VALUES, MIN_FIRINGS = 0.5, 3.0, 3, 20
"""A trigger is clear if at most `MAX_VALUES` of its values hold `CLEAR_SHARE` of a neuron's activation, and `OVER_EVEN` times
their even share. In a survey the neuron must also fire at `MIN_FIRINGS` positions."""
Tally = tuple[Float[Tensor, "value d_ff"], Int[Tensor, " value"]]
"""The summed |activation| of each neuron at each value of a trigger, and the number of positions with that value."""


@dataclass(frozen=True, eq=False)
class LayerSurvey:
    """Statistics of the neurons of one layer over many inputs."""

    n_positions: int
    fired: Int[Tensor, " d_ff"]
    """The number of positions at which each neuron fired."""
    least: Float[Tensor, " d_ff"]
    """The |activation| above which each neuron fires; the layer's mean peak is taken from the first input."""
    peak: Float[Tensor, "best d_ff"]
    """The activations of each neuron with the largest magnitude, one per input, largest first …"""
    places: Int[Tensor, "best d_ff 2"]
    """… and their locations: (input, position)."""
    tallies: dict[str, Tally]
    """For each kind of trigger, how the activation of each neuron is distributed over its values."""

    def joined(self, other: LayerSurvey, start: int) -> LayerSurvey:
        """Merge two surveys; the inputs of `other` are numbered from `start`."""
        peak = torch.cat((self.peak, other.peak))
        places = torch.cat((self.places, other.places + torch.tensor([start, 0])))
        row = peak.abs().topk(min(BEST, len(peak)), dim=0).indices
        peak, places = peak.gather(0, row), places.gather(0, row[..., None].expand(-1, -1, 2))
        both = [(kind, tally, other.tallies[kind]) for kind, tally in self.tallies.items()]
        tallies = {kind: (one[0] + more[0], one[1] + more[1]) for kind, one, more in both}
        n_positions, fired = self.n_positions + other.n_positions, self.fired + other.fired
        return LayerSurvey(n_positions, fired, self.least, peak, places, tallies)


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of all feed-forward neurons of a model over many inputs."""

    adapter: TaskModel
    n_inputs: int
    seed: int
    layers: dict[str, LayerSurvey]
    """By the path of the layer."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens read by the only stack, or by the encoder of an encoder-decoder."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens read by the decoder of an encoder-decoder; empty otherwise."""
    path: str | None = None
    """The path that the model was loaded from, if known."""

    @property
    def code(self) -> str | None:
        """The call that repeats the survey."""
        return self.path and f"xformer.analysis.survey({self.path!r}, {self.n_inputs}, {self.seed})"

    def layer(self, layer: int) -> LayerSurvey:
        """Return the statistics of a feed-forward layer, from 0. Raises `InputError` if there is none."""
        check_index("layer", layer, len(self.layers))
        return self.layers[self.adapter.shape.feed_forward[layer].path]

    def read_by(self, site: LayerPath) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of every input that a layer reads."""
        return self.targets if self.targets and site.stack == "decoder" else self.inputs


def fitting(adapter: TaskModel, work: float = 2e10) -> int:
    """Return how many inputs a survey can run within `work` floating-point operations, from 16 to 500."""
    config, longest = adapter.model.config, max(adapter.task.longest)
    token = 2 * sum(parameter.numel() for parameter in adapter.model.parameters())
    token += 4 * longest * config.n_layers * config.n_heads * config.d_head
    return max(16, min(500, int(work / (token * longest))))


def survey(model: str | Path | Checkpoint | TaskModel, samples: Count = 500, seed: Seed = 0) -> Survey:
    """Run a model on `samples` inputs sampled from its task, and count where its neurons fire.

    Inputs are from the task's "test" stream, which is never used in training; the same (samples, seed) gives the same inputs.

    Args:
        model: A checkpoint with a task, or its path.
        samples: The number of inputs; fewer if the task has fewer unseen ones.
        seed: The seed of the sampled inputs.

    Returns:
        The survey, for `firing`, `triggers`, `exciting_inputs` and `neurons`.

    Raises:
        InputError: If the model has no task.

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.firing(survey)
    """
    adapter = own_task_model(adapter_of(model))
    task, path = adapter.task, str(model) if isinstance(model, str | Path) else None
    n = min(samples, task.rule.n_held_out or samples)
    sample = task.sample(n, seed=seed)
    batch = max(1, min(250, MAX_TOKENS_AT_ONCE // max(task.longest)))
    pad = task.vocabulary.special.pad
    keep = [*(f"{site.path}.post" for site in adapter.shape.feed_forward), "logits"]
    layers: dict[str, LayerSurvey] = {}
    for start in range(0, n, batch):
        rows = sample.rows(start, min(start + batch, n))
        valid, target_valid = rows.valid, None if rows.target is None else rows.target != pad
        how = {"valid": valid, "target_valid": target_valid, "keep": keep, "fused": True}
        trace = record(adapter.model, rows.tokens, rows.target, **how).cpu()
        for site in adapter.shape.feed_forward:
            read, real = rows.tokens, valid  # real [batch, pos], or None: no padding
            if rows.target is not None and site.stack == "decoder":
                read, real = rows.target, target_valid
            known = layers.get(site.path)
            found = _survey_batch(adapter, site.path, trace, read, real, known)
            layers[site.path] = known.joined(found, start) if known else found
    inputs = _sequences(sample.tokens, -1 if adapter.shape.image else pad)
    targets = () if sample.target is None else _sequences(sample.target, pad)
    return Survey(adapter, n, seed, layers, inputs, targets, path)


def _survey_batch(
    adapter: TaskModel, path: str, trace: Trace, read: Tensor, real: Tensor | None, known: LayerSurvey | None
) -> LayerSurvey:
    """Count one layer in one batch: `read` are its tokens [batch, pos], `real` is False at padding."""
    post = trace[f"{path}.post"]  # [batch, pos, d_ff]
    if real is None:
        real = post.new_ones(post.shape[:2], dtype=torch.bool)
    size = post.abs().masked_fill(~real[..., None], -1.0)  # padding is never the largest
    least = known.least if known else fires_above(size[0].amax(dim=0), written_norms(adapter, path))
    position = torch.arange(real.shape[1]).expand(real.shape) - (~real).cumsum(dim=1)  # padding may be on the left
    keys = {} if adapter.shape.image else {"reads": read}
    if trace.logits.shape[1] == post.shape[1]:
        keys["says"] = trace.logits.argmax(dim=-1)
    keys |= {"position": position, "from_end": real.sum(dim=1, keepdim=True) - 1 - position}
    sizes = {"reads": len(adapter.token_labels), "says": len(adapter.token_labels)}
    longest = max(adapter.task.longest) + 1
    tallies = {kind: _tally(key[real], size[real], sizes.get(kind, longest)) for kind, key in keys.items()}
    top = size.max(dim=1)  # [batch, d_ff]
    row = top.values.topk(min(BEST, len(post)), dim=0).indices  # [best, d_ff]
    peak = post.gather(1, top.indices[:, None])[:, 0].gather(0, row)  # [best, d_ff], with their signs
    places = torch.stack((row, top.indices.gather(0, row)), dim=-1)  # [best, d_ff, 2]
    return LayerSurvey(int(real.sum()), (size > least).sum(dim=(0, 1)), least, peak, places, tallies)


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


def _tally(key: Int[Tensor, " real"], size: Float[Tensor, "real d_ff"], n_values: int) -> Tally:
    return size.new_zeros(n_values, size.shape[1]).index_add_(0, key, size), key.bincount(minlength=n_values)


def triggers(of: Reading | Survey, *, layer: int) -> pd.DataFrame:
    """Determine what each neuron of a layer fires on: a token that is read, a token that is predicted there, or a position.

    A kind of trigger is clear if up to three of its values hold at least half of the neuron's |activation|, and at least three
    times their even share, which is the share of positions with these values. Of several clear kinds, the one furthest above
    its even share is reported. In a single run only the tokens that are read count as triggers.

    Args:
        of: A survey or a run.
        layer: The feed-forward layer, from 0.

    Returns:
        A row per neuron: neuron, trigger ("reads", "says", "position", "from_end", or "none" if no kind is clear), on (the
        tokens or positions, strongest first), share (of the neuron's activation on them) and even (their even share).

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.triggers(survey, layer=3)
        >>> table["trigger"].value_counts().index[0]
        'says'
    """
    if isinstance(of, Survey):
        counted = of.layer(layer)
        tallies, is_known = counted.tallies, counted.fired >= MIN_FIRINGS
        names = {"reads": of.adapter.token_labels, "says": of.adapter.token_labels}
    else:
        site = of.feed_forward_path(layer)
        size, real, texts = of[f"{site.path}.post"][0].abs(), of.trace.real(site.stack), of.tokens_of(site.stack)
        if len(texts) != len(size):  # the positions are not those of the tokens, so no token is a trigger
            texts, real = ("",) * len(size), None
        codes, values = pd.factorize(np.array(texts, dtype=object))
        key = torch.from_numpy(codes)
        chosen = slice(None) if real is None else real
        tallies, is_known = {"reads": _tally(key[chosen], size[chosen], len(values))}, size.sum(dim=0) > 0
        names = {"reads": tuple(values)}
    rows: list[tuple[str, tuple[str | int, ...], float, float]] = [("none", (), 0.0, 0.0)] * len(is_known)
    best = torch.zeros(len(is_known))
    for kind, (sums, count) in tallies.items():
        order = (sums / count[:, None].clamp(min=1)).topk(min(MAX_VALUES, len(sums)), dim=0).indices  # [most, d_ff]
        shares = (sums.gather(0, order) / sums.sum(dim=0).clamp(min=1e-12)).cumsum(dim=0)
        evens = (count[order] / count.sum()).cumsum(dim=0)
        clear = (shares >= CLEAR_SHARE) & (shares >= OVER_EVEN * evens) & is_known
        first = clear.int().argmax(dim=0, keepdim=True)  # the fewest values that suffice
        here, there = shares.gather(0, first)[0], evens.gather(0, first)[0]
        for neuron in (clear.any(dim=0) & (here - there > best + 1e-6)).nonzero()[:, 0].tolist():
            chosen = order[: int(first[0, neuron]) + 1, neuron].tolist()
            on = tuple(names[kind][value] if kind in names else value for value in chosen)
            rows[neuron] = (kind, on, here[neuron].item(), there[neuron].item())
            best[neuron] = (here - there)[neuron]
    return pd.DataFrame(rows, columns=["trigger", "on", "share", "even"]).rename_axis("neuron").reset_index()


def firing(of: Reading | Survey) -> pd.DataFrame:
    """Count how many neurons of each feed-forward layer fire, in a run (without its padding) or in a survey.

    Args:
        of: A run or a survey.

    Returns:
        A row per layer: layer (its path), over (the inputs counted), measure (the measure of activity: "written", or
        "activation" if the vectors that the neurons write are not accessible), neurons (their number), dead (how many never
        fire), share_dead, share_ever (share that fires anywhere) and share_at_once (mean share that fires at a position).

    Raises:
        UnavailableError: The model has no feed-forward layers.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.firing(reading)
        >>> list(table.columns)
        ['layer', 'over', 'measure', 'neurons', 'dead', 'share_dead', 'share_ever', 'share_at_once']
    """
    rows = []
    for site in of.adapter.shape.feed_forward:
        if isinstance(of, Survey):
            counted = of.layers[site.path]
            over, count, n_positions = f"{of.n_inputs:,} inputs", counted.fired, counted.n_positions
        else:
            post, real = of[f"{site.path}.post"][0], of.trace.real(site.stack)
            post = post if real is None else post[real]  # [pos, d_ff]
            least = fires_above(post.abs().amax(dim=0), written_norms(of.adapter, site.path))
            over, count, n_positions = "this input", (post.abs() > least).sum(dim=0), len(post)
        dead = int((count == 0).sum())
        measure = "activation" if written_norms(of.adapter, site.path) is None else "written"
        rows.append((site.path, over, measure, len(count), dead, count.sum().item() / (len(count) * n_positions)))
    if not rows:
        raise UnavailableError(f"{of.adapter.name} has no feed-forward layers, so no neurons fire.")
    table = pd.DataFrame(rows, columns=["layer", "over", "measure", "neurons", "dead", "share_at_once"])
    share = table["dead"] / table["neurons"]
    table.insert(5, "share_dead", share)
    table.insert(6, "share_ever", 1 - share)
    return table


def exciting_inputs(of: Survey, *, layer: int, neuron: int) -> pd.DataFrame:
    """List the inputs of a survey at which a neuron is most active, each input once, the most active first.

    Args:
        of: The survey.
        layer: The feed-forward layer, from 0.
        neuron: The neuron, from 0.

    Returns:
        A row per input, none if the neuron is dead: input (its number), position (from 0), token (at that position), activation
        (there), and tokens (the whole input; "" for images).

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.exciting_inputs(survey, layer=1, neuron=7)
        >>> list(table.columns)
        ['input', 'position', 'token', 'activation', 'tokens']
    """
    counted = of.layer(layer)
    site = of.adapter.shape.feed_forward[layer]
    check_index("neuron", neuron, counted.peak.shape[1])
    rows, peaks = [], counted.peak[:, neuron].tolist()
    for value, (index, position) in zip(peaks, counted.places[:, neuron].tolist(), strict=True):
        if abs(value) > counted.least[neuron]:
            names = of.adapter.token_names(torch.tensor(of.read_by(site)[index]))
            text = "" if of.adapter.shape.image else " ".join(names)
            rows.append((index, position, names[position], value, text))
    return pd.DataFrame(rows, columns=["input", "position", "token", "activation", "tokens"])


def neurons(
    reading: Reading,
    *,
    layer: int,
    position: int | None = None,
    n: Count = 10,
    only: Sequence[int] | None = None,
    distinct: bool = False,
    survey: Survey | None = None,
    ablate: bool = False,
) -> pd.DataFrame:
    """List the `n` most active neurons at a position, or on average over all: what they fire on and which tokens they promote.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.
        position: The position, from 0; by default neurons are ranked by their mean activity over all positions.
        n: The number of neurons.
        only: These neurons instead of the most active ones.
        distinct: Take the most active neuron of each trigger first, then the second of each; those without a clear one last.
            With a large vocabulary, neurons that promote clear tokens precede all others.
        survey: The survey from which triggers are determined; by default the reading itself.
        ablate: Whether to measure the effect of ablating each neuron, with one run each.

    Returns:
        A row per neuron: neuron, peak (the given position, else the one where the neuron is most active), activation (at peak),
        activity (see `activity`; the mean over positions if none is given), the columns of `triggers`, and promotes and
        suppresses, the tokens whose logits it raises and lowers most at its peak (if the layer's stream is unembedded). Of a
        vocabulary of more than `MAX_TOKENS`, some tokens are always extreme: there they are those with the largest cosines,
        and "" unless a cosine clearly exceeds those of shuffled vectors. With `ablate` also loss_change (in nats, over the
        labelled outputs) and flips (how many of their likeliest tokens change); for a model without an output head these are
        NaN and 0.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neurons(reading, layer=1, position=0)
        >>> list(table.columns)
        ['neuron', 'peak', 'activation', 'activity', 'trigger', 'on', 'share', 'even', 'promotes', 'suppresses']
    """
    post, labels = reading[f"{reading.feed_forward_path(layer).path}.post"][0], reading.adapter.token_labels
    active = activity(reading, layer=layer)  # [pos, d_ff]
    if position is not None:
        check_index("position", position, len(active))
    rank = active.mean(dim=0) if position is None else active[position]  # [d_ff]
    known = triggers(survey or reading, layer=layer)
    order = rank.argsort(descending=True, stable=True).tolist()
    if distinct:
        ranked = known.assign(none=known["trigger"] == "none").loc[order]
        ranked["nth"] = ranked.groupby(["trigger", ranked["on"].str[0].astype(str)]).cumcount().mask(ranked["none"], 0)
        ranked["vague"] = False
        if len(labels) > MAX_TOKENS and writes_to_output_stream(reading, layer):
            first = order[:CANDIDATES]
            with suppress(UnavailableError):
                written = _favourites(reading, layer, first, _at_peak(post, active, first))["promotes"]
                ranked["vague"] = ~ranked["neuron"].isin(
                    [one for one, text in zip(first, written, strict=True) if text]
                )
        order = ranked.sort_values(["vague", "none", "nth"], kind="stable")["neuron"].tolist()
    chosen = order[:n] if only is None else list(only)
    check_indices("only", chosen, len(rank))
    peak = active[:, chosen].argmax(dim=0) if position is None else torch.full((len(chosen),), position)
    at = post[peak, chosen] if position is not None else _at_peak(post, active, chosen)  # [neuron]
    numbers = {"peak": peak, "activation": at, "activity": rank[chosen]}
    table = pd.DataFrame({"neuron": chosen} | {name: values.tolist() for name, values in numbers.items()})
    table = table.merge(known, on="neuron")
    if writes_to_output_stream(reading, layer):
        with suppress(UnavailableError):  # the matrices are not accessible
            table = table.assign(**_favourites(reading, layer, chosen, at))
    if not ablate:
        return table
    if not reading.has_logits:
        return table.assign(loss_change=math.nan, flips=0)
    answers, name = reading.example.labels[0], f"{reading.feed_forward_path(layer).path}.post"
    losses, predicted = [], []
    # The first of these ablates nothing.
    parts = [(name, where) for where in ((slice(0),), *((..., neuron) for neuron in chosen))]
    for logits in logits_with_replacements(reading, parts):
        losses.append(F.cross_entropy(logits[answers >= 0], answers[answers >= 0]).item())
        predicted.append(logits[answers >= 0].argmax(dim=-1))
    changes = [loss - losses[0] for loss in losses[1:]]
    return table.assign(loss_change=changes, flips=[int((one != predicted[0]).sum()) for one in predicted[1:]])


def _at_peak(
    post: Float[Tensor, "pos d_ff"], active: Float[Tensor, "pos d_ff"], neurons: Sequence[int]
) -> Float[Tensor, " neuron"]:
    """Return the activations of neurons where they are most active."""
    return post[active[:, neurons].argmax(dim=0), neurons]


@torch.no_grad()
def _favourites(
    reading: Reading, layer: int, neurons: Sequence[int], at: Float[Tensor, " neuron"]
) -> dict[str, list[str]]:
    """Return the tokens that neurons promote and suppress with the activations `at`, see `neurons`."""
    labels, weights = reading.adapter.token_labels, reading.adapter.weights
    if len(labels) <= MAX_TOKENS:
        effect, least = direct_logit_effect(reading, layer, neurons), -math.inf  # [neuron, vocab]
    else:
        matrix = weights.unembedding().matrix.float()  # [vocab, d_model]
        check_analysis("direct_logit_effect", "select fewer neurons", neurons=len(neurons), vocab=len(matrix))
        own = weights.projection(reading.feed_forward_path(layer).path).weight.float()  # [neuron, d_model]
        mean = matrix.mean(dim=0)
        lengths = (matrix.square().sum(dim=1) - 2 * matrix @ mean + mean.square().sum()).clamp(min=1e-12).sqrt()

        def cosines(vectors: Float[Tensor, "vector d_model"]) -> Float[Tensor, "vector vocab"]:
            products = vectors @ matrix.T - (vectors @ mean)[:, None]
            return products / (vectors.norm(dim=1, keepdim=True).clamp(min=1e-12) * lengths)

        dice = torch.Generator().manual_seed(0)
        order = torch.stack([torch.randperm(own.shape[1], generator=dice) for _ in range(SHUFFLES)])
        shuffled = own[torch.arange(SHUFFLES) * len(own) // SHUFFLES].gather(1, order)  # of neurons of the whole layer
        effect, least = cosines(own[list(neurons)]), CLEARER * cosines(shuffled).abs().max().item()
    effect = effect * torch.where(at < 0, -1.0, 1.0)[:, None]
    found = {}
    for column, end in (("promotes", effect), ("suppresses", -effect)):
        best = end.topk(min(FAVOURITES, end.shape[1]))
        found[column] = [
            " ".join(labels[token] for token in tokens) if value > least else ""
            for tokens, value in zip(best.indices.tolist(), best.values[:, 0].tolist(), strict=True)
        ]
    return found
