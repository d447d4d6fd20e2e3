"""Whose ideas the presets follow: title, author and address, for the screens that show a preset or a model made from it."""

from __future__ import annotations

from dataclasses import dataclass

from xformer.presets import current_name


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
_PLAYS = Source("The text", "char-rnn", "Andrej Karpathy", "https://github.com/karpathy/char-rnn")

SOURCES: dict[str, tuple[Source, ...]] = {
    "reverse": (_REVERSAL, _PAPER),
    "reverse-small": (_REVERSAL, _PAPER),
    "reverse-seq2seq": (_REVERSAL, _PAPER),
    "reverse-decoder": (_REVERSAL,),
    "reverse-mirror": (_REVERSAL,),
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
