"""Tasks and their vocabularies: sample batches, compute right answers, and lay out typed inputs."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.config import ModelConfig, TaskConfig
from xformer.errors import ConfigError, InputError
from xformer.layer_path import LayerPath
from xformer.tasks.batch import IGNORED, Batch
from xformer.tasks.framing import Purpose, Specials, Stream, full_batch, generator, to_batch
from xformer.tasks.images import image_batch, patch_names
from xformer.tasks.rules import Rule, rule
from xformer.trace import Trace

CHUNK = 64
"""Number of batches that are drawn at once."""


@dataclass(frozen=True)
class Example:
    """One input laid out for a model, or a padded batch of inputs, with the right answer.

    `tokens` is the input of an encoder, the source of an encoder-decoder, or the prompt of a decoder. In a batch, `source` and
    `answer` belong to the first input.
    """

    source: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: Int[Tensor, "batch pos"]
    target: Int[Tensor, "batch out"] | None
    """An encoder-decoder's target under teacher forcing."""
    input_ids: Int[Tensor, "batch pos"]
    """The input of a recorded run: the tokens, for a decoder followed by the right answer."""
    labels: Int[Tensor, "batch out"]
    """The right token at each output of that run, −100 where there is none."""
    valid: Bool[Tensor, "batch pos"] | None = None
    """True where `input_ids` is not padding; None: there is no padding."""
    target_valid: Bool[Tensor, "batch out"] | None = None
    arguments: Mapping[str, Any] | None = None
    """Further arguments of an external model, by name."""
    members: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None = None
    """Source and answer of each input of a batch."""
    is_numbered: bool = False
    """Whether `input_ids` holds the numbers of positions, as of a sound, instead of tokens."""

    @classmethod
    def unlabelled(cls, stream: Tensor, target: Tensor | None = None, **more: Any) -> Example:
        """Return an example without reference outputs; `more` are other fields."""
        labels = torch.full_like(stream if target is None else target, IGNORED)
        return cls(tuple(stream[0].tolist()), (), stream, target, stream, labels, **more)

    @classmethod
    def batch(cls, examples: Sequence[Example], pad: int) -> Example:
        """Join inputs into one batch, padded on the right with the token `pad`."""
        if len(examples) == 1:
            return examples[0]
        valid = _rows([torch.ones_like(one.input_ids, dtype=torch.bool) for one in examples], 0)
        targets = [one.target for one in examples if one.target is not None]
        target_valid = _rows([torch.ones_like(one, dtype=torch.bool) for one in targets], 0) if targets else None
        arguments = [one.arguments for one in examples if one.arguments is not None]
        return cls(
            examples[0].source,
            examples[0].answer,
            _rows([one.tokens for one in examples], pad),
            _rows(targets, pad) if targets else None,
            _rows([one.input_ids for one in examples], pad),
            _rows([one.labels for one in examples], IGNORED),
            None if bool(valid.all()) else valid,
            None if target_valid is None or bool(target_valid.all()) else target_valid,
            {name: _rows([one[name] for one in arguments], 0) for name in arguments[0]} if arguments else None,
            tuple((one.source, one.answer) for one in examples),
        )

    def one(self, index: int) -> Example:
        """Return one input of a batch, with its padding. Raises `InputError` if the index is out of range."""
        n = len(self.input_ids)
        if not -n <= index < n:
            raise InputError(f"This batch has inputs 0 to {n - 1}, got {index}.")
        rows = slice(index % n, index % n + 1)

        def of(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows]

        if self.members is not None:
            source, answer = self.members[index]
        else:
            read = self.input_ids[index] if self.valid is None else self.input_ids[index][self.valid[index]]
            source, answer = tuple(read.tolist()), tuple(one for one in self.labels[index].tolist() if one != IGNORED)
        given = self.arguments and {name: _of_input(one, index % n, n) for name, one in self.arguments.items()}
        return Example(
            source, answer, self.tokens[rows], of(self.target), self.input_ids[rows], self.labels[rows],
            of(self.valid), of(self.target_valid), given, is_numbered=self.is_numbered,
        )  # fmt: skip


