"""A task: samples batches, gives the right answer, and puts a typed input before a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.config import ModelConfig, TaskConfig
from xformer.errors import ConfigError, InputError
from xformer.tasks.answers import ANSWERS
from xformer.tasks.batch import Batch
from xformer.tasks.framing import Stream, frame, to_batch
from xformer.tasks.sampling import Purpose, generator, sequences
from xformer.tasks.vocabulary import Vocabulary

CHUNK = 64
"""Batches drawn at once."""


@dataclass(frozen=True)
class Example:
    """One input as the model takes it, with its right answer: what a screen shows.

    `tokens` is the whole input of an encoder or an encoder-decoder, and the prompt of a decoder.
    """

    source: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: Int[Tensor, "1 pos"]
    target: Int[Tensor, "1 out"] | None
    """An encoder-decoder's target under teacher forcing."""
    stream: Int[Tensor, "1 pos"]
    """What one recorded run reads: the tokens, and for a decoder the right answer after them."""
    labels: Int[Tensor, "1 out"]
    """The right token at each output of that run, −100 where there is none."""


@dataclass(frozen=True)
class Task:
    """A toy task as one architecture sees it."""

    config: TaskConfig

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.config)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """The widths of a packed row: source and target."""
        lengths = torch.tensor([self.config.min_len, self.config.max_len])
        cells = torch.ones(2, self.config.max_len, dtype=torch.long)
        source, target = self._frame(cells, lengths)
        return int(source.lengths.sum()), 0 if target is None else int(target.lengths.sum())

    def check_fits(self, model: ModelConfig) -> None:
        """Raise `ConfigError` when a model cannot be used for this task."""
        if model.architecture != self.config.architecture:
            raise ConfigError(
                f"The task is laid out for architecture={self.config.architecture!r}, got a model with "
                f"{model.architecture!r}; give both the same."
            )
        if model.vocab_size != len(self.vocabulary):
            raise ConfigError(
                f"The task has {len(self.vocabulary)} tokens, got a model with vocab_size={model.vocab_size}; "
                f"use vocab_size={len(self.vocabulary)}."
            )
        special = self.vocabulary.special
        if (model.pad_token, model.end_token, model.start_token) != (special.pad, special.end, special.start):
            raise ConfigError(
                f"The task's special tokens are pad_token={special.pad}, end_token={special.end}, "
                f"start_token={special.start}, got {model.pad_token}, {model.end_token}, {model.start_token}."
            )
        longest = self._longest()
        if model.max_len < longest:
            raise ConfigError(
                f"The task's inputs have up to {longest} tokens, got a model with max_len={model.max_len}; "
                f"use max_len={longest}."
            )

    def answer(self, source: list[int]) -> list[int]:
        """The right answer to one sequence of symbols."""
        tensor = torch.tensor([source])
        return ANSWERS[self.config.name](tensor, torch.tensor([len(source)]))[0].tolist()

    def answer_queries(self, n: int) -> range:
        """Where the outputs that say the answer to n symbols stand: a decoder's after its source, all others' at once."""
        start = n if self.config.architecture == "decoder" else 0
        return range(start, start + n)

    def sample(
        self,
        n: int,
        *,
        seed: int,
        step: int = 0,
        steps: int = 1,
        purpose: Purpose = "test",
        packed: bool = False,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """`steps` batches of n examples each, one after the other in the rows, drawn from (seed, purpose, step).

        Packed rows hold two examples each; n must then be even.
        """
        if packed and n % 2:
            raise InputError(f"Packed rows hold two examples, so their number must be even, got {n}; try {n + 1}.")
        draw = generator(seed, purpose, step, device)
        c = self.config
        source, lengths = sequences(
            n * steps, symbols=c.symbols, min_len=c.min_len, max_len=c.max_len, paired=packed, draw=draw
        )
        streams = self._frame(source, lengths)
        return to_batch(*streams, pad=self.vocabulary.special.pad, widths=self.widths if packed else None)

    def example(self, source: list[int], *, max_len: int | None = None) -> Example:
        """One typed sequence, framed for the model. Raises `InputError` when it is empty or longer than the model reads."""
        if not source:
            raise InputError("An example needs at least one number, got none; for example [3, 1, 2].")
        tensor, lengths = torch.tensor([source]), torch.tensor([len(source)])
        answer = ANSWERS[self.config.name](tensor, lengths)
        stream, target = frame(self.config.architecture, tensor, answer, lengths, self.vocabulary.special)
        longest = max(stream.tokens.shape[1], 0 if target is None else target.tokens.shape[1])
        if max_len is not None and longest > max_len:
            raise InputError(
                f"This model reads at most {max_len} tokens, and these {len(source)} numbers need {longest}; "
                "take some away."
            )
        prompt = stream.tokens
        if self.config.architecture == "decoder":
            prompt = prompt[:, : len(source) + 1]  # s₁ … s_L start
        return Example(
            source=tuple(source),
            answer=tuple(answer[0].tolist()),
            tokens=prompt,
            target=None if target is None else target.tokens,
            stream=stream.tokens,
            labels=stream.labels if target is None else target.labels,
        )

    def for_architecture(self, architecture: str, *, end_token: bool = False) -> Task:
        """The same task laid out for another architecture."""
        return Task(replace(self.config, architecture=architecture, end_token=end_token))

    def _frame(self, source: Tensor, lengths: Tensor) -> tuple[Stream, Stream | None]:
        answer = ANSWERS[self.config.name](source, lengths)
        return frame(self.config.architecture, source, answer, lengths, self.vocabulary.special)

    def _longest(self) -> int:
        source, target = self._frame(
            torch.ones(1, self.config.max_len, dtype=torch.long), torch.tensor([self.config.max_len])
        )
        return max(source.tokens.shape[1], 0 if target is None else target.tokens.shape[1])
