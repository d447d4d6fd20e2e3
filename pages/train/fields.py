"""Every setting of a training run as a field of a form: what it is called, what it may be, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from xformer import config as kinds
from xformer.positions import POSITION_KINDS
from xformer.task_limits import TASK_LIMITS

AUTO = "auto"
"""What stands for None."""


@dataclass(frozen=True)
class Field:
    """One setting: `of` is "task", "model" or "train", `options` those of a choice; without any it is a number or a switch."""

    of: str
    name: str
    label: str
    help: str = ""
    options: tuple[Any, ...] = ()


TASK = (
    Field("task", "name", "Task", "What the model learns to do.", tuple(TASK_LIMITS)),
    Field("task", "architecture", "Architecture", "An encoder answers all at once.", get_args(kinds.Architecture)),
    Field("task", "symbols", "Symbols", "How many different symbols a sequence is made of."),
    Field("task", "min_len", "Shortest", "Length of the shortest sequence."),
    Field("task", "max_len", "Longest", "Length of the longest sequence."),
    Field("task", "end_token", "End token", "Encoder: close every input with an end token."),
)  # fmt: skip
MODEL = (
    Field("model", "n_layers", "Layers", "n_layers: of an encoder-decoder, in each of its two stacks."),
    Field("model", "n_heads", "Heads", "n_heads: attention heads in each layer."),
    Field("model", "d_model", "Stream width", "d_model: how many numbers carry each token (the residual stream)."),
    Field("model", "d_ff", "Feed-forward width", "d_ff: 0 leaves the feed-forward layers out."),
    Field("model", "positions", "Positions", "How the model knows where a token is.", tuple(POSITION_KINDS)),
    Field("model", "norm", "Normalisation", "Layer norm before each part, after it, or none.", get_args(kinds.Norm)),
)  # fmt: skip
MODEL_MORE = (
    Field("model", "d_head", "Query width", "d_head: 0 means d_model / n_heads."),
    Field("model", "d_value", "Value width", "d_value: 0 means d_head."),
    Field("model", "max_len", "Longest it reads", "max_len, in tokens; at least what the task needs."),
    Field("model", "activation", "Activation", "Makes the feed-forward part more than linear.", get_args(kinds.Activation)),
    Field("model", "position_base", "Position base", "Of sinusoidal and rotary wavelengths: 10,000 in the paper, §3.5."),
    Field("model", "final_norm", "Final norm", "After each stack; auto: with pre-norm.", (AUTO, True, False)),
    Field("model", "norm_eps", "Norm ε", "Added to the variance, so that the normalisation never divides by zero."),
    Field("model", "init", "Initialisation", "Xavier-uniform, or normal.", get_args(kinds.Init)),
    Field("model", "init_scale", "Init scale", "Gain of the Xavier bound, or the standard deviation."),
    Field("model", "embed_std", "Embedding std", "Fresh embeddings: at 1 the positions drown, 0.1 to 0.3 learns at once."),
    Field("model", "causal", "Causal", "May a position only see earlier ones? auto: a decoder.", (AUTO, True, False)),
    Field("model", "see_self", "Sees itself", "With a causal mask: may a position see itself?"),
    Field("model", "dropout", "Dropout", "The share of numbers that is set to zero at random while training: 0 to below 1."),
    Field("model", "dropout_sites", "Dropout at", "The places where numbers are dropped.", kinds.DROPOUT_SITES),
    Field("model", "scale_embeddings", "Scale embeddings", "By √d_model (§3.4)."),
    Field("model", "attention_bias", "Attention bias", "Added to queries, keys, values and the output of attention."),
    Field("model", "ffn_bias", "Feed-forward bias", "Added in both layers of the feed-forward part."),
    Field("model", "output_bias", "Output bias", "Added to the logits, one number for each token of the vocabulary."),
    Field("model", "tied_output", "Tied output", "Read the logits with the embedding matrix (§3.4)."),
    Field("model", "tied_source", "Tied source", "Encoder-decoder: one embedding matrix for both sides."),
)  # fmt: skip
TRAIN = (
    Field("train", "steps", "Steps", "How often the weights are changed, each time after one batch."),
    Field("train", "batch_size", "Batch size", "Sequences per step."),
    Field("train", "peak_lr", "Peak learning rate", "How far weights move in a step, where the schedule is highest."),
    Field("train", "warmup", "Warm-up", "Share of the steps over which the rate rises."),
    Field("train", "seed", "Seed", "The same settings and seed give the same run."),
    Field("train", "target", "Stop at exact match", "Stop early once it is reached; 0 never does."),
)  # fmt: skip
TRAIN_MORE = (
    Field("train", "decay", "Decay", "How the rate falls after the warm-up.", get_args(kinds.Decay)),
    Field("train", "final_lr", "Final learning rate", "Where the decay ends."),
    Field("train", "clip_norm", "Clip norm", "Longer gradients are shortened to it; 0 leaves them."),
    Field("train", "weight_decay", "Weight decay", "AdamW: a step takes this share × the learning rate off each weight."),
    Field("train", "beta1", "β₁", "Adam: how much of the running mean of gradients is kept at each step."),
    Field("train", "beta2", "β₂", "Adam: how much of the running mean of squared gradients is kept at each step."),
    Field("train", "adam_eps", "Adam ε", "Adam: added to the divisor, so that it is never zero."),
    Field("train", "log_every", "Report every", "Steps between two points of the curves."),
    Field("train", "held_out", "Held-out examples", "Unseen sequences that each report is scored on."),
    Field("train", "snapshot_every", "Snapshot every", "Steps between two frames to scrub through; 0 keeps none."),
)  # fmt: skip
EVERYTHING = (*TASK, *MODEL, *MODEL_MORE, *TRAIN, *TRAIN_MORE)
TRAINING = (*TRAIN, *TRAIN_MORE)