def plain_ids(inputs: Any) -> Any:
    """Return the token ids of one input, a tensor or an array, as a tuple; other inputs as they are.

    Raises `InputError` for values that are no input: None, numbers, and bytes or sets, whose numbers would pass as token ids.
    """
    is_numbers = isinstance(inputs, bytes | bytearray | memoryview | Set | Iterator)
    is_data = hasattr(inputs, "__iter__") or hasattr(inputs, "__array__") or hasattr(inputs, "__array_interface__")
    if is_numbers or not is_data or isinstance(inputs, type):
        raise InputError(
            "An input is a text, token ids, an image, or a dict of the model's arguments, like '3 7 12' or [3, 7, 12]; got "
            f"{type(inputs).__name__}: {inputs!r:.60}."
        )
    if isinstance(inputs, np.ndarray):
        is_one, is_whole = inputs.ndim == 1, np.issubdtype(inputs.dtype, np.integer)
        return tuple(inputs.tolist()) if is_one and is_whole else inputs
    if (
        not isinstance(inputs, Tensor)
        or inputs.is_floating_point()
        or inputs.is_complex()
        or inputs.dtype == torch.bool
    ):
        return inputs
    is_one = inputs.dim() == 1 or (inputs.dim() == 2 and len(inputs) == 1)
    return tuple(inputs.flatten().tolist()) if is_one else inputs


def id_list(ids: Any) -> list[int]:
    """Return the token ids of one sequence, given as [pos] or as one row [1, pos]. Raises `InputError` for anything else."""
    given = ids.tolist() if hasattr(ids, "tolist") else ids
    try:
        given = list(given)
        if len(given) == 1 and isinstance(given[0], list | tuple | Tensor):
            return id_list(given[0])
        if not any(isinstance(one, bool) for one in given):  # a mask
            return [operator.index(one) for one in given]
    except TypeError:
        pass
    raise InputError(f"Token ids are whole numbers [pos], like [3, 7, 12], got {given!r:.100}.")


def pair_rows(inputs: Any) -> list[Any] | None:
    """Return the rows of a batch `(sources, targets)`, a pair each; None for other inputs.

    Raises `InputError` if there is not one target for each source.
    """
    if not isinstance(inputs, tuple) or len(inputs) != 2:
        return None
    sources, targets = (one.tolist() if isinstance(one, Tensor) and one.dim() > 1 else one for one in inputs)
    for rows in (sources, targets):
        if not isinstance(rows, list | tuple) or not rows or not all(map(_is_sequence, rows)):
            return None
    if len(sources) != len(targets):
        raise InputError(f"Give one target for each source, got {len(sources)} and {len(targets)}.")
    return list(zip(sources, targets, strict=True))


def batch_rows(typed: Any) -> list[Any] | None:
    """Return the inputs of a batch (a list of texts, or rows of ids); None for a single input."""
    if isinstance(typed, Tensor):
        return typed.tolist() if typed.dim() == 2 and len(typed) > 1 else None
    if not isinstance(typed, list) or not all(map(_is_sequence, typed)):
        return None
    return list(typed) or None


def _of_input(value: Any, index: int, n: int) -> Any:
    """Return one input's part of an argument of a batch of `n`: a row of a tensor, also in a mapping, or of a cache."""
    if isinstance(value, Tensor):
        return value[index : index + 1] if value.dim() and len(value) == n else value
    if isinstance(value, dict):
        return {name: _of_input(one, index, n) for name, one in value.items()}
    if hasattr(value, "batch_select_indices"):  # a cache of Transformers
        value = copy.deepcopy(value)
        value.batch_select_indices(torch.tensor([index]))
    return value


def _is_sequence(one: Any) -> bool:
    return isinstance(one, str | list | tuple | Tensor)


def _rows(values: Sequence[Tensor], fill: int) -> Tensor:
    """Join tensors [1, n] of different lengths into one tensor [batch, longest], padded on the right."""
    longest = max(value.shape[1] for value in values)
    return torch.cat([F.pad(value, (0, longest - value.shape[1]), value=fill) for value in values])


