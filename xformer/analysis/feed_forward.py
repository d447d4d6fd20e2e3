"""Neurons of feed-forward layers: activations, what they write, the effect of ablating them, and surveys over many inputs.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂                                               (Vaswani et al. 2017, §3.3)

What neuron n writes is its activation × its row of W₂ (Geva et al. 2021, arXiv:2012.14913: feed-forward layers are key-value
memories), which through the unembedding favours some tokens. Its activity is the norm of that: |activation| × ‖row of W₂‖.
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

from xformer.adapters import ModelAdapter, TaskModel, own_task_model
from xformer.analysis.ablation import each_logits_with
from xformer.analysis.tables import array_table
from xformer.checkpoints import Checkpoint
from xformer.errors import EditError, UnavailableError
from xformer.memory import check_analysis
from xformer.reading import Reading, adapter_of
from xformer.site import Site
from xformer.trace import Trace, record

FIRING_SHARE = 1e-6
"""A neuron fires where its activity is more than this share of the layer's mean peak: the mean over its neurons of the largest
activity of each. One that never fires is dead. The 0 of a ReLU writes nothing."""
FAVOURITES = 3
"""How many tokens are named that a neuron promotes, and that it suppresses."""
MOST_TOKENS = 2048
"""The most tokens in a table of promotions; of larger vocabularies those that change most."""


def activations(
    reading: Reading, *, layer: int, stage: str = "post", positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """One row per position (all, unless `positions` are given): position, token, and a column for each neuron.

    `stage` is "post", after the activation function, or "pre", before it; with a gate "post" is the product of what the
    function makes of the gate and of "up", what that is multiplied with.

    Args:
        reading: The run.
        layer: The layer, from 0.
        stage: "pre" or "post" the nonlinearity.
        positions: The positions, from 0; all of them by default.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.activations(reading, layer=1)
        >>> table.shape  # rows are positions, columns are neurons
        (5, 514)
    """
    site = reading.feed_forward_site(layer)
    values, tokens = reading[f"{site.path}.{stage}"][0], reading.tokens_of(site.stack)  # [pos, d_ff]
    shown = list(range(len(values)) if positions is None else positions)
    table = pd.DataFrame(values[shown].numpy(force=True))
    table.insert(0, "position", shown)
    table.insert(1, "token", [tokens[position] for position in shown])
    return table


def neuron(reading: Reading, *, layer: int, neuron: int, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """The activation of one neuron, one row a position: position, token, activation.

    Args:
        reading: The run.
        layer: The layer, from 0.
        neuron: The neuron, from 0.
        positions: The positions, from 0; all of them by default.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neuron(reading, layer=1, neuron=7)
        >>> list(table.columns)
        ['position', 'token', 'activation']
    """
    table = activations(reading, layer=layer, positions=positions)
    return table[["position", "token"]].assign(activation=table[neuron])


@torch.no_grad()
def written_norms(subject: ModelAdapter, path: str) -> Float[Tensor, " d_ff"] | None:
    """The norm of what each neuron of a layer writes at an activation of 1; None where no single matrix writes it."""
    try:
        own = subject.weights.projection(path)
    except UnavailableError:
        return None
    return own.weight.float().norm(dim=1) * abs(own.factor)


def activity(reading: Reading, *, layer: int) -> Float[Tensor, "pos d_ff"]:
    """|activation| × the norm of the vector that each neuron writes.

    Where those vectors are out of reach (`written_norms` is None), it is |activation|.
    """
    path = reading.feed_forward_site(layer).path
    size, norms = reading[f"{path}.post"][0].abs(), written_norms(reading.subject, path)
    return size if norms is None else size * norms


def fires_above(peak: Float[Tensor, " d_ff"], norms: Float[Tensor, " d_ff"] | None) -> Float[Tensor, " d_ff"]:
    """The |activation| above which each neuron fires, see `FIRING_SHARE`.

    Args:
        peak: the largest |activation| of each neuron.
        norms: what `written_norms` gives.
    """
    norms = torch.ones_like(peak) if norms is None else norms
    least = FIRING_SHARE * (peak * norms).mean() / norms
    return least.masked_fill(norms == 0, torch.inf)


def top_neurons(reading: Reading, *, layer: int, position: int, n: int = 10) -> list[int]:
    """The `n` most active neurons at a position, see `activity`, the most active first."""
    here = activity(reading, layer=layer)[position]  # [d_ff]
    return here.topk(min(n, len(here))).indices.tolist()


def speaks_directly(reading: Reading, layer: int) -> bool:
    """Whether the layer stands on the stream that is unembedded: an encoder-decoder's encoder does not."""
    return reading.feed_forward_site(layer).stack == reading.output_stack


