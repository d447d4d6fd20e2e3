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


_DIGITS = _task("digits", "encoder", symbols=10, min_len=8, max_len=8, patch=2)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_PYTHON_ALPHABET = "\n !\"#%&'()*+,-./0123456789:;<=>?@" + "[\\]^_".join(_LETTERS) + "{|}~°ß–—‘’“”…"
"""The characters of Python 3.11's documentation; other versions lack some of them, or have a few more that are left out."""
_SHAKESPEARE_ALPHABET = "\n !$&',-.3:;?" + "".join(_LETTERS)


def _characters(text: str, alphabet: str, architecture: str, context: int) -> TaskConfig:
    sizes = {"symbols": len(alphabet), "min_len": context, "max_len": context}
    return _task("characters", architecture, text=text, alphabet=alphabet, **sizes)


def _small_gpt(symbols: int) -> ModelConfig:
    return ModelConfig(
        architecture="decoder",
        vocab_size=1 + symbols,
        d_model=128,
        n_layers=4,
        n_heads=4,
        d_ff=512,
        max_len=64,
        norm="pre",
        positions="learned",
        activation="gelu",
        ffn_bias=False,
        output_bias=False,
        tied_output=True,
        init="normal",
        init_scale=0.02,
        embed_std=0.1,
    )


_CHARACTERS = TrainConfig(
    steps=2000,
    batch_size=12,
    peak_lr=1e-3,
    warmup=0.05,
    decay="cosine",
    final_lr=1e-4,
    beta2=0.99,
    weight_decay=0.1,
    log_every=100,
    held_out=64,
    snapshot_every=100,
)