@dataclass(frozen=True)
class Task:
    """A task for one architecture: draws examples, computes right answers and scores predictions.

    Attributes:
        config: The task's name and sizes.

    Example:
        >>> import xformer
        >>> task = xformer.load("checkpoints/reverse").task
        >>> source = task.draw(3)  # the symbols of a random input, from a seed
        >>> 3 <= len(source) <= 15
        True
    """

    config: TaskConfig

    @cached_property
    def rule(self) -> Rule:
        """The rule of the task, the same for all architectures."""
        return rule(self.config)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.config)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """The widths of a packed row: source and target."""
        source, target = self._of_sizes(self.config.min_len, self.config.max_len)
        return int(source.lengths.sum()), 0 if target is None else int(target.lengths.sum())

    def check_fits(self, model: ModelConfig) -> None:
        """Raise `ConfigError` if a model cannot be used for this task."""
        special, image, patch = self.vocabulary.special, self.image_side, self.config.patch
        ours, n, longest = self.config.architecture, len(self.vocabulary), max(self.longest)
        own = f"pad_token={special.pad}, end_token={special.end}, start_token={special.start}"
        theirs = f"{model.pad_token}, {model.end_token}, {model.start_token}"
        for is_right, what in (
            (model.architecture == ours,
             f"The task is laid out for architecture={ours!r}, got a model with {model.architecture!r}; give both the same."),
            (model.vocab_size == n,
             f"The task has {n} tokens, got a model with vocab_size={model.vocab_size}; use vocab_size={n}."),
            (theirs == f"{special.pad}, {special.end}, {special.start}",
             f"The task's special tokens are {own}, got {theirs}."),
            (model.causal or not self.rule.needs_causal,
             f"In the task {self.config.name} each answer depends only on the past, so the model must be causal, got "
             "causal=False; use causal=True."),
            ((model.image, model.patch) == (image, patch),
             f"The task {self.config.name} shows images of side {image} in patches of {patch} (0: none), got a model with "
             f"image={model.image}, patch={model.patch}; give both the same."),
            (model.max_len >= longest,
             f"The task's inputs have up to {longest} tokens, got a model with max_len={model.max_len}; use "
             f"max_len={longest}."),
        ):  # fmt: skip
            if not is_right:
                raise ConfigError(what)

    @cached_property
    def longest(self) -> tuple[int, int]:
        """The largest number of tokens in training: of the input stream, and of an encoder-decoder's target (else 0)."""
        if self.rule.is_image:
            return 1 + self.n_patches, 0
        source, target = self._of_sizes(self.config.max_len)
        return source.tokens.shape[1], 0 if target is None else target.tokens.shape[1]

    @property
    def image_side(self) -> int:
        """The side of the images in pixels; 0 for other inputs."""
        return self.config.max_len if self.rule.is_image else 0

    @property
    def n_patches(self) -> int:
        """The number of patches of an image; 0 for other inputs."""
        return (self.image_side // self.config.patch) ** 2 if self.rule.is_image else 0

    def position_names(self, tokens: list[int]) -> list[str]:
        """Return the label of each position of a stream: tokens as text, or patches."""
        if self.rule.is_image:
            return patch_names(self.image_side // self.config.patch)
        return [self.vocabulary.labels[token] for token in tokens]

    def head_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Return the task score of each head, in [0, 1], by the path of its attention layer.

        `trace` is a run of `example` (its `input_ids`, and its `target` if there is one) with patterns. In an
        encoder-decoder only cross-attention is scored, because there the answer attends to the source.
        """
        queries = self.answer_queries(len(example.source))
        patterns = self._answer_patterns(trace).items()
        return {path: self.rule.head_score(one, example.source, queries).tolist() for path, one in patterns}

    def chance_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Return the `head_scores` of heads that attend uniformly to all permitted keys."""
        queries = self.answer_queries(len(example.source))
        chances = {}
        for path, pattern in self._answer_patterns(trace).items():
            mask = f"{path}.mask"
            allowed = trace[mask][0].to(pattern.dtype) if mask in trace else pattern.new_ones(())
            allowed = allowed.expand_as(pattern)  # [head, query, key]
            even = allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
            chances[path] = self.rule.head_score(even, example.source, queries).tolist()
        return chances

    def _answer_patterns(self, trace: Trace) -> dict[str, Tensor]:
        """Return the patterns [head, query, key] of the layers in which the answer attends to the source."""
        is_encoder_decoder = self.config.architecture == "encoder-decoder"
        return {
            path: one[0]
            for path, one in trace.patterns().items()
            if not is_encoder_decoder or LayerPath.parse(path).is_cross
        }

    def answer(self, source: list[int]) -> list[int]:
        """Return the right answer to one sequence of symbols."""
        self.rule.check(source)
        answer, lengths = self.rule.answer(torch.tensor([source]), torch.tensor([len(source)]))
        return answer[0, : int(lengths[0])].tolist()

    def has_right_answer(self, source: Sequence[int]) -> bool:
        """Return whether a prediction can be right or wrong; False for text and for drawn images."""
        return self.rule.has_right_answer(source)

    @property
    def is_decoded(self) -> bool:
        """Whether answers are generated token by token until an end token."""
        return self.config.architecture != "encoder" and not self.rule.is_open_ended

    def answer_queries(self, n: int) -> range:
        """Return the output positions of the answer to n symbols: after the source in a decoder, else all."""
        return self.rule.answer_queries(n)

    def draw(self, seed: int, *, size: int | None = None) -> list[int]:
        """Draw a held-out source, of a `size` from `min_len` to `max_len` (random if None)."""
        of = self.rule if size is None else rule(self.config.replace(min_len=size, max_len=size))
        source, lengths = of.sources(1, paired=False, draw=generator(seed, "held-out", 1), purpose="held-out")
        return source[0, : of.typed_length(int(lengths[0]))].tolist()

    def probe(self, seed: int) -> Example:
        """Return an example of medium length, for tracking head scores during training."""
        return self.example(self.draw(seed, size=self.rule.probe_size))

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
        """Draw `steps` batches of n examples each, concatenated, from (seed, purpose, step): the same on every device.

        Packed rows contain two examples each; n must then be even. Images and windows of text fill their rows and are not
        packed.
        """
        if packed and n % 2:
            raise InputError(f"Packed rows contain two examples, so their number must be even, got {n}; try {n + 1}.")
        draw = generator(seed, purpose, step)
        drawn = self.rule.sources(n * steps, paired=packed, draw=draw, purpose=purpose)
        source, lengths = (one.to(device) for one in drawn)
        if self.rule.is_image:
            return image_batch(source, self.n_patches)
        streams = self.rule.frame(source, lengths, self.vocabulary.special)
        if not self.rule.can_pack:
            return full_batch(*streams)
        return to_batch(*streams, pad=self.vocabulary.special.pad, widths=self.widths if packed else None)

    def edge_cases(self, device: torch.device | str = "cpu") -> Batch | None:
        """Return all edge cases of the rule, one per row, or None."""
        found = self.rule.edge_cases()
        if found is None:
            return None
        source, lengths = found
        streams = self.rule.frame(source.to(device), lengths.to(device), self.vocabulary.special)
        return to_batch(*streams, pad=self.vocabulary.special.pad, widths=None)

    def example(self, source: list[int], *, max_len: int | None = None) -> Example:
        """Lay out one typed sequence for the model.

        Raises `InputError` if it is empty, longer than the model's context, or of a length without an answer.
        """
        self.rule.check(source)
        tensor, lengths = torch.tensor([source]), torch.tensor([len(source)])
        if self.rule.is_image:
            shown = image_batch(tensor, self.n_patches)
            return Example(tuple(source), (source[-1],), shown.tokens, None, shown.tokens, shown.labels)
        answer, answer_lengths = self.rule.answer(tensor, lengths)
        answer = answer[:, : int(answer_lengths[0])]
        stream, target = self.rule.frame_typed(tensor, lengths, self.vocabulary.special)
        longest = max(stream.tokens.shape[1], 0 if target is None else target.tokens.shape[1])
        if max_len is not None and longest > max_len:
            what = f"these {self.rule.size(source)} {self.rule.unit} need {longest}"
            raise InputError(f"This model reads at most {max_len} tokens, and {what}; take some away.")
        prompt = stream.tokens
        if self.config.architecture == "decoder":
            prompt = prompt[:, : self.rule.prompt_length(len(source))]
        labels = stream.labels if target is None else target.labels
        written = None if target is None else target.tokens
        return Example(tuple(source), tuple(answer[0].tolist()), prompt, written, stream.tokens, labels)

    def for_architecture(self, architecture: str, *, end_token: bool = False) -> Task:
        """Return the same task for another architecture."""
        return Task(self.config.replace(architecture=architecture, end_token=end_token))

    def _of_sizes(self, *sizes: int) -> tuple[Stream, Stream | None]:
        """Return streams of sources of these sizes, consisting of the first symbol."""
        lengths = torch.tensor([self.rule.source_length(size) for size in sizes])
        source = torch.ones(len(sizes), int(lengths.max()), dtype=torch.long)
        return self.rule.frame(source, lengths, self.vocabulary.special)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a task: 0 for padding, the task's own from 1, then end and start tokens if the architecture uses them."""

    labels: tuple[str, ...]
    special: Specials
    symbols: int
    """A source consists of the tokens 1 … `symbols`."""
    rule: Rule

    @classmethod
    def of(cls, config: TaskConfig) -> Vocabulary:
        of = rule(config)
        labels = list(of.labels) if of.is_image else ["pad", *of.labels]  # images are never padded
        place = {name: len(labels) + index for index, name in enumerate(of.special_names())}
        special = Specials(pad=0, end=place.get("end"), start=place.get("start"))
        return cls((*labels, *place), special, config.symbols, of)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, text: str) -> list[int]:
        """Parse a typed source: "3 7 12 9", "347+586", "(())", "1011".

        Raises `InputError` for other text.
        """
        return self.rule.read(text)

    def text(self, tokens: list[int]) -> str:
        """Format tokens as text, the inverse of `read`; special tokens become their labels."""
        if (whole := self.rule.source_text(tokens)) is not None:
            return whole
        typed = dict(enumerate(self.rule.typed_labels, start=0 if self.rule.is_image else 1))
        words = ""
        for before, token in zip([None, *tokens], tokens, strict=False):
            is_close = before is not None and all(1 <= one <= self.symbols for one in (before, token))
            words += "" if before is None else self.rule.separator if is_close else " "
            words += typed.get(token, self.labels[token])
        return words
