"""A model that is not ours, as far as anything outside this file can see: no task, no configuration, no weights to reach.

Behind it runs a small decoder of ours, so that its numbers are right. One reads text, byte by byte; one the numbers of tokens,
whose continuation is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from pages.shared import models
from xformer.adapters import BareModel, Input, ModelAdapter
from xformer.config import ModelConfig
from xformer.decoding import GREEDY, Sampling, Step
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace

MAX_LEN = 32
LABELS = tuple(chr(byte) if 32 < byte < 127 else "·" if byte == 32 else f"<{byte:02x}>" for byte in range(256))


class Bytes(Input):
    """Text, of which the model reads the bytes."""

    kind: ClassVar[str] = "text"
    one: ClassVar[str] = "byte"
    many: ClassVar[str] = "bytes"
    reference_label: ClassVar[str] = "really comes next"
    goes_on: ClassVar[bool] = True
    name = "bytes"
    instruction = "Type the beginning of a text; it goes on with it, byte by byte."
    typed = "Any text."
    default = "When Mary and John"
    replacements = range(256)

    def examples(self) -> dict[str, str]:
        return {"… reads an umlaut": "Käse"}

    def read(self, text: str) -> tuple[int, ...]:
        if len(text) < 2:
            raise InputError("Type at least two characters, for example ab.")
        return tuple(text.encode())

    def text(self, source: Sequence[int]) -> str:
        return bytes(source).decode(errors="replace")

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        return source[-MAX_LEN:]


class Numbers(Bytes):
    """The numbers of tokens."""

    one: ClassVar[str] = "token"
    many: ClassVar[str] = "tokens"
    name = "numbers"
    instruction = "Type the numbers of tokens; it says which comes next."
    default = "12 7 3 12 7"

    def examples(self) -> dict[str, str]:
        return {}

    def read(self, text: str) -> tuple[int, ...]:
        if not all(word.isdecimal() and int(word) < 256 for word in text.split()):
            raise InputError("This model reads numbers from 0 to 255, for example 12 7 3.")
        return tuple(int(word) for word in text.split())

    def text(self, source: Sequence[int]) -> str:
        return " ".join(map(str, source))


class UnavailableWeights:
    """Weights that cannot be read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def token_embedding(self, stack: str | None = None) -> Tensor:
        raise UnavailableError(f"The token embeddings of {self.name} are unavailable.")

    def unembedding(self) -> Any:
        raise UnavailableError(f"The unembedding of {self.name} is unavailable.")

    def projection(self, path: str) -> Any:
        raise UnavailableError(f"The output projection of {path} of {self.name} is unavailable.")

    def n_parameters(self) -> int:
        raise UnavailableError(f"The parameters of {self.name} cannot be counted.")

    def norm_after(self, path: str) -> None:
        return None

    norm_before = norm_after

    def last_norm(self, stack: str) -> None:
        return None


class Stranger:
    """A subject by the protocol alone: what runs stands in closures."""

    def __init__(self, name: str, of: Input, *, asks: bool = True) -> None:
        config = ModelConfig(
            architecture="decoder", vocab_size=256, d_model=24, n_layers=2, n_heads=3, d_ff=32, max_len=MAX_LEN,
            norm="pre", positions="rotary",
        )  # fmt: skip
        inside = BareModel(Transformer(config, torch.Generator().manual_seed(5)).eval().requires_grad_(False))
        self.name, self.input, self.labels, self.shape = name, of, LABELS, ModelShape.of(config)
        self.weights = UnavailableWeights(name)
        self._asks = asks
        self._record: Callable[..., Trace] = lambda *what, **how: inside.record(*what, **how)
        self._unembed: Callable[[Tensor], Tensor] = lambda stream: inside.unembed(stream)
        self._steps: Callable[..., Iterator[Step]] = lambda *what, **how: inside.steps(*what, **how)

    def frame(self, typed: str | Sequence[int]) -> Example:
        source = self.input.read(typed) if isinstance(typed, str) else tuple(typed)
        if not 0 < len(source) <= MAX_LEN:
            raise InputError(f"This model reads 1 to {MAX_LEN} {self.input.many}, got {len(source)}.")
        stream = torch.tensor([source])
        labels = torch.full_like(stream, IGNORED)
        if self._asks:
            labels[:, :-1] = stream[:, 1:]
        return Example(source, source[1:], stream, None, stream, labels)

    def has_right_answer(self, example: Example) -> bool:
        return False

    def names(self, tokens: Tensor) -> tuple[str, ...]:
        return tuple(self.labels[token] for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        return replace(self._record(example, edits=edits, keep=keep), model_config=None)

    def unembed(self, stream: Tensor) -> Tensor:
        return self._unembed(stream)

    def steps(
        self, example: Example, n: int | None = None, *, sampling: Sampling = GREEDY, **how: Any
    ) -> Iterator[Step]:
        return self._steps(example, n, sampling=sampling, **how)

    def heads_read(self, *what: object, **how: object) -> Tensor:
        raise UnavailableError("The queries and keys of this model are out of reach.")

    def recording_bytes(self, example: Example) -> int:
        return 4 * example.stream.numel()

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        return {}


STRANGERS: dict[str, ModelAdapter] = {
    "stranger": Stranger("stranger", Bytes()),
    "numbers": Stranger("numbers", Numbers(), asks=False),
}


def let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the app know them."""
    monkeypatch.setattr(models, "external", STRANGERS.get)
    monkeypatch.setattr(models, "external_titles", lambda: {name: f"{name} · 2 layers" for name in STRANGERS})