@torch.no_grad()
def direct_logit_effect(
    reading: Reading, layer: int, neurons: Sequence[int] | None = None
) -> Float[Tensor, "neuron vocab"]:
    """W₂ W_U: what one unit of each neuron's activation (all, unless some are given) adds to each logit on the direct path to
    the unembedding.

    The path is the whole truth in the last layer of a model without norms. Elsewhere it leaves out what later layers make
    of it, and that every norm in between rescales it. Raises `UnavailableError` where the matrices are out of reach, and
    `InputError` where the result is too large.
    """
    weights = reading.subject.weights
    own = weights.projection(reading.feed_forward_site(layer).path)
    written = own.weight if neurons is None else own.weight[list(neurons)]  # [neuron, d_model]
    matrix = weights.unembedding().matrix  # [vocab, d_model]
    check_analysis("direct_logit_effect", "name some neurons", neurons=len(written), vocab=len(matrix))
    return (written if own.factor == 1.0 else written * own.factor) @ matrix.T


def promotion(
    reading: Reading, *, layer: int, position: int, n: int = 10, only: Sequence[int] | None = None
) -> pd.DataFrame:
    """What the `n` most active neurons at a position add to each logit there: neuron, token, adds (activation × direct effect).

    Of a vocabulary of more than `MOST_TOKENS` the tokens are there that any of the neurons changes most. Raises `EditError`
    for a layer whose stream is not unembedded.

    Args:
        reading: The run.
        layer: The layer, from 0.
        position: The position, from 0.
        n: The number of neurons.
        only: These neurons instead of the most active ones.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.promotion(reading, layer=3, position=0)
        >>> list(table.columns)
        ['neuron', 'token', 'adds']
    """
    if not speaks_directly(reading, layer):
        raise EditError(f"{reading.feed_forward_site(layer).path} writes to a stream that is not unembedded.")
    chosen = top_neurons(reading, layer=layer, position=position, n=n) if only is None else list(only)
    labels = reading.subject.labels
    post = reading[f"{reading.feed_forward_site(layer).path}.post"][0, position, chosen]  # [neuron]
    effect = direct_logit_effect(reading, layer, chosen) * post[:, None]  # [neuron, vocab]
    tokens = torch.arange(effect.shape[1])
    if len(tokens) > MOST_TOKENS:
        tokens = effect.abs().amax(dim=0).topk(MOST_TOKENS).indices.sort().values
        effect = effect[:, tokens]
    names = [labels[token] for token in tokens.tolist()]
    return array_table({"neuron": chosen}, {"token": names}, adds=effect.double())


