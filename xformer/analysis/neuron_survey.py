"""How often the neurons of the feed-forward layers fire, and on what: counted over many inputs, or in one run.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂        neuron n writes act(…)ₙ × its row of W₂           (Vaswani et al. 2017, §3.3)

A neuron fires where it writes more than a millionth of what its layer's neurons write at their peaks, on average
(`feed_forward.FIRING_SHARE`). The 0 of a ReLU writes nothing. One that fires nowhere on a set of inputs is dead on that set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.analysis.feed_forward import fires_above, written_norms
from xformer.checkpoints import Checkpoint
from xformer.reading import Reading, subject_of
from xformer.site import Site
from xformer.subjects import TaskModel, own_task_model
from xformer.trace import record

MOST_TOKENS_AT_ONCE = 4096
"""Of a batch: so that a step takes a moment and little memory."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What the neurons did over many inputs, or over those that were run so far; each dict is by the path of the layer."""

    subject: TaskModel
    n_inputs: int
    """How many inputs were run …"""
    n_asked: int
    """… of so many that were sampled."""
    seed: int
    n_positions: dict[str, int]
    fired: dict[str, Int[Tensor, " d_ff"]]
    """At how many positions each neuron fired."""
    least: dict[str, Float[Tensor, " d_ff"]]
    """The |activation| above which each neuron fires; the layer's mean peak is that of the first input."""
    peak: dict[str, Float[Tensor, "best d_ff"]]
    """The activations of each neuron that are largest in size, one per input, largest first …"""
    where: dict[str, Int[Tensor, "best d_ff 2"]]
    """… and where: (input, position)."""
    inputs: tuple[tuple[int, ...], ...]
    """The tokens that the encoder's or the only stack's layers read."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that an encoder-decoder's decoder read; else empty."""
    path: str | None = None
    """Where the model was loaded from, if that is known."""

    @property
    def is_final(self) -> bool:
        """Whether all were run that were sampled."""
        return self.n_inputs == self.n_asked

    @property
    def recipe(self) -> str | None:
        """The call that counts it again."""
        first = "" if self.is_final else f", first={self.n_inputs}"
        return self.path and f"xformer.analysis.survey({self.path!r}, {self.n_asked}, {self.seed}{first})"

    def read_by(self, site: Site) -> tuple[tuple[int, ...], ...]:
        """The tokens of every input that a layer reads."""
        return self.targets if self.targets and site.stack == "decoder" else self.inputs


def fitting(subject: TaskModel, work: float = 2e11, most: int = 2000) -> int:
    """How many inputs of the task a survey may run for so much `work`, in floating-point operations; at least 16."""
    config, longest = subject.model.config, max(subject.task.longest)
    token = 2 * sum(parameter.numel() for parameter in subject.model.parameters())
    token += 4 * longest * config.n_layers * config.n_heads * config.d_head
    return max(16, min(most, int(work / (token * longest))))


def survey(
    where: str | Path | Checkpoint | TaskModel, n: int = 2000, seed: int = 0, *, best: int = 8, first: int | None = None
) -> Survey:
    """Run a model on `n` inputs sampled from its task (the "test" stream, so never trained on) and count what fires.

    The same (n, seed) gives the same inputs. `first` runs only so many of them. Raises `InputError` for a model without a task.
    """
    *_, found = surveying(where, n, seed, best=best, first=first)
    return found


