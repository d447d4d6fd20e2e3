"""Examining a model: a run that lets every check decide, a padded batch of different inputs; then runs beside that one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.config import ModelConfig
from xformer.diagnosis.behaviour import Examination, check_behaviours
from xformer.diagnosis.case import Finding
from xformer.diagnosis.diagnose import diagnose
from xformer.diagnosis.report import Report
from xformer.layers.layout import Layout
from xformer.model import Transformer
from xformer.tasks import Task

N_INPUTS = 24
"""With a dozen tokens each, more rows than a stream of 128 dimensions has directions."""
LEAST_TOKENS = 768
"""Of longer inputs fewer do: as many as have this many tokens, or four times as many as the stream has dimensions."""
LONGEST_TASK = 64
"""A task whose inputs are longer is examined on random tokens, as none is: the equations hold for any input, and the work grows
with the square of the length."""


def examination(config: ModelConfig, task: Task | None = None, *, inputs: int = N_INPUTS, seed: int = 0) -> Examination:
    """Different inputs of different lengths: the task's own where there is one of short inputs, random tokens where not.

    No two lengths agree that a mistake could take for each other: each row's source and target differ in length, and so does
    the padding of the rows.
    """
    if config.image:
        return _of_images(config, task, inputs, seed)
    if task is not None and max(task.longest) > LONGEST_TASK:
        task = None
    if task is not None:
        inputs = min(inputs, -(-max(LEAST_TOKENS, 4 * config.d_model) // max(task.longest)))
        batch = task.sample(inputs, seed=seed, purpose="test")
        source = batch.tokens, _tokens_of(batch.tokens, batch.layout)
        if batch.target is None or batch.target_layout is None:
            return _uneven(Examination(*source), config.pad_token)
        target = batch.target, _tokens_of(batch.target, batch.target_layout)
        return _uneven(Examination(*source, *target), config.pad_token)
    draw = torch.Generator().manual_seed(seed)
    n_pos = min(config.max_len, 13)
    lengths = torch.randint(max(1, n_pos // 3), n_pos + 1, (inputs,), generator=draw)
    lengths[0] = n_pos
    valid = torch.arange(n_pos) < lengths[:, None]  # [batch, pos]

    def tokens() -> Tensor:
        drawn = torch.randint(0, config.vocab_size, valid.shape, generator=draw)
        other = (config.pad_token + 1) % config.vocab_size
        return drawn.masked_fill(drawn == config.pad_token, other).masked_fill(~valid, config.pad_token)

    if config.architecture != "encoder-decoder":
        return Examination(tokens(), valid)
    return _uneven(Examination(tokens(), valid, tokens(), valid), config.pad_token)


def examine(model: Transformer, task: Task | None = None, *, seed: int = 0) -> list[Finding]:
    """What is wrong with a model, from a run of it on an `examination` and from what it does on others."""
    return check_up(model, task, seed=seed).findings


def check_up(model: Transformer, task: Task | None = None, *, seed: int = 0) -> Report:
    """The same with what was looked at. Where the run itself shows an error, what the model does besides is left out: it could
    only repeat that in other words."""
    inputs = examination(model.config, task, seed=seed)
    report = diagnose(inputs.record(model), valid=inputs.valid, target_valid=inputs.target_valid, model=model)
    if any(finding.severity == "error" for finding in report.findings):
        return report
    found, pairs = check_behaviours(model, inputs)
    return report.with_behaviours(found, pairs)


def _of_images(config: ModelConfig, task: Task | None, inputs: int, seed: int) -> Examination:
    """The task's images, or random ones; every position of them counts."""
    if task is not None:
        pixels = task.sample(inputs, seed=seed, purpose="test").tokens
    else:
        draw = torch.Generator().manual_seed(seed)
        pixels = torch.randint(0, config.n_inputs, (inputs, config.image**2), generator=draw)
    return Examination(pixels, torch.ones(inputs, config.max_len, dtype=torch.bool))


def _tokens_of(tokens: Int[Tensor, "batch pos"], layout: Layout) -> Bool[Tensor, "batch pos"]:
    """Which cells hold tokens."""
    return torch.ones_like(tokens).bool() if layout.segments is None else layout.segments > 0


def _uneven(inputs: Examination, pad: int) -> Examination:
    """The inputs cut at their ends. In even rows the target becomes the shorter one, in odd rows the source, by 1 to 3 tokens.

    Without a target, rows of one length are cut by 0 to 2 tokens.
    """
    n, row = inputs.valid.sum(dim=1), torch.arange(len(inputs.tokens))  # [batch]
    if inputs.target is None or inputs.target_valid is None:
        keep = n - row % 3 if bool((n == n[0]).all()) else n
        return Examination(*_cut(inputs.tokens, inputs.valid, keep, pad))
    n_target = inputs.target_valid.sum(dim=1)
    shorter = torch.minimum(n, n_target) - 1 - row // 2 % 3
    source = _cut(inputs.tokens, inputs.valid, torch.where(row % 2 == 0, n, shorter), pad)
    target = _cut(inputs.target, inputs.target_valid, torch.where(row % 2 == 0, shorter, n_target), pad)
    return Examination(*source, *target)


def _cut(
    tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"], keep: Int[Tensor, " batch"], pad: int
) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """The first tokens of each row, at least one; padding in place of the others."""
    valid = valid & (valid.cumsum(dim=1) <= keep.clamp(min=1)[:, None])
    return tokens.masked_fill(~valid, pad), valid


__all__ = ["Examination", "check_up", "examination", "examine"]