def neurons(
    reading: Reading,
    *,
    layer: int,
    position: int | None = None,
    n: int = 10,
    only: Sequence[int] | None = None,
    distinct: bool = False,
    survey: Survey | None = None,
    ablate: bool = False,
) -> pd.DataFrame:
    """The `n` most active neurons at a position, or on average over all of them: what they fire on and what they promote.

    Args:
        reading: The run.
        layer: The layer, from 0.
        position: The position, from 0; by default the mean over all positions ranks them.
        n: The number of neurons.
        only: These neurons instead of the most active ones.
        distinct: Take the most active neuron of each trigger first, then the second of each; those without a clear one last.
        survey: The inputs from which the triggers are found; by default the reading.
        ablate: Whether to measure what ablating each neuron does; that runs the model once for each.

    Returns:
        One row per neuron: neuron, peak (the position, if none is given, where it is most active), activation (there), activity
        (see `activity`), the columns of `triggers`, and the tokens that it promotes and suppresses there (where the layer's
        stream is unembedded). With `ablate`, loss_change, in nats, over the labelled outputs, and flips, how many of their
        likeliest tokens change. A model without an output head has no loss: NaN, and 0 flips.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neurons(reading, layer=1, position=0)
        >>> list(table.columns)
        ['neuron', 'peak', 'activation', 'activity', 'trigger', 'on', 'share', 'even', 'promotes', 'suppresses']
    """
    post, labels = reading[f"{reading.feed_forward_site(layer).path}.post"][0], reading.subject.labels
    active = activity(reading, layer=layer)  # [pos, d_ff]
    rank = active.mean(dim=0) if position is None else active[position]  # [d_ff]
    known = triggers(survey or reading, layer=layer)
    order = rank.argsort(descending=True, stable=True).tolist()
    if distinct:
        ranked = known.assign(none=known["trigger"] == "none").loc[order]
        ranked["nth"] = ranked.groupby(["trigger", ranked["on"].str[0].astype(str)]).cumcount().mask(ranked["none"], 0)
        order = ranked.sort_values(["none", "nth"], kind="stable")["neuron"].tolist()
    chosen = order[:n] if only is None else list(only)
    peak = active[:, chosen].argmax(dim=0) if position is None else torch.full((len(chosen),), position)
    at = post[peak, chosen]  # [neuron]
    numbers = {"peak": peak, "activation": at, "activity": rank[chosen]}
    table = pd.DataFrame({"neuron": chosen} | {name: of.tolist() for name, of in numbers.items()})
    table = table.merge(known, on="neuron")
    if speaks_directly(reading, layer):
        with suppress(UnavailableError):  # then its matrices are out of reach
            effect = direct_logit_effect(reading, layer, chosen) * torch.where(at < 0, -1.0, 1.0)[:, None]
            for column, end in (("promotes", effect), ("suppresses", -effect)):
                best = end.topk(min(FAVOURITES, effect.shape[1])).indices.tolist()
                table[column] = [" ".join(labels[token] for token in order) for order in best]
    if not ablate:
        return table
    if not reading.has_logits:
        return table.assign(loss_change=math.nan, flips=0)
    answers, name = reading.example.labels[0], f"{reading.feed_forward_site(layer).path}.post"
    losses, predicted = [], []
    parts = [(name, where) for where in ((slice(0),), *((..., neuron) for neuron in chosen))]  # first none is ablated
    for logits in each_logits_with(reading, parts):
        losses.append(F.cross_entropy(logits[answers >= 0], answers[answers >= 0]).item())
        predicted.append(logits[answers >= 0].argmax(dim=-1))
    changes = [loss - losses[0] for loss in losses[1:]]
    return table.assign(loss_change=changes, flips=[int((one != predicted[0]).sum()) for one in predicted[1:]])


BEST = 8
"""How many inputs are kept for each neuron: those at which it is most active."""
MOST_TOKENS_AT_ONCE = 4096
"""Tokens of one batch of a survey."""


Tally = tuple[Float[Tensor, "value d_ff"], Int[Tensor, " value"]]
"""The summed |activation| of each neuron at each value of a trigger, and at how many positions that value stood."""


@dataclass(frozen=True, eq=False)
class LayerSurvey:
    """What the neurons of one layer did over many inputs."""

    n_positions: int
    fired: Int[Tensor, " d_ff"]
    """At how many positions each neuron fired."""
    least: Float[Tensor, " d_ff"]
    """The |activation| above which each neuron fires; the layer's mean peak is that of the first input."""
    peak: Float[Tensor, "best d_ff"]
    """The activations of each neuron that are largest in size, one per input, largest first …"""
    places: Int[Tensor, "best d_ff 2"]
    """… and where: (input, position)."""
    tallies: dict[str, Tally]
    """For each kind of trigger, how much of each neuron's activation falls on each of its values."""

    def joined(self, other: LayerSurvey, start: int) -> LayerSurvey:
        """The survey of the inputs of both; those of `other` are numbered from `start` on."""
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
    """What the neurons did over many inputs."""

    subject: TaskModel
    n_inputs: int
    seed: int
    layers: dict[str, LayerSurvey]
    """By the path of the layer."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens that the encoder's or the only stack's layers read."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that an encoder-decoder's decoder read; else empty."""
    path: str | None = None
    """Where the model was loaded from, if that is known."""

    @property
    def recipe(self) -> str | None:
        """The call that counts it again."""
        return self.path and f"xformer.analysis.survey({self.path!r}, {self.n_inputs}, {self.seed})"

    def read_by(self, site: Site) -> tuple[tuple[int, ...], ...]:
        """The tokens of every input that a layer reads."""
        return self.targets if self.targets and site.stack == "decoder" else self.inputs