def surveying(
    where: str | Path | Checkpoint | TaskModel,
    n: int = 2000,
    seed: int = 0,
    *,
    best: int = 8,
    batch: int | None = None,
    first: int | None = None,
) -> Iterator[Survey]:
    """The same step by step: what was found so far, after each batch of inputs.

    `batch` bounds the memory and the time of a step, and changes nothing else.
    """
    subject = own_task_model(subject_of(where))
    task, path = subject.task, str(where) if isinstance(where, str | Path) else None
    n_asked = min(n, task.rule.unseen or n)
    sample = task.sample(n_asked, seed=seed)
    n = n_asked if first is None else min(n_asked, first)
    batch = max(1, min(250, MOST_TOKENS_AT_ONCE // max(task.longest))) if batch is None else batch
    pad = task.vocabulary.special.pad
    inputs = _sequences(sample.tokens, -1 if subject.shape.image else pad)
    targets = () if sample.target is None else _sequences(sample.target, pad)
    sites = subject.shape.feed_forward
    positions = {site.path: 0 for site in sites}
    fired: dict[str, Tensor] = {}
    least: dict[str, Tensor] = {}
    peak: dict[str, Tensor] = {}
    place: dict[str, Tensor] = {}
    for start in range(0, n, batch):
        end = min(start + batch, n)
        rows = sample.rows(start, end)
        valid = rows.valid  # [batch, pos], or None: no padding
        target_valid = None if rows.target is None else rows.target != pad
        keep = [f"{layer}.post" for layer in positions]
        trace = record(
            subject.model, rows.tokens, rows.target, valid=valid, target_valid=target_valid, keep=keep, fused=True
        )
        for site in sites:
            layer = site.path
            real = target_valid if target_valid is not None and site.stack == "decoder" else valid
            post = trace[f"{layer}.post"]  # [batch, pos, d_ff]
            if real is None:
                real = post.new_ones(post.shape[:2], dtype=torch.bool)
            size = post.abs().masked_fill(~real[..., None], -1.0)  # what is padding is never the largest
            if layer not in least:
                least[layer] = fires_above(size[0].amax(dim=0), written_norms(subject, layer))
            positions[layer] += int(real.sum())
            count = (size > least[layer]).flatten(0, 1).sum(dim=0, dtype=torch.int32)  # [d_ff]
            top = size.max(dim=1)  # [batch, d_ff]
            row = top.values.topk(min(best, len(post)), dim=0).indices  # [best, d_ff]
            at = top.indices.gather(0, row)  # [best, d_ff]
            values = post.gather(1, top.indices[:, None])[:, 0].gather(0, row)  # [best, d_ff], with their signs
            found = torch.stack((start + row, at), dim=-1)  # [best, d_ff, 2]
            if layer in peak:  # the best so far and those of this batch
                values, found = torch.cat((peak[layer], values)), torch.cat((place[layer], found))
                row = values.abs().topk(min(best, len(values)), dim=0).indices
                values, found = values.gather(0, row), found.gather(0, row[..., None].expand(-1, -1, 2))
            peak[layer], place[layer] = values, found
            fired[layer] = fired[layer] + count if layer in fired else count
        counted = dict(positions), dict(fired), dict(least), dict(peak), dict(place)
        yield Survey(subject, end, n_asked, seed, *counted, inputs, targets, path)


def _sequences(tokens: Int[Tensor, "batch pos"], pad: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token for token in row if token != pad) for row in tokens.tolist())


def firing(of: Reading | Survey) -> pd.DataFrame:
    """One row per feed-forward layer, of a run (its padding left out) or of a survey.

    Columns: layer, over (what was counted over), measure (of activity: "written", or "activation" where what the neurons write
    is out of reach), neurons, dead (how many fire nowhere), share_dead, share_ever (that fire anywhere), share_at_once (that
    fire at an average position).
    """
    rows = []
    for site in of.subject.shape.feed_forward:
        if isinstance(of, Survey):
            over, count, n_positions = f"{of.n_inputs:,} inputs", of.fired[site.path], of.n_positions[site.path]
        else:
            post, real = of[f"{site.path}.post"][0], of.trace.real(site.stack)
            post = post if real is None else post[real]  # [pos, d_ff]
            least = fires_above(post.abs().amax(dim=0), written_norms(of.subject, site.path))
            over, count, n_positions = "this input", (post.abs() > least).sum(dim=0), len(post)
        dead = int((count == 0).sum())
        rows.append(
            {
                "layer": site.path,
                "over": over,
                "measure": "activation" if written_norms(of.subject, site.path) is None else "written",
                "neurons": len(count),
                "dead": dead,
                "share_dead": dead / len(count),
                "share_ever": 1 - dead / len(count),
                "share_at_once": count.sum().item() / (len(count) * n_positions),
            }
        )
    return pd.DataFrame(rows)


def exciting_inputs(of: Survey, *, layer: int, neuron: int) -> pd.DataFrame:
    """The inputs at which a neuron writes most in a survey, each once, the most first; none where the neuron is dead.

    Columns: input (its number), position, token (what stands there), activation, tokens (all that it reads, of a text).
    """
    site = of.subject.shape.feed_forward[layer]
    peaks, places = of.peak[site.path][:, neuron].tolist(), of.where[site.path][:, neuron].tolist()
    rows = []
    for value, (index, position) in zip(peaks, places, strict=True):
        if abs(value) > of.least[site.path][neuron]:
            names = of.subject.names(torch.tensor(of.read_by(site)[index]))
            text = "" if of.subject.shape.image else " ".join(names)
            rows.append((index, position, names[position], value, text))
    return pd.DataFrame(rows, columns=["input", "position", "token", "activation", "tokens"])
