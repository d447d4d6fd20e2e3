"""What a toy task is: its symbols, its sources, the right answer, and the attention that tells it has been understood.

Every task is one small frozen class; this one holds what most of them share. Of a source with n tokens:

    answer        answer_length(n) tokens, a pure function of the source
    target_pattern      [answer, source]: the tokens that the output saying each answer token has to look at
    head score    Σ pattern[query, looked at], averaged over the answer tokens that have to look at something: in [0, 1]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import TaskConfig
from xformer.errors import InputError
from xformer.task_limits import TASK_LIMITS
from xformer.tasks.framing import Purpose, Specials, Stream, frame, sequences

Sequences = Int[Tensor, "batch pos"]
Lengths = Int[Tensor, " batch"]
Answers = tuple[Sequences, Lengths]
"""Answers and their lengths; cells past a length are arbitrary tokens."""


@dataclass(frozen=True)
class Rule:
    """A task with its sizes. A subclass says at least `name`, `answer`, `target_pattern`, `verb` and `instruction`."""

    config: TaskConfig

    name: ClassVar[str]
    """What a configuration calls it; its limits stand in `xformer.task_limits` under the same name."""
    verb: ClassVar[str]
    """What the model does, as in “see how the model …”."""
    instruction: ClassVar[str]
    """What a person does and what a model that has learned the task then does, in one sentence: “Type numbers; it …”."""
    score_name: ClassVar[str]
    """What the head score is called."""
    score_says: ClassVar[str]
    """What a score of w says, as in “w of its attention …”."""
    look_for: ClassVar[str]
    """What a newcomer sees in a trained model's attention: one plain sentence, Markdown allowed."""
    unit: ClassVar[str] = "numbers"
    """What `min_len` and `max_len` count."""
    separator: ClassVar[str] = " "
    """What stands between the symbols of a source as they are typed."""
    needs_causal: ClassVar[bool] = False
    """Whether an encoder has to be causal: each answer is about the past alone."""
    is_image: ClassVar[bool] = False
    """Whether a source is an image: its pixels, and last what it shows."""
    packs: ClassVar[bool] = True
    """Whether two examples fill a row; no where all have one length anyway."""
    is_open_ended: ClassVar[bool] = False
    """Whether there is no end to what a model says: it goes on with a text, and nobody knows the right answer."""

    bytes_beside: ClassVar[int] = 0
    """Memory of what brings its inputs."""
    stalled_above: ClassVar[float] = 1.0
    """A training loss, in nats, that a run which has not stalled is below after most of its steps."""

    @property
    def labels(self) -> tuple[str, ...]:
        """How the tokens 1, 2, … are written: those of a source first, then those that only an answer has."""
        return tuple(str(symbol) for symbol in range(1, self.config.symbols + 1))

    @property
    def typed_labels(self) -> tuple[str, ...]:
        """How the same tokens are typed."""
        return self.labels

    @property
    def n_numbers(self) -> int:
        """How many of the tokens 1, 2, … are numbers in their order; 0 where they are none."""
        return self.config.symbols

    @property
    def typed_example(self) -> str:
        """A text that can be read."""
        return " ".join(str(1 + (step * 5 + 2) % self.config.symbols) for step in range(4))

    @property
    def typed(self) -> str:
        """What a person can type, in a few words."""
        return f"Numbers from 1 to {self.config.symbols}, with spaces between them."

    @property
    def default(self) -> str:
        """What stands in the input box at first."""
        return "3 7 12 9 4 11" if self.config.symbols >= 12 else self.typed_example

    @property
    def unseen(self) -> int | None:
        """How many inputs there are that training never shows; None where there is no end of them."""
        return None

    @property
    def missing(self) -> str:
        """Why nothing can be drawn here, as one sentence; "" where it can."""
        return ""

    def examples(self) -> dict[str, str]:
        """Inputs with a purpose, in the words of “See how the model …”."""
        longest = self.config.max_len
        return {
            f"… {self.verb} six numbers": self.some(6),
            "… tells equal numbers apart by their place": " ".join(["5"] * 4 + ["9"] * 4),
            f"… {self.verb} the longest it was trained on": self.some(longest),
            "… fails on more than it was trained on": self.some(longest + 3),
            "… handles the shortest": self.some(self.config.min_len),
        }

    def some(self, count: int) -> str:
        """So many numbers, as they are typed: each is 7 more than the one before, modulo `symbols`."""
        return " ".join(str(1 + (step * 7 + 2) % self.config.symbols) for step in range(count))

    def distinct(self, count: int) -> str:
        """So many different numbers, as they are typed."""
        step = next(step for step in (7, 5, 3, 2, 1) if self.config.symbols % step)
        return " ".join(str(1 + (place * step + 2) % self.config.symbols) for place in range(count))

    def source_length(self, size: int) -> int:
        """How many tokens a source has whose size, between `min_len` and `max_len`, is `size`."""
        return size

    def typed_length(self, n: int) -> int:
        """How many of the n tokens that are drawn for a source a person would type."""
        return n

    @property
    def probe_size(self) -> int:
        """The size of the input that is followed through a training run."""
        return (self.config.min_len + self.config.max_len) // 2

    def special_names(self) -> tuple[str, ...]:
        """Which special tokens there are besides padding."""
        if self.config.architecture == "encoder":
            return ("end",) if self.config.end_token else ()
        return ("end", "start")

    def frame(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """Sources as they are drawn, with their right answers, as a model reads them; see `xformer.tasks.framing`."""
        answer, answer_lengths = self.answer(source, lengths)
        return frame(self.config.architecture, source, lengths, answer, answer_lengths, special)

    def frame_typed(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """The same of a source as a person types it."""
        return self.frame(source, lengths, special)

    def prompt_length(self, n: int) -> int:
        """How much of its stream a decoder is given before it answers n tokens."""
        return n + 1  # s₁ … s_L start

    def answer_queries(self, n: int) -> range:
        """Where the outputs that say the answer to n symbols stand: a decoder's after its source, all others' at once."""
        start = n if self.config.architecture == "decoder" else 0
        return range(start, start + self.answer_length(n))

    def stream_length(self, size: float) -> float:
        """About how many tokens a model reads of an example of that size."""
        return size * (2 if self.config.architecture == "decoder" else 1) + 2

    def as_typed(self, tokens: Sequences, labels: Sequences, *, is_pair: bool) -> tuple[Sequences, Sequences]:
        """Of a batch the inputs as a person would type them, and the answers that there are then."""
        return tokens, labels

    def about_causal_mask(self, source: Sequence[int]) -> str:
        """What the causal mask would take from a model that sees everything, as the end of “Set the mask to Causal: …”."""
        wanted = self.target_pattern(torch.tensor(list(source)))  # [answer, source]
        queries = torch.tensor(list(self.answer_queries(len(source))))[:, None]  # [answer, 1]
        ahead = int((wanted & (torch.arange(wanted.shape[1]) > queries)).any(dim=1).sum())
        if not ahead:
            return "no output of this input needs a token that comes after it. Does the model know?"
        return (
            "a position then sees only itself and what came before, and "
            f"{ahead} of {len(wanted)} outputs need a token that comes later."
        )

    def size(self, source: Sequence[int]) -> int:
        """The size of a source, in `unit`."""
        return len(source)

    def answer_length(self, n: int) -> int:
        """How many tokens the answer to n tokens has. Works on a tensor of lengths too."""
        return n

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """n sources and their lengths in tokens; with `paired`, those of each two neighbours have one and the same sum."""
        c = self.config
        if TASK_LIMITS[self.name].is_distinct:
            order = torch.rand(n, c.symbols, generator=draw, device=draw.device).argsort(
                dim=1
            )  # [n, symbols]: permutations
            _, lengths = sequences(n, symbols=1, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)
            return 1 + order[:, : c.max_len], lengths
        return sequences(n, symbols=c.symbols, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)

    def edge_cases(self) -> tuple[Sequences, Lengths] | None:
        """Inputs that chance hardly ever draws and people try first, with their lengths in tokens; None where it has none."""
        return None

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        """The right answers, as tensor algebra."""
        raise NotImplementedError

    def read(self, text: str) -> list[int]:
        """The tokens of what a person typed. Raises `InputError` with one plain sentence when it is no source."""
        return read_numbers(text, 1, self.config.symbols, self.typed_example)

    def written(self, source: Sequence[int]) -> str | None:
        """What `read` reads as this source, where that is not simply token after token; else None."""
        return None

    def check(self, source: Sequence[int]) -> None:
        """Raise `InputError` when there is no answer to so many tokens."""
        if not source:
            raise InputError("An example needs at least one number, got none; for example [3, 1, 2].")

    def remark(self, source: Sequence[int]) -> str:
        """What makes a source unlike those of training, as one sentence; "" when nothing does."""
        c, size = self.config, self.size(source)
        if TASK_LIMITS[self.name].is_distinct and len(set(source)) < len(source):
            return "A number comes twice, which it never saw in training: what followed it is in doubt."
        if c.min_len <= size <= c.max_len:
            return ""
        return f"{size} {self.unit}: it was trained on {c.min_len} to {c.max_len}, so expect mistakes."

    def has_right_answer(self, source: Sequence[int]) -> bool:
        """Whether anybody knows what should be said to a source: only then is what a model says right or wrong."""
        return not self.is_open_ended

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        """Which source tokens the output that says each answer token has to look at; a row may be empty."""
        raise NotImplementedError

    def head_score(
        self, pattern: Float[Tensor, "head query key"], source: Sequence[int], queries: Sequence[int]
    ) -> Float[Tensor, " head"]:
        """How much of what this task needs each head looks at, in [0, 1].

        `queries` are where the outputs stand that say the answer, the keys 0 … n − 1 are the source's.
        """
        wanted = self.target_pattern(torch.tensor(list(source), device=pattern.device)).to(
            pattern.dtype
        )  # [answer, pos]
        rows = pattern[:, list(queries), : len(source)]  # [head, answer, pos]
        mass = (rows * wanted).sum(dim=-1)  # [head, answer]
        counts = wanted.sum(dim=-1) > 0  # [answer]
        return mass[:, counts].mean(dim=-1) if bool(counts.any()) else mass.new_zeros(len(mass))


def diagonal(n: int, device: torch.device) -> Bool[Tensor, "answer pos"]:
    """Answer token i needs source token i."""
    return torch.eye(n, dtype=torch.bool, device=device)


def read_numbers(text: str, low: int, high: int, example: str) -> list[int]:
    """The numbers in a text such as "3 7 12 9" (commas, semicolons and brackets are fine too).

    Raises `InputError` with one plain sentence for anything else, or for a number outside `low` … `high`.
    """
    words = [word for word in re.split(r"[\s,;\[\]()]+", text) if word]
    if not words:
        raise InputError(f"Type some numbers from {low} to {high}, for example {example}.")
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or not low <= int(word) <= high:
            raise InputError(
                f"This model reads numbers from {low} to {high}, and “{shown(word)}” is not one; try {example}."
            )
    return [int(word) for word in words]


def read_characters(text: str, characters: Sequence[str], what: str, example: str) -> list[int]:
    """Where each character of a text stands in `characters`; spaces and commas between them count for nothing.

    Raises `InputError` with one plain sentence for any other character, or when there is none.
    """
    found = [character for character in text if not (character.isspace() or character == ",")]
    if not found:
        raise InputError(f"Type some {what}, for example {example}.")
    for character in found:
        if character not in characters:
            raise InputError(f"This model reads {what}, and “{shown(character)}” is not one; try {example}.")
    return [characters.index(character) for character in found]


def shown(word: str) -> str:
    """What was typed, short and printable enough to stand in a sentence."""
    start = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in word[:20])
    return start if len(word) <= 20 else start + "…"
