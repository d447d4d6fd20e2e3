"""Adapters of our own transformers, with and without a task, their inputs and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.adapters.adapter import (
    UNCHANGED_PREDICTION,
    AdapterDefaults,
    Input,
    ModelAdapter,
    OpenText,
    Projection,
    Readout,
)
from xformer.decoding import Step, continue_text, decode
from xformer.edits import Edit
from xformer.errors import InputError, UnavailableError
from xformer.layer_path import LayerPath
from xformer.layers.embedding import PatchEmbedding, TokenEmbedding
from xformer.layers.stack import PostNorm, PreNorm
from xformer.memory import peak_bytes
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example, Task, batch_rows, id_list, pair_rows
from xformer.trace import Trace, record


@dataclass(frozen=True, eq=False)
class BareModel(AdapterDefaults):
    """A `Transformer` without a task. It reads token ids, typed "3 7 12", or "3 7 12 > 1 12 7" for an encoder-decoder."""

    model: Transformer
    name: str = "model"

    @property
    def opened(self) -> None:
        """None: it is no external model."""
        return None

    @property
    def input(self) -> Input:
        """Token ids."""
        return NumbersInput()

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The id of each token."""
        return numbered(self.model.config.vocab_size)

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model, and the sites of its layers."""
        return ModelShape.of(self.model.config)

    @property
    def weights(self) -> OwnWeights:
        """All weights."""
        return OwnWeights(self.model)

    def to_example(self, inputs: Any) -> Example:
        """Convert tokens to an example; several inputs become a batch. Raises `InputError` for invalid tokens."""
        is_encoder_decoder = self.model.config.architecture == "encoder-decoder"
        if (rows := (pair_rows(inputs) if is_encoder_decoder else None) or batch_rows(inputs)) is not None:
            return Example.batch([self.to_example(one) for one in rows], self.model.config.pad_token or 0)
        if isinstance(inputs, Tensor) and inputs.dim() not in (1, 2):
            raise InputError(f"Token ids are integers [pos] or [batch, pos], got {inputs.dtype} {list(inputs.shape)}.")
        return self._single(inputs.flatten().tolist() if isinstance(inputs, Tensor) else inputs)

    def _single(self, inputs: Any) -> Example:
        is_encoder_decoder = self.model.config.architecture == "encoder-decoder"
        source, target = inputs, ()
        if isinstance(inputs, str):
            source, _, target = inputs.partition(">")
        elif is_encoder_decoder and isinstance(inputs, tuple) and len(inputs) == 2 and not isinstance(inputs[0], int):
            source, target = inputs
        if is_encoder_decoder and not len(target.strip() if isinstance(target, str) else target):
            raise InputError("An encoder-decoder reads two sequences, like '3 7 12 > 1 12 7', got one.")
        tokens = self._numbers(source)
        return Example.unlabelled(tokens[None], self._numbers(target)[None] if is_encoder_decoder else None)

    def token_names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The ids of the tokens."""
        return tuple(self.token_labels[token] for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Record a run; see `xformer.record`."""
        return record(
            self.model, example.input_ids, example.target, edits=edits, keep=keep, valid=example.valid,
            target_valid=example.target_valid,
        ).cpu()  # fmt: skip

    @torch.no_grad()
    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The final norm, where there is one, then the unembedding."""
        return self.model.unembed(stream.to(self.model.device)).cpu()

    def project_heads(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """x W_Q + b_Q, or x W_K + b_K, rotated by the positions of the run if the model has rotary positions."""
        attention, _ = self.weights.parts(path)
        which, angles = 0 if side == "q" else 1, f"{path}.pos_angles"
        with torch.set_grad_enabled(x.requires_grad):
            weight = attention.weight_in.split(attention.rows)[which].to(x)
            bias = None if attention.bias_in is None else attention.bias_in.split(attention.rows)[which].to(x)
            read = attention.split(F.linear(x, weight, bias), attention.n_kv_heads if which else None)
            read = attention.kv.expand(read, attention.n_heads) if which else read
            return attention.positions.rotate(read, trace[angles].to(x.dtype)) if angles in trace else read

    def steps(self, example: Example, n: int | None = None, **how: Any) -> Iterator[Step]:
        """Generate until the end token, or `n` tokens; see `xformer.decode`."""
        return decode(self.model, example.tokens, max_steps=n, **how)

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes; see `xformer.memory`."""
        n_target = None if example.target is None else example.target.shape[1]
        return peak_bytes(self.model.config, example.input_ids.shape[1], n_target, batch=len(example.input_ids))

    def _numbers(self, inputs: str | Sequence[int]) -> Int[Tensor, " pos"]:
        size, most = self.model.config.vocab_size, self.model.config.max_len
        numbers = self.input.read(inputs) if isinstance(inputs, str) else id_list(inputs)
        if not numbers or len(numbers) > most or not all(0 <= number < size for number in numbers):
            raise InputError(f"This model reads 1 to {most} tokens from 0 to {size - 1}, like '0 1', got {inputs!r}.")
        return torch.tensor(numbers)


class NumbersInput(Input):
    """Token ids, separated by spaces."""

    name = "numbers"
    instruction = "Type token ids; this model has no task."
    format_hint = "Numbers separated by spaces."
    default = "0"

    def read(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(int(word) for word in text.split())
        except ValueError:
            raise InputError(f"This model reads numbers separated by spaces, like '3 7 12', got {text!r}.") from None

    def text(self, source: Sequence[int]) -> str:
        return " ".join(map(str, source))


@lru_cache(maxsize=16)
def numbered(n: int) -> tuple[str, ...]:
    """The ids of `n` tokens, as text."""
    return tuple(str(number) for number in range(n))


@dataclass(frozen=True, eq=False)
class OwnWeights:
    """Views of the weights of our own transformers."""

    model: Transformer

    @torch.no_grad()
    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab d_model"]:
        """The embedding of each token, with the model's scale. Raises `InputError` for an image model."""
        embedding = self._embedding(stack)
        return embedding(torch.arange(len(embedding.token), device=embedding.token.device)[None])[0].cpu()

    def unembedding(self) -> Readout:
        """The unembedding, with the final norm of the stack that predicts."""
        model = self.model
        stack = model.encoder if model.decoder is None else model.decoder
        norm = None if stack is None else stack.norm
        return Readout(model.unembedding.matrix(model.embedding), model.unembedding.bias, norm).cpu()

    def projection(self, path: str) -> Projection:
        """W_O of an attention layer, W₂ of a feed-forward layer."""
        sublayer, _ = self.parts(path)
        return Projection(sublayer.weight_out.T, sublayer.bias_out).cpu()

    def norm_after(self, path: str) -> nn.Module | None:
        """The norm on the stream after a layer's output is added, in post-norm models; else None."""
        _, residual = self.parts(path)
        return residual.norm if isinstance(residual, PostNorm) else None

    def norm_before(self, path: str) -> nn.Module | None:
        """The norm between the stream and a layer's input, in pre-norm models; else None."""
        _, residual = self.parts(path)
        return residual.norm if isinstance(residual, PreNorm) else None

    def last_norm(self, stack: str) -> nn.Module | None:
        return getattr(self.model, stack).norm

    def n_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(weight.numel() for weight in self.model.parameters())

    def parts(self, path: str) -> tuple[Any, Any]:
        """A layer and its residual connection."""
        site = LayerPath.parse(path)
        block = getattr(self.model, site.stack).blocks[site.layer]
        return getattr(block, site.kind), getattr(block, f"{site.kind}_residual")

    def _embedding(self, stack: str | None) -> TokenEmbedding:
        """The embedding of a stack; an encoder-decoder may have two."""
        if stack != "decoder" and self.model.source_embedding is not None:
            return self.model.source_embedding
        if isinstance(self.model.embedding, PatchEmbedding):
            raise InputError("An image model has no token embedding; see `patch_filters` for its embedding of patches.")
        return self.model.embedding


@dataclass(frozen=True, eq=False, init=False)
class TaskModel(BareModel):
    """A `Transformer` and its `Task`. Raises `ConfigError` if they do not fit."""

    task: Task = field(kw_only=True)

    def __init__(self, model: Transformer, task: Task, name: str = "model") -> None:
        super().__init__(model, name)
        object.__setattr__(self, "task", task)
        task.check_fits(model.config)

    @property
    def input(self) -> TaskInput:
        """The task's input."""
        rule = self.task.rule
        kind = ImageInput if rule.is_image else TextInput if rule.is_open_ended else TaskInput
        return kind(self.task, self.model.config.max_len)

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The text of each token of the task."""
        return self.task.vocabulary.labels

    def _single(self, inputs: Any) -> Example:
        """Convert a source, "3 7 12 9" or tokens, to an example with its right answer."""
        source = list(self.input.read(inputs)) if isinstance(inputs, str) else id_list(inputs)
        return self.task.example(source, max_len=self.model.config.max_len)

    def has_right_answer(self, example: Example) -> bool:
        """False for text and for drawn images."""
        return self.task.has_right_answer(example.source)

    def token_names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as text, or the patches of an image."""
        return tuple(self.task.position_names(tokens.tolist()))

    def steps(self, example: Example, n: int | None = None, **how: Any) -> Iterator[Step]:
        """Generate the answer, or `n` characters of open-ended text."""
        if not self.input.is_open_ended or n is None:
            return super().steps(example, n, **how)
        prompt = example.input_ids if example.target is None else example.tokens
        return continue_text(self.model, prompt, n, **how)

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """See `Task.head_scores`."""
        return self.task.head_scores(trace, example)


class TaskInput(Input):
    """Symbols of a rule: numbers, digits, brackets."""

    def __init__(self, task: Task, max_len: int) -> None:
        rule = task.rule
        self.task, self.max_len, self.name = task, max_len, task.config.name
        self.instruction, self.format_hint = rule.instruction, rule.format_hint
        self.default, self.no_sample_reason = rule.default, rule.no_sample_reason
        self.replacements = range(1, 1 + task.vocabulary.symbols)

    def examples(self) -> dict[str, str]:
        return self.task.rule.examples()

    def read(self, text: str) -> tuple[int, ...]:
        return tuple(self.task.vocabulary.read(text))

    def text(self, source: Sequence[int]) -> str:
        return self.task.vocabulary.text(list(source))

    def random(self, seed: int) -> str:
        return self.text(self.task.draw(seed))

    def shortest(self) -> tuple[int, ...]:
        return tuple(self.task.draw(0, size=self.task.config.min_len))

    def remark(self, source: Sequence[int]) -> str:
        return self.task.rule.remark(source)

    def scored_positions(self, example: Example, look: str) -> tuple[Sequence[int], Sequence[int] | None]:
        """The source without special tokens."""
        n = len(example.source)
        if self.task.config.architecture == "decoder" and look == "answer":
            return self.task.answer_queries(n), range(n)  # the answer's i-th token is predicted at n + i
        return range(n), None


class TextInput(OpenText, TaskInput):
    """Characters of a text."""

    unit: ClassVar[str] = "character"
    units: ClassVar[str] = "characters"

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as text, without tokens outside the alphabet."""
        alphabet = self.task.config.alphabet
        return "".join(alphabet[token - 1] for token in tokens if 1 <= token <= len(alphabet))

    def truncate(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The end of a text that is too long; an encoder-decoder reads half of it in each stack."""
        return source[-self.max_len * (2 if self.task.config.architecture == "encoder-decoder" else 1) :]

    def scored_positions(self, example: Example, look: str) -> tuple[Sequence[int], None]:
        """All positions."""
        return range(min(example.input_ids.shape[1], example.labels.shape[1])), None


class ImageInput(TaskInput):
    """An image, read in patches."""

    kind: ClassVar[str] = "image"
    unit: ClassVar[str] = "patch"
    units: ClassVar[str] = "patches"
    reference_label: ClassVar[str] = UNCHANGED_PREDICTION
    uses_prediction_as_reference: ClassVar[bool] = True
    sample_noun: ClassVar[str] = "test image"

    def scored_positions(self, example: Example, look: str) -> tuple[Sequence[int], None]:
        """All patches; the class token is left out."""
        return range(1, 1 + self.task.n_patches), None


def own_model(adapter: ModelAdapter) -> Transformer:
    """Our `Transformer` behind an adapter. Raises `UnavailableError` for other kinds of models."""
    if not isinstance(adapter, BareModel):
        raise UnavailableError(
            f"This requires an xformer Transformer, like 'checkpoints/reverse'; {adapter.name!r} is another kind of model."
        )
    return adapter.model


def own_task_model(adapter: ModelAdapter) -> TaskModel:
    """The adapter itself if it is a `TaskModel`. Raises `UnavailableError` otherwise."""
    if not isinstance(adapter, TaskModel):
        raise UnavailableError(
            f"This requires a model trained on a task of xformer, like 'checkpoints/reverse'; {adapter.name!r} has no task."
        )
    return adapter
