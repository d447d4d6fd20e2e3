"""What a run will take, told from its settings before it is made: memory of its process, and room on the disk."""

from __future__ import annotations

from xformer.counting import n_parameters
from xformer.memory import peak_bytes
from xformer.presets import Preset

FLOAT = 4
PROCESS = 290 * 10**6
"""A process that has torch imported and has trained a very small model."""
PER_PARAMETER = 48
"""Weight, gradient, two moments; and all of it once more, and a copy, while the state is written."""
FUSED = 32
"""Up to so many tokens training keeps the attention patterns; for more, PyTorch's kernel does without."""


def memory_needed(settings: Preset, *, n_models: int = 1) -> int:
    """About how many bytes the process of a run holds at its peak."""
    return PROCESS + n_models * (_memory_of_one(settings) - PROCESS)


def _memory_of_one(settings: Preset) -> int:
    from xformer.tasks import Task  # which needs torch; whoever asks only for the disk does not
    from xformer.tasks.task import CHUNK

    model, task, train = settings.model, settings.task, settings.train
    rule = Task(task).rule
    width, longest = rule.stream_length((task.min_len + task.max_len) / 2), rule.stream_length(task.max_len)
    stacks = 2 if model.architecture == "encoder-decoder" else 1
    has_dropout = model.dropout > 0
    # Where each score stands in memory, two examples may share a row.
    if has_dropout or model.position_kind.acts_on == "scores":
        cells = model.n_heads * 2 * longest * (3 if has_dropout else 2)
    else:
        cells = model.n_heads * (longest if longest <= FUSED else 1)
    heads = (2 * model.n_heads * (model.d_head + model.d_value) + cells) * (1.5 if stacks == 2 else 1)
    inner = model.ffn_component.n_saved + (2 if has_dropout else 0)
    layer = 5 * model.d_model + heads + inner * model.d_ff
    logits, masks = 3 * model.vocab_size, 3 * stacks * longest
    step = FLOAT * train.batch_size * width * ((stacks * model.n_layers + 1) * layer + logits + masks)
    held_out = FLOAT * train.held_out * width * (4 * model.d_model + heads + 1.5 * model.d_ff + logits + 4 * longest)
    drawn = CHUNK * train.batch_size * width * 8 * 5
    beside = PROCESS + rule.bytes_beside + PER_PARAMETER * n_parameters(model) + drawn
    return int(beside + max(step, held_out, peak_bytes(model, int(rule.stream_length(rule.probe_size)))))


def weights_on_disk(settings: Preset) -> int:
    """About how many bytes a snapshot takes."""
    return FLOAT * n_parameters(settings.model) + 8_000


def metrics_needed(settings: Preset) -> int:
    """About how many bytes the metrics of a run take: a line a report, with a number for each head and score."""
    line = 400 + 2 * 24 * settings.model.n_layers * settings.model.n_heads
    return line * (settings.train.steps // settings.train.log_every)


def disk_needed(settings: Preset) -> int:
    """About how many bytes the files of a run will take: snapshots, weights with the optimiser's two moments, metrics.

    The metrics are written twice, into the run store and into the state.
    """
    every, train = settings.train.snapshot_every, settings.train
    n_snapshots = 2 + (train.steps // every if every else 0)
    return weights_on_disk(settings) * (n_snapshots + 3) + 2 * metrics_needed(settings)
