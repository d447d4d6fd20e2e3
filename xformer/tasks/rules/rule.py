"""The base class of task rules: symbols, sources, the right answer, and the attention pattern that solves the task.

For a source with n tokens:

    answer            answer_length(n) tokens, a pure function of the source
    target_pattern    [answer, source]: the source tokens to which the output of each answer token has to attend
    head score        Σ pattern[query, target], averaged over answer tokens with targets, in [0, 1]
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
"""Answers and their lengths; cells beyond a length are arbitrary."""


@dataclass(frozen=True)
class Rule:
    """A task with its sizes. A subclass defines at least `name`, `answer`, `verb` and `instruction`."""

    config: TaskConfig

    name: ClassVar[str]
    """The name in a configuration; the limits have the same name in `xformer.task_limits`."""
    verb: ClassVar[str]
    """What the model does, as in “see how the model …”."""
    instruction: ClassVar[str]
    """One sentence: what the visitor types and what a trained model returns."""
    score_name: ClassVar[str]
    """The name of the head score."""
    score_meaning: ClassVar[str]
    """The meaning of a score of w, continuing “w of its attention …”."""
    attention_hint: ClassVar[str]
    """What to look for in a trained model's attention: a sentence or two of Markdown."""
    unit: ClassVar[str] = "numbers"
    """The unit of `min_len` and `max_len`."""
    separator: ClassVar[str] = " "
    """The text between typed symbols."""
    tokens: ClassVar[tuple[str, ...]] = ()
    """The text of the tokens 1, 2, … if it does not depend on the sizes; empty: the numbers 1 … `symbols`."""
    has_numbers: ClassVar[bool] = True
    """Whether the tokens 1, 2, … are numbers in order."""
    sample_text: ClassVar[str] = ""
    """A valid text; empty: four numbers."""
    initial_text: ClassVar[str | None] = None
    """The initial text of the input box; empty: `typed_example`; None: six numbers."""
    accepted_text: ClassVar[str] = ""
    """The accepted text, in a few words; empty: numbers."""
    needs_causal: ClassVar[bool] = False
    """Whether an encoder must be causal, because each answer depends only on the past."""
    is_image: ClassVar[bool] = False
    """Whether a source is an image: its pixels, then its label."""
    can_pack: ClassVar[bool] = True
    """Whether two examples can share a row; False if all have the same length."""
    is_open_ended: ClassVar[bool] = False
    """Whether the output is text without an end and without a right answer."""

    library_bytes: ClassVar[int] = 0
    """The memory of the library that provides the inputs, in bytes."""
    stalled_above: ClassVar[float] = 1.0
    """A run has stalled if its training loss, in nats, is above this after most of its steps."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of the tokens 1, 2, …: source tokens first, then those of answers only."""
        return self.tokens or tuple(str(symbol) for symbol in range(1, self.config.symbols + 1))

    @property
    def typed_labels(self) -> tuple[str, ...]:
        """The text of the same tokens when typed."""
        return self.labels

    @property
    def n_numbers(self) -> int:
        """The number of tokens 1, 2, … that are numbers in order; 0 if they are not numbers."""
        return self.config.symbols if self.has_numbers else 0

    @property
    def typed_example(self) -> str:
        """A valid text."""
        return self.sample_text or " ".join(str(1 + (step * 5 + 2) % self.config.symbols) for step in range(4))

    @property
    def format_hint(self) -> str:
        """The accepted text, in a few words."""
        return self.accepted_text or f"Numbers from 1 to {self.config.symbols}, with spaces between them."

    @property
    def default(self) -> str:
        """The initial text of the input box."""
        numbers = "3 7 12 9 4 11" if self.config.symbols >= 12 else ""
        return (numbers if self.initial_text is None else self.initial_text) or self.typed_example

    @property
    def n_held_out(self) -> int | None:
        """The number of held-out inputs; None if unlimited."""
        return None

    @property
    def no_sample_reason(self) -> str:
        """The reason why no input can be sampled, as one sentence; empty otherwise."""
        return ""

    def examples(self) -> dict[str, str]:
        """Return example inputs by their purpose, which continues “See how the model …”."""
        longest = self.config.max_len
        return {
            f"… {self.verb} six numbers": self.numbers(6),
            "… tells equal numbers apart by position": " ".join(["5"] * 4 + ["9"] * 4),
            f"… {self.verb} the longest input it was trained on": self.numbers(longest),
            "… fails on longer input than it was trained on": self.numbers(longest + 3),
            "… handles the shortest": self.numbers(self.config.min_len),
        }

    def numbers(self, count: int) -> str:
        """Return `count` numbers as text, each 7 more than the previous, modulo `symbols`."""
        return " ".join(str(1 + (step * 7 + 2) % self.config.symbols) for step in range(count))

    def distinct_numbers(self, count: int) -> str:
        """Return `count` distinct numbers as text."""
        step = next(step for step in (7, 5, 3, 2, 1) if self.config.symbols % step)
        return " ".join(str(1 + (place * step + 2) % self.config.symbols) for place in range(count))

    def source_length(self, size: int) -> int:
        """Return the number of tokens of a source of this size, between `min_len` and `max_len`."""
        return size

    def typed_length(self, n: int) -> int:
        """Return how many of the n tokens of a sampled source are typed."""
        return n

    @property
    def probe_size(self) -> int:
        """The size of the input that is tracked during training."""
        return (self.config.min_len + self.config.max_len) // 2

    def special_names(self) -> tuple[str, ...]:
        """Return the names of the special tokens besides padding."""
        if self.config.architecture == "encoder":
            return ("end",) if self.config.end_token else ()
        return ("end", "start")

    def frame(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """Lay out sampled sources and their answers for a model; see `xformer.tasks.framing`."""
        answer, answer_lengths = self.answer(source, lengths)
        return frame(self.config.architecture, source, lengths, answer, answer_lengths, special)

    def frame_typed(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """Lay out typed sources and their answers for a model."""
        return self.frame(source, lengths, special)

    def prompt_length(self, n: int) -> int:
        """Return the length of a decoder's prompt for n tokens."""
        return n + 1  # s₁ … s_L start

    def answer_queries(self, n: int) -> range:
        """Return the output positions of the answer to n symbols: after the source in a decoder, else all."""
        start = n if self.config.architecture == "decoder" else 0
        return range(start, start + self.answer_length(n))

    def stream_length(self, size: float) -> float:
        """Return the approximate number of tokens of an example of this size."""
        return size * (2 if self.config.architecture == "decoder" else 1) + 2

    def as_typed(
        self, tokens: Sequences, labels: Sequences, *, is_encoder_decoder: bool
    ) -> tuple[Sequences, Sequences]:
        """Return the inputs of a batch as they would be typed, and their answers."""
        return tokens, labels

    def about_causal_mask(self, source: Sequence[int]) -> str:
        """Describe the effect of a causal mask on a bidirectional model, continuing “Set the mask to Causal: …”."""
        wanted = self.target_pattern(torch.tensor(list(source)))  # [answer, source]
        queries = torch.tensor(list(self.answer_queries(len(source))))[:, None]  # [answer, 1]
        ahead = int((wanted & (torch.arange(wanted.shape[1]) > queries)).any(dim=1).sum())
        if not ahead:
            return "no output for this input needs a later token. Has the model learned that?"
        need = f"{ahead} of {len(wanted)} outputs need a later token"
        return f"a position then sees only itself and earlier positions, but {need}."

    def size(self, source: Sequence[int]) -> int:
        """Return the size of a source, in `unit`."""
        return len(source)

    def answer_length(self, n: int) -> int:
        """Return the number of tokens of the answer to n tokens; also works on a tensor of lengths."""
        return n

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """Draw n sources, and their lengths in tokens; with `paired`, the lengths of two neighbours have a constant sum."""
        c = self.config
        if TASK_LIMITS[self.name].is_distinct:
            chance = torch.rand(n, c.symbols, generator=draw)
            order = chance.argsort(dim=1)  # [n, symbols]: permutations
            _, lengths = sequences(n, symbols=1, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)
            return 1 + order[:, : c.max_len], lengths
        return sequences(n, symbols=c.symbols, min_len=c.min_len, max_len=c.max_len, paired=paired, draw=draw)

    def edge_cases(self) -> tuple[Sequences, Lengths] | None:
        """Return rarely sampled inputs that visitors often try, with their lengths in tokens, or None."""
        return None

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        """Compute the right answers, vectorised."""
        raise NotImplementedError

    def read(self, text: str) -> list[int]:
        """Parse a typed text. Raises `InputError` if it is not a valid source."""
        return read_numbers(text, 1, self.config.symbols, self.typed_example)

    def source_text(self, source: Sequence[int]) -> str | None:
        """Return the text of a source, or None if it is its tokens joined by `separator`."""
        return None

    def check(self, source: Sequence[int]) -> None:
        """Raise `InputError` if a source has no answer."""
        if not source:
            raise InputError("An example needs at least one number, got none; for example [3, 1, 2].")

    def remark(self, source: Sequence[int]) -> str:
        """Return one sentence on how a source differs from the training data; empty if it does not."""
        c, size = self.config, self.size(source)
        if TASK_LIMITS[self.name].is_distinct and len(set(source)) < len(source):
            return "A number occurs twice, which never happened in training, so its successor is ambiguous."
        if c.min_len <= size <= c.max_len:
            return ""
        return f"{size} {self.unit}: it was trained on {c.min_len} to {c.max_len}, so expect mistakes."

    def has_right_answer(self, source: Sequence[int]) -> bool:
        """Return whether a source has a known answer."""
        return not self.is_open_ended

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        """Return the source tokens to which the output of each answer token has to attend; a row may be empty.

        By default, answer token i needs source token i.
        """
        return torch.eye(len(source), dtype=torch.bool, device=source.device)

    def head_score(
        self, pattern: Float[Tensor, "head query key"], source: Sequence[int], queries: Sequence[int]
    ) -> Float[Tensor, " head"]:
        """Return the fraction of each head's attention on the target pattern, in [0, 1].

        `queries` are the output positions of the answer; the keys 0 … n − 1 are the source.
        """
        wanted = self.target_pattern(torch.tensor(list(source), device=pattern.device))  # [answer, pos]
        rows = pattern[:, list(queries), : wanted.shape[1]]  # [head, answer, pos]
        mass = (rows * wanted.to(pattern.dtype)).sum(dim=-1)  # [head, answer]
        counts = wanted.sum(dim=-1) > 0  # [answer]
        return mass[:, counts].mean(dim=-1) if bool(counts.any()) else mass.new_zeros(len(mass))


def read_numbers(text: str, low: int, high: int, example: str) -> list[int]:
    """Parse the numbers in a text such as "3 7 12 9"; commas, semicolons and brackets are allowed.

    Raises `InputError` for other text, or for a number outside `low` … `high`.
    """
    words = [word for word in re.split(r"[\s,;\[\]()]+", text) if word]
    if not words:
        raise InputError(f"Type some numbers from {low} to {high}, for example {example}.")
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or not low <= int(word) <= high:
            what = f"This model reads numbers from {low} to {high}, and “{shown(word)}” is not one"
            raise InputError(f"{what}; try {example}.")
    return [int(word) for word in words]


def read_characters(text: str, characters: Sequence[str], what: str, example: str) -> list[int]:
    """Return the index in `characters` of each character of a text; spaces and commas are skipped.

    Raises `InputError` for any other character, or for an empty text.
    """
    found = [character for character in text if not (character.isspace() or character == ",")]
    if not found:
        raise InputError(f"Type some {what}, for example {example}.")
    for character in found:
        if character not in characters:
            raise InputError(f"This model reads {what}, and “{shown(character)}” is not one; try {example}.")
    return [characters.index(character) for character in found]


def shown(word: str) -> str:
    """Shorten typed text and replace unprintable characters, so that it fits into a sentence."""
    start = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in word[:20])
    return start if len(word) <= 20 else start + "…"