_PRESETS = (
    Preset(
        "reverse",
        "Reverse, four layers",
        "An encoder of four post-norm layers, four heads of 16 on a stream of 16, that reverses a sequence all at once.",
        ModelConfig(
            architecture="encoder", vocab_size=20, d_model=16, n_layers=4, n_heads=4, d_head=16, d_ff=512, max_len=64
        ),
        _task("reverse", "encoder"),
        TrainConfig(steps=800, peak_lr=3e-3, snapshot_every=20),
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
        TrainConfig(steps=700, peak_lr=3e-3, seed=4, snapshot_every=20),
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
        TrainConfig(steps=1200, peak_lr=3e-3, seed=1, snapshot_every=25),
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
        TrainConfig(steps=1200, peak_lr=3e-3, snapshot_every=25),
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
        TrainConfig(steps=300, batch_size=64, peak_lr=1e-2, snapshot_every=10),
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
        TrainConfig(steps=5000, batch_size=64, peak_lr=2e-3, seed=4, snapshot_every=50),
    ),
    Preset(
        "induction",
        "Induction, two layers, no neurons",
        "A random prefix is written once more. One head copies from the token before, the next finds what followed.",
        ModelConfig(
            architecture="decoder",
            vocab_size=22,
            d_model=64,
            n_layers=2,
            n_heads=1,
            d_ff=0,
            max_len=64,
            norm="pre",
            positions="rotary",
            embed_std=0.3,
            end_token=20,
            start_token=21,
        ),
        _task("induction", "decoder"),
        TrainConfig(steps=800, peak_lr=3e-3, snapshot_every=25),
    ),
    Preset(
        "copy-twice",
        "Copying twice",
        "Numbers are said, and then the same again: the answer is longer than the question, and a head has to jump back.",
        ModelConfig(
            architecture="decoder",
            vocab_size=22,
            d_model=64,
            n_layers=2,
            n_heads=2,
            d_ff=128,
            max_len=64,
            norm="pre",
            positions="learned",
            embed_std=0.3,
            end_token=20,
            start_token=21,
        ),
        _task("copy-twice", "decoder", min_len=3, max_len=9),
        TrainConfig(steps=1000, peak_lr=3e-3, snapshot_every=25),
    ),
    Preset(
        "addition",
        "Addition with carries",
        "Two numbers of two to four digits are added; the sum is written from its last digit, so that each carry is known.",
        ModelConfig(
            architecture="decoder",
            vocab_size=14,
            d_model=64,
            n_layers=2,
            n_heads=4,
            d_ff=256,
            max_len=64,
            norm="pre",
            positions="learned",
            embed_std=0.5,
            end_token=12,
            start_token=13,
        ),
        _task("addition", "decoder", symbols=11, min_len=2, max_len=4),
        TrainConfig(steps=2000, batch_size=64, peak_lr=2e-3, snapshot_every=25),
    ),
    Preset(
        "parity",
        "Running parity",
        "Bit by bit, whether the ones so far are odd or even: each step needs one bit and what was written before.",
        ModelConfig(
            architecture="decoder",
            vocab_size=5,
            d_model=64,
            n_layers=2,
            n_heads=1,
            d_ff=128,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
            end_token=3,
            start_token=4,
        ),
        _task("parity", "decoder", symbols=2),
        TrainConfig(steps=1200, peak_lr=3e-3, snapshot_every=25),
    ),
    Preset(
        "brackets",
        "Brackets, counted by attention",
        "How deep each bracket is nested, and ✗ once the string is lost: a causal head takes the mean of the past.",
        ModelConfig(
            architecture="encoder",
            vocab_size=20,
            d_model=32,
            n_layers=2,
            n_heads=1,
            d_ff=128,
            max_len=64,
            causal=True,
            norm="pre",
            positions="learned",
            embed_std=0.3,
        ),
        _task("brackets", "encoder", symbols=2),
        TrainConfig(steps=1500, peak_lr=3e-3, snapshot_every=25),
    ),
    Preset(
        "modular",
        "Addition modulo 59",
        "Trained on a share of all pairs and scored on the others: first it learns by heart, then it finds the rule.",
        ModelConfig(
            architecture="decoder",
            vocab_size=62,
            d_model=64,
            n_layers=1,
            n_heads=4,
            d_ff=256,
            max_len=4,
            norm="none",
            positions="learned",
            end_token=60,
            start_token=61,
        ),
        _task("modular", "decoder", symbols=59, min_len=2, max_len=2),
        TrainConfig(
            steps=6000,
            batch_size=512,
            peak_lr=3e-3,
            warmup=0.01,
            weight_decay=1.0,
            held_out=1024,
            target=1.0,
            log_every=50,
            snapshot_every=50,
        ),
    ),
    Preset(
        "characters",
        "Characters of Python’s documentation",
        "A small GPT that goes on with a text, character by character: four pre-norm layers, learned positions, GELU, 64 "
        "characters of context. It reads the help that comes with Python.",
        _small_gpt(len(_PYTHON_ALPHABET)),
        _characters("python", _PYTHON_ALPHABET, "decoder", 64),
        _CHARACTERS,
    ),
    Preset(
        "characters-shakespeare",
        "Characters of tiny Shakespeare",
        "The same small GPT on 1.1 million characters of plays. It needs the text: download it on this screen, or put it at "
        "data/tinyshakespeare.txt.",
        _small_gpt(len(_SHAKESPEARE_ALPHABET)),
        _characters("shakespeare", _SHAKESPEARE_ALPHABET, "decoder", 64),
        _CHARACTERS,
    ),
    Preset(
        "seed-002",
        "Characters, encoder-decoder",
        "Two layers on each side, two heads, a stream of 32, a feed-forward of 32: the encoder reads 8 characters, the decoder "
        "says the 8 that follow. These sizes come from the notebook “Attention is all you need!”. No training is written down "
        "there, its attention is normalised over the queries and nothing hides the future; here it is the paper’s.",
        ModelConfig(
            architecture="encoder-decoder",
            vocab_size=2 + len(_PYTHON_ALPHABET),
            d_model=32,
            n_layers=2,
            n_heads=2,
            d_ff=32,
            max_len=8,
            dropout=0.1,
            dropout_sites=("residual",),
            tied_source=True,
            start_token=1 + len(_PYTHON_ALPHABET),
        ),
        _characters("python", _PYTHON_ALPHABET, "encoder-decoder", 8),
        TrainConfig(
            steps=3000, batch_size=64, peak_lr=3e-3, warmup=0.1, log_every=100, held_out=512, snapshot_every=50
        ),
    ),
    Preset(
        "seed-000",
        "Reverse, the plain recipe",
        "The four-layer encoder with the recipe of the write-up “Transformer implementation”: embeddings of size 1, batch 128, "
        "Adam at a constant 5e-4, 4,680 steps. When it breaks through differs much from seed to seed. Unlike there, padding is "
        "masked and out of the loss, sequences never repeat, biases start at 0, and some matrices are drawn larger or "
        "smaller: W_O × 0.5, W₁ × 0.21, W₂ × 1.2, output × 0.82.",
        ModelConfig(
            architecture="encoder",
            vocab_size=20,
            d_model=16,
            n_layers=4,
            n_heads=4,
            d_head=16,
            d_ff=512,
            max_len=64,
            init_scale=0.5,
            embed_std=1.0,
        ),
        _task("reverse", "encoder"),
        TrainConfig(
            steps=4680,
            batch_size=128,
            peak_lr=5e-4,
            warmup=0.0,
            decay="none",
            beta2=0.999,
            clip_norm=0.0,
            seed=15,
            snapshot_every=50,
        ),
    ),
    Preset(
        "seed-004-reverse",
        "Reverse, in GPT’s style",
        "A causal stream built like GPT-2: pre-norm, learned positions, GELU, every matrix drawn from N(0, 0.02²).",
        ModelConfig(
            architecture="decoder",
            vocab_size=22,
            d_model=64,
            n_layers=2,
            n_heads=4,
            d_ff=256,
            max_len=64,
            norm="pre",
            positions="learned",
            activation="gelu",
            init="normal",
            init_scale=0.02,
            embed_std=0.02,
            end_token=20,
            start_token=21,
        ),
        _task("reverse", "decoder"),
        TrainConfig(steps=3000, batch_size=64, peak_lr=1e-3, beta2=0.99, snapshot_every=50),
    ),
    Preset(
        "digits",
        "Digits, a vision transformer",
        "Reads handwritten digits: 16 patches of 2 × 2 pixels and a class token, two pre-norm layers, four heads.",
        ModelConfig(
            architecture="encoder",
            vocab_size=10,
            d_model=64,
            n_layers=2,
            n_heads=4,
            d_ff=128,
            max_len=17,
            norm="pre",
            positions="learned",
            activation="gelu",
            embed_std=0.3,
            image=8,
            patch=2,
        ),
        _DIGITS,
        TrainConfig(
            steps=2000,
            batch_size=32,
            peak_lr=2e-3,
            warmup=0.1,
            decay="cosine",
            weight_decay=0.05,
            log_every=50,
            held_out=360,
            snapshot_every=50,
        ),
    ),
    Preset(
        "seed-001-vit",
        "Digits, every head as wide as the model",
        "A vision transformer of post-norm layers with eight heads that each see the whole stream: d_head = d_model.",
        ModelConfig(
            architecture="encoder",
            vocab_size=10,
            d_model=32,
            n_layers=2,
            n_heads=8,
            d_head=32,
            d_ff=128,
            max_len=17,
            norm="post",
            positions="learned",
            activation="relu",
            image=8,
            patch=2,
        ),
        _DIGITS,
        TrainConfig(
            steps=1500,
            batch_size=32,
            peak_lr=1e-3,
            warmup=0.1,
            decay="cosine",
            weight_decay=0.05,
            log_every=50,
            held_out=360,
            snapshot_every=50,
        ),
    ),
    Preset(
        "wide-heads",
        "Reverse, every head as wide as the model",
        "Four heads that each see the whole stream of 32 numbers, instead of a quarter of it: d_head = d_model.",
        ModelConfig(
            architecture="encoder",
            vocab_size=21,
            d_model=32,
            n_layers=2,
            n_heads=4,
            d_head=32,
            d_ff=128,
            max_len=64,
            position_base=100.0,
            embed_std=0.2,
            end_token=20,
        ),
        _task("reverse", "encoder", end_token=True),
        TrainConfig(steps=700, peak_lr=3e-3, snapshot_every=25),
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
        embed_std=d_model**-0.5,  # so that scaled by √d_model they are of size 1, like the positions
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
