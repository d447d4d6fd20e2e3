"""Named configurations: what each model is, what it is trained on and how, and what it reproduces."""

from __future__ import annotations

from dataclasses import dataclass

from xformer.config import ModelConfig, TaskConfig, TrainConfig
from xformer.errors import ConfigError


@dataclass(frozen=True)
class Preset:
    """A model, a task and a training recipe that belong together."""

    name: str
    title: str
    about: str
    model: ModelConfig
    task: TaskConfig
    train: TrainConfig


@dataclass(frozen=True)
class Published:
    """A configuration from the literature and the parameter count printed with it."""

    title: str
    source: str
    model: ModelConfig
    printed: int
    note: str


def _task(name: str, architecture: str, **options: object) -> TaskConfig:
    return TaskConfig(name=name, architecture=architecture, **options)  # pyright: ignore[reportArgumentType]


_PRESETS = (
    Preset(
        "reverse",
        "Reverse, four layers",
        "An encoder of four post-norm layers, four heads of 16 on a stream of 16, that reverses a sequence all at once.",
        ModelConfig(
            architecture="encoder", vocab_size=20, d_model=16, n_layers=4, n_heads=4, d_head=16, d_ff=512, max_len=64
        ),
        _task("reverse", "encoder"),
        TrainConfig(steps=800, peak_lr=3e-3),
    ),
    Preset(
        "reverse-small",
        "Reverse, two layers, one head",
        "The smallest ordinary encoder that reverses: layer 1 finds the length, layer 2 flips, a clean anti-diagonal.",
        ModelConfig(
            architecture="encoder",
            vocab_size=21,
            d_model=32,
            n_layers=2,
            n_heads=1,
            d_head=32,
            d_ff=128,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
            end_token=20,
        ),
        _task("reverse", "encoder", end_token=True),
        TrainConfig(steps=700, peak_lr=3e-3, seed=4),
    ),
    Preset(
        "reverse-seq2seq",
        "Reverse, encoder-decoder",
        "One encoder and one decoder layer; the answer is written token by token, looking back through cross-attention.",
        ModelConfig(
            architecture="encoder-decoder",
            vocab_size=22,
            d_model=32,
            n_layers=1,
            n_heads=2,
            d_ff=128,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
            tied_source=True,
            end_token=20,
            start_token=21,
        ),
        _task("reverse", "encoder-decoder"),
        TrainConfig(steps=1200, peak_lr=3e-3, seed=1),
    ),
    Preset(
        "reverse-decoder",
        "Reverse, decoder only",
        "A causal stream like GPT's: the sequence, a start token, then the answer token by token.",
        ModelConfig(
            architecture="decoder",
            vocab_size=22,
            d_model=64,
            n_layers=2,
            n_heads=2,
            d_ff=128,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
            end_token=20,
            start_token=21,
        ),
        _task("reverse", "decoder"),
        TrainConfig(steps=1200, peak_lr=3e-3),
    ),
    Preset(
        "reverse-mirror",
        "Reverse, one head and nothing else",
        "One layer, one head, no feed-forward: positions counted from both ends make reversal a single look-up.",
        ModelConfig(
            architecture="encoder",
            vocab_size=20,
            d_model=32,
            n_layers=1,
            n_heads=1,
            d_ff=0,
            max_len=40,
            norm="pre",
            positions="mirror",
            embed_std=0.2,
        ),
        _task("reverse", "encoder"),
        TrainConfig(steps=300, batch_size=64, peak_lr=1e-2, snapshot_every=25),
    ),
    Preset(
        "sort",
        "Sort",
        "An encoder that puts its numbers in order: which place a number goes to depends on all the others.",
        ModelConfig(
            architecture="encoder",
            vocab_size=20,
            d_model=64,
            n_layers=3,
            n_heads=4,
            d_ff=256,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
        ),
        _task("sort", "encoder"),
        TrainConfig(steps=5000, batch_size=64, peak_lr=2e-3, seed=4),
    ),
)

PRESETS = {preset.name: preset for preset in _PRESETS}


def preset(name: str) -> Preset:
    """The preset of that name. Raises `ConfigError` listing the names there are."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}; the presets are {', '.join(PRESETS)}.")
    return PRESETS[name]


def _paper(d_model: int, n_heads: int, d_ff: int) -> ModelConfig:
    return ModelConfig(
        architecture="encoder-decoder",
        vocab_size=37_000,
        d_model=d_model,
        n_layers=6,
        n_heads=n_heads,
        d_ff=d_ff,
        max_len=1024,
        scale_embeddings=True,
        tied_source=True,
        tied_output=True,
        output_bias=False,
        dropout=0.1,
        dropout_sites=("embed", "residual"),
    )


PUBLISHED = {
    "transformer-base": Published(
        "Transformer base",
        "Vaswani et al. 2017, Table 3",
        _paper(512, 8, 2048),
        65_000_000,
        "One shared matrix of “about 37000” tokens serves source, target and output (§3.4, §5.1). The table's figure is "
        "rounded to millions, and the vocabulary's exact size is not printed: 1.95 M fewer than printed is what about "
        "3,800 more tokens would add.",
    ),
    "transformer-big": Published(
        "Transformer big",
        "Vaswani et al. 2017, Table 3",
        _paper(1024, 16, 4096),
        213_000_000,
        "The same 37,000 shared tokens; here the formula gives 1.17 M more than the printed, rounded figure, so no single "
        "vocabulary size meets both: the printed numbers are not exact counts of one formula.",
    ),
}
