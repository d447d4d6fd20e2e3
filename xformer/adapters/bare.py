"""One of our transformers without a task: its tokens are numbers, and nobody knows what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.input import Input
from xformer.adapters.own_weights import OwnWeights
from xformer.decoding import Step, decode
from xformer.edits import AnyEdit
from xformer.errors import InputError
from xformer.memory import peak_bytes
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example, batch_rows
from xformer.trace import Trace, record


@dataclass(frozen=True, eq=False)
class BareModel:
    """A `Transformer` as it is. Numbers are typed with spaces: "3 7 12"; of an encoder-decoder "3 7 12 > 1 12 7"."""

    model: Transformer
    name: str = "model"

    @property
    def input(self) -> Input:
        """The numbers of its tokens."""
        return NumbersInput()

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token: its number."""
        return _numbered(self.model.config.vocab_size)

    @property
    def shape(self) -> ModelShape:
        """Its sizes, and where its layers sit."""
        return ModelShape.of(self.model.config)

    @property
    def weights(self) -> OwnWeights:
        """All of them."""
        return OwnWeights(self.model)

    def frame(self, typed: Any) -> Example:
        """Tokens as the model takes them, with no answer; several inputs as a batch.

        Raises `InputError` when they are not its tokens.
        """
        if (rows := batch_rows(typed)) is not None:
            return Example.batch([self.frame(one) for one in rows], self.model.config.pad_token or 0)
        is_pair = self.model.config.architecture == "encoder-decoder"
        if isinstance(typed, Tensor):
            typed = typed.flatten().tolist()
        is_both = is_pair and isinstance(typed, tuple) and len(typed) == 2 and not isinstance(typed[0], int)
        source, _, target = typed.partition(">") if isinstance(typed, str) else (typed, "", "")
        if is_both:
            source, target = typed
        if is_pair and (not target.strip() if isinstance(target, str) else not len(target)):
            raise InputError("An encoder-decoder reads two sequences, written like '3 7 12 > 1 12 7', got one.")
        tokens = self._numbers(source)
        written = self._numbers(target)[None] if is_pair else None
        stream = tokens[None]
        labels = torch.full_like(stream if written is None else written, IGNORED)
        return Example(tuple(tokens.tolist()), (), stream, written, stream, labels)

    def has_right_answer(self, example: Example) -> bool:
        """Nobody knows what is right."""
        return False

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The numbers of the tokens."""
        return tuple(self.labels[token] for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once; see `xformer.record`."""
        return record(
            self.model, example.stream, example.target, edits=edits, keep=keep, valid=example.valid,
            target_valid=example.target_valid,
        )  # fmt: skip

    @torch.no_grad()
    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Last norm (where there is one), then the output layer of the stack that predicts."""
        return self.model.unembed(stream)

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """Queries or keys of a layer for other streams, positions as in the run."""
        return self.weights.heads_read(trace, path, x, side)

    def steps(
        self, example: Example, n: int | None = None, *, edits: Sequence[AnyEdit] = (), **how: Any
    ) -> Iterator[Step]:
        """What it says until its end token, or `n` tokens; see `xformer.decode`."""
        return decode(self.model, example.tokens, max_steps=n, edits=edits, **how)

    def recording_bytes(self, example: Example) -> int:
        """Return about how many bytes it takes to record a run; see `xformer.memory`."""
        n_target = None if example.target is None else example.target.shape[1]
        return peak_bytes(self.model.config, example.stream.shape[1], n_target, batch=len(example.stream))

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Nobody knows what is needed."""
        return {}

    def _numbers(self, typed: str | Sequence[int]) -> Int[Tensor, " pos"]:
        size, most = self.model.config.vocab_size, self.model.config.max_len
        numbers = self.input.read(typed) if isinstance(typed, str) else [int(word) for word in typed]
        if not numbers or len(numbers) > most or not all(0 <= number < size for number in numbers):
            raise InputError(f"This model reads 1 to {most} tokens from 0 to {size - 1}, like '0 1', got {typed!r}.")
        return torch.tensor(numbers)


class NumbersInput(Input):
    """The numbers of tokens, typed with spaces."""

    name = "numbers"
    does = "Type the numbers of tokens; nobody knows what it should say to them."
    typed = "Numbers with spaces between them."
    default = "0"

    def read(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(int(word) for word in text.split())
        except ValueError:
            raise InputError(
                f"This model reads numbers with spaces between them, like '3 7 12', got {text!r}."
            ) from None

    def text(self, source: Sequence[int]) -> str:
        return " ".join(map(str, source))


@lru_cache(maxsize=16)
def _numbered(n: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(n))
