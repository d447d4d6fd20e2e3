"""Named configurations: what each model is, what it is trained on and how, and what it reproduces.

What can be trained is listed in `presets.toml`; what others have published stands below.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

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


PRESETS = {
    name: Preset(
        name,
        one["title"],
        one["about"],
        ModelConfig.from_json(one["model"]),
        TaskConfig.from_json(one["task"]),
        TrainConfig.from_json(one["train"]),
    )
    for name, one in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
RENAMED = {
    "seed-000": "tutorial-reverse",
    "seed-001-vit": "tutorial-vit",
    "seed-002": "tutorial-seq2seq",
    "seed-004-reverse": "tutorial-gpt",
}
"""What presets were called before, in runs and files that are still about."""


def current_name(name: str) -> str:
    """What the preset of that name is called now."""
    return RENAMED.get(name, name)


def preset(name: str) -> Preset:
    """The preset of that name, also of an earlier one. Raises `ConfigError` listing the names there are."""
    if (name := current_name(name)) not in PRESETS:
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


@dataclass(frozen=True)
class Source:
    """A text that a preset follows, and in what."""

    what: str
    title: str
    by: str
    url: str


_REVERSAL = Source(
    "The task",
    "Transformers and Multi-Head Attention",
    "Phillip Lippe, tutorial 6 of the UvA Deep Learning notebooks",
    "https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/tutorial6/Transformers_and_MHAttention.html",
)

_PAPER = Source("The model", "Attention Is All You Need", "Vaswani et al. 2017", "https://arxiv.org/abs/1706.03762")

_IMAGES = Source(
    "The model", "An Image Is Worth 16x16 Words", "Dosovitskiy et al. 2020", "https://arxiv.org/abs/2010.11929"
)

_LLAMA = Source("The model", "LLaMA", "Touvron et al. 2023", "https://arxiv.org/abs/2302.13971")

_MISTRAL = Source("The model", "Mistral 7B", "Jiang et al. 2023", "https://arxiv.org/abs/2310.06825")

_PLAYS = Source("The text", "char-rnn", "Andrej Karpathy", "https://github.com/karpathy/char-rnn")

SOURCES: dict[str, tuple[Source, ...]] = {
    "reverse": (_REVERSAL, _PAPER),
    "reverse-small": (_REVERSAL, _PAPER),
    "reverse-seq2seq": (_REVERSAL, _PAPER),
    "reverse-decoder": (_REVERSAL,),
    "reverse-modern": (_REVERSAL, _LLAMA),
    "reverse-mirror": (_REVERSAL,),
    "characters-modern": (_MISTRAL,),
    "characters-shakespeare": (_PLAYS,),
    "tutorial-reverse": (_REVERSAL, _PAPER),
    "tutorial-seq2seq": (_PAPER,),
    "tutorial-gpt": (_REVERSAL,),
    "digits": (_IMAGES,),
    "tutorial-vit": (_IMAGES,),
    "wide-heads": (_REVERSAL, _PAPER),
}
"""By the name of the preset, where one text stands for what it follows."""


def credit(preset: object) -> str:
    """The sources of a preset as Markdown: "The task: [title](address), author."; nothing where none is known."""
    found = SOURCES.get(current_name(preset), ()) if isinstance(preset, str) else ()
    return " ".join(f"{source.what}: [{source.title}]({source.url}), {source.by}." for source in found)