def fitting(subject: TaskModel, work: float = 2e10, most: int = 500) -> int:
    """How many inputs of the task a survey may run for so much `work`, in floating-point operations; at least 16."""
    config, longest = subject.model.config, max(subject.task.longest)
    token = 2 * sum(parameter.numel() for parameter in subject.model.parameters())
    token += 4 * longest * config.n_layers * config.n_heads * config.d_head
    return max(16, min(most, int(work / (token * longest))))


def survey(where: str | Path | Checkpoint | TaskModel, n: int = 500, seed: int = 0) -> Survey:
    """Run a model on `n` inputs sampled from its task (the "test" stream, so never trained on) and count what fires.

    The same (n, seed) gives the same inputs. Raises `InputError` for a model without a task.

    Args:
        where: A checkpoint with a task, or its folder.
        n: The number of inputs.
        seed: The seed of the random numbers.

    Returns:
        The survey.

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.firing(survey)
    """
    subject = own_task_model(adapter_of(where))
    task, path = subject.task, str(where) if isinstance(where, str | Path) else None
    n = min(n, task.rule.unseen or n)
    sample = task.sample(n, seed=seed)
    batch = max(1, min(250, MOST_TOKENS_AT_ONCE // max(task.longest)))
    pad = task.vocabulary.special.pad
    keep = [*(f"{site.path}.post" for site in subject.shape.feed_forward), "logits"]
    layers: dict[str, LayerSurvey] = {}
    for start in range(0, n, batch):
        rows = sample.rows(start, min(start + batch, n))
        valid, target_valid = rows.valid, None if rows.target is None else rows.target != pad
        how = {"valid": valid, "target_valid": target_valid, "keep": keep, "fused": True}
        trace = record(subject.model, rows.tokens, rows.target, **how).cpu()
        for site in subject.shape.feed_forward:
            read, real = rows.tokens, valid  # real [batch, pos], or None: no padding
            if rows.target is not None and site.stack == "decoder":
                read, real = rows.target, target_valid
            known = layers.get(site.path)
            found = _survey_batch(subject, site.path, trace, read, real, known)
            layers[site.path] = known.joined(found, start) if known else found
    inputs = _sequences(sample.tokens, -1 if subject.shape.image else pad)
    targets = () if sample.target is None else _sequences(sample.target, pad)
    return Survey(subject, n, seed, layers, inputs, targets, path)


def _survey_batch(
    subject: TaskModel, path: str, trace: Trace, read: Tensor, real: Tensor | None, known: LayerSurvey | None
) -> LayerSurvey:
    """Count one layer in one batch: `read` are its tokens [batch, pos], `real` those that are no padding."""
    post = trace[f"{path}.post"]  # [batch, pos, d_ff]
    if real is None:
        real = post.new_ones(post.shape[:2], dtype=torch.bool)
    size = post.abs().masked_fill(~real[..., None], -1.0)  # what is padding is never the largest
    least = known.least if known else fires_above(size[0].amax(dim=0), written_norms(subject, path))
    position = torch.arange(real.shape[1]).expand(real.shape) - (~real).cumsum(dim=1)  # padding may stand first
    keys = {} if subject.shape.image else {"reads": read}
    if trace.logits.shape[1] == post.shape[1]:
        keys["says"] = trace.logits.argmax(dim=-1)
    keys |= {"position": position, "from_end": real.sum(dim=1, keepdim=True) - 1 - position}
    sizes = {"reads": len(subject.labels), "says": len(subject.labels)}
    longest = max(subject.task.longest) + 1
    tallies = {kind: _tally(key[real], size[real], sizes.get(kind, longest)) for kind, key in keys.items()}
    top = size.max(dim=1)  # [batch, d_ff]
    row = top.values.topk(min(BEST, len(post)), dim=0).indices  # [best, d_ff]
    peak = post.gather(1, top.indices[:, None])[:, 0].gather(0, row)  # [best, d_ff], with their signs
    places = torch.stack((row, top.indices.gather(0, row)), dim=-1)  # [best, d_ff, 2]
    return LayerSurvey(int(real.sum()), (size > least).sum(dim=(0, 1)), least, peak, places, tallies)


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


CLEAR_SHARE, OVER_EVEN, MOST_VALUES, LEAST_FIRINGS = 0.5, 3.0, 3, 20
"""A trigger is clear where at most so many values hold half of a neuron's activation, and three times their even share. In a
survey the neuron has to fire at twenty positions."""


def _tally(key: Int[Tensor, " real"], size: Float[Tensor, "real d_ff"], n_values: int) -> Tally:
    return size.new_zeros(n_values, size.shape[1]).index_add_(0, key, size), key.bincount(minlength=n_values)


def triggers(of: Reading | Survey, *, layer: int) -> pd.DataFrame:
    """What each neuron of a layer fires on: a token that is read, one that the model says there, or a position.

    A kind of trigger is clear where up to three of its values hold half of the neuron's |activation| and at least three times
    their even share: that of the positions at which they stand. Of several clear kinds the one furthest above its even
    share is taken, the first of equal ones. Of a single run only the tokens that are read count as triggers.

    Args:
        of: A survey, or a run.
        layer: The layer, from 0.

    Returns:
        One row per neuron: neuron, trigger ("reads", "says", "position", "from_end", or "none" where nothing is clear), on (the
        tokens or positions, the strongest first), share (of the neuron's activation there) and even (the even share).

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.triggers(survey, layer=3)
        >>> table["trigger"].value_counts().index[0]
        'says'
    """
    if isinstance(of, Survey):
        counted = of.layers[of.subject.shape.feed_forward[layer].path]
        tallies, is_known = counted.tallies, counted.fired >= LEAST_FIRINGS
        names = {"reads": of.subject.labels, "says": of.subject.labels}
    else:
        site = of.feed_forward_site(layer)
        codes, values = pd.factorize(np.array(of.tokens_of(site.stack), dtype=object))
        key, size, real = torch.from_numpy(codes), of[f"{site.path}.post"][0].abs(), of.trace.real(site.stack)
        chosen = slice(None) if real is None else real
        tallies, is_known = {"reads": _tally(key[chosen], size[chosen], len(values))}, size.sum(dim=0) > 0
        names = {"reads": tuple(values)}
    rows: list[tuple[str, tuple[str | int, ...], float, float]] = [("none", (), 0.0, 0.0)] * len(is_known)
    best = torch.zeros(len(is_known))
    for kind, (sums, count) in tallies.items():
        order = (sums / count[:, None].clamp(min=1)).topk(min(MOST_VALUES, len(sums)), dim=0).indices  # [most, d_ff]
        shares = (sums.gather(0, order) / sums.sum(dim=0).clamp(min=1e-12)).cumsum(dim=0)
        evens = (count[order] / count.sum()).cumsum(dim=0)
        clear = (shares >= CLEAR_SHARE) & (shares >= OVER_EVEN * evens) & is_known
        first = clear.int().argmax(dim=0, keepdim=True)  # the fewest values that do
        here, there = shares.gather(0, first)[0], evens.gather(0, first)[0]
        for neuron in (clear.any(dim=0) & (here - there > best + 1e-6)).nonzero()[:, 0].tolist():
            chosen = order[: int(first[0, neuron]) + 1, neuron].tolist()
            on = tuple(names[kind][value] if kind in names else value for value in chosen)
            rows[neuron] = (kind, on, here[neuron].item(), there[neuron].item())
            best[neuron] = (here - there)[neuron]
    return pd.DataFrame(rows, columns=["trigger", "on", "share", "even"]).rename_axis("neuron").reset_index()


def firing(of: Reading | Survey) -> pd.DataFrame:
    """One row per feed-forward layer, of a run (its padding left out) or of a survey.

    Columns: layer, over (what was counted over), measure (of activity: "written", or "activation" where what the neurons write
    is out of reach), neurons, dead (how many fire nowhere), share_dead, share_ever (that fire anywhere), share_at_once (that
    fire at an average position).

    Args:
        of: A run or a survey.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.firing(reading)
        >>> list(table.columns)
        ['layer', 'over', 'measure', 'neurons', 'dead', 'share_dead', 'share_ever', 'share_at_once']
    """
    rows = []
    for site in of.subject.shape.feed_forward:
        if isinstance(of, Survey):
            counted = of.layers[site.path]
            over, count, n_positions = f"{of.n_inputs:,} inputs", counted.fired, counted.n_positions
        else:
            post, real = of[f"{site.path}.post"][0], of.trace.real(site.stack)
            post = post if real is None else post[real]  # [pos, d_ff]
            least = fires_above(post.abs().amax(dim=0), written_norms(of.subject, site.path))
            over, count, n_positions = "this input", (post.abs() > least).sum(dim=0), len(post)
        dead = int((count == 0).sum())
        measure = "activation" if written_norms(of.subject, site.path) is None else "written"
        rows.append((site.path, over, measure, len(count), dead, count.sum().item() / (len(count) * n_positions)))
    table = pd.DataFrame(rows, columns=["layer", "over", "measure", "neurons", "dead", "share_at_once"])
    share = table["dead"] / table["neurons"]
    table.insert(5, "share_dead", share)
    table.insert(6, "share_ever", 1 - share)
    return table


def exciting_inputs(of: Survey, *, layer: int, neuron: int) -> pd.DataFrame:
    """The inputs at which a neuron writes most in a survey, each once, the most first; none where the neuron is dead.

    Columns: input (its number), position, token (what stands there), activation, tokens (all that it reads, of a text).

    Args:
        of: The survey.
        layer: The layer, from 0.
        neuron: The neuron, from 0.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> survey = xformer.analysis.survey("checkpoints/reverse", 50)
        >>> table = xformer.analysis.exciting_inputs(survey, layer=1, neuron=7)
        >>> list(table.columns)
        ['input', 'position', 'token', 'activation', 'tokens']
    """
    site = of.subject.shape.feed_forward[layer]
    counted = of.layers[site.path]
    rows, peaks = [], counted.peak[:, neuron].tolist()
    for value, (index, position) in zip(peaks, counted.places[:, neuron].tolist(), strict=True):
        if abs(value) > counted.least[neuron]:
            names = of.subject.names(torch.tensor(of.read_by(site)[index]))
            text = "" if of.subject.shape.image else " ".join(names)
            rows.append((index, position, names[position], value, text))
    return pd.DataFrame(rows, columns=["input", "position", "token", "activation", "tokens"])


def expert_weights(reading: Reading, *, layer: int) -> pd.DataFrame:
    """One row for each position and expert: position, token, expert (from 0), weight; 0 for an expert that is not taken.

    `layer` counts the feed-forward layers from 0. Raises `EditError` where there is no such layer, `UnavailableError` where it
    has no router that was found.

    Args:
        reading: The run.
        layer: The layer, from 0.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=16, num_attention_heads=4, num_key_value_heads=2)
        >>> model = MixtralForCausalLM(MixtralConfig(vocab_size=99, num_hidden_layers=2, num_local_experts=4, **sizes))
        >>> reading = xformer.read(model, [5, 6, 7])
        >>> table = xformer.analysis.expert_weights(reading, layer=1)
        >>> list(table.columns)
        ['position', 'token', 'expert', 'weight']
    """
    site = reading.feed_forward_site(layer)
    weights = reading[f"{site.path}.experts"][0].float()  # [pos, expert]
    n, n_experts = weights.shape
    at = {"position": range(n), "token": reading.tokens_of(site.stack)}
    return array_table(at, {"expert": range(n_experts)}, weight=weights.double())
