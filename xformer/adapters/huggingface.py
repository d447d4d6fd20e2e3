"""The adapter of models of the Transformers library.

causal             "France is"                 the reference at each position is the token that follows
masked             "Paris is in [MASK]."       the reference at a mask is the unchanged model's prediction
encoder-decoder    "source >> target"          without a target the model generates one greedily
classifier         "a fine film"               the reference is the unchanged model's class
without a head     "a fine film"               no prediction: a vector per token, and a pooled one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.adapters.adapter import Input
from xformer.adapters.attachment import remembered
from xformer.adapters.huggingface_example import N_WRITTEN, example_of
from xformer.adapters.huggingface_opening import (
    CLASSES,
    OutputKind,
    example_inputs,
    n_tokens_of,
    open_transformers,
    text_config,
)
from xformer.adapters.inputs import (
    ArgumentsOnly,
    PatchedImage,
    PlainText,
    TextPair,
    TextWithGaps,
    TokenizedText,
    TwoTexts,
    purposes,
    vocabulary,
)
from xformer.adapters.on_demand import (
    OnDemand,
    added_bytes,
    lengths,
    on_demand_bytes,
    plane_side,
    recorded_bytes,
    reduced,
)
from xformer.adapters.opening import ExternalWeights, Inputs, OpenedModel, Verification, heads_read, shape_of
from xformer.adapters.own_models import NumbersInput
from xformer.decoding import GREEDY, Sampling, Step, choice_of
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model_shape import ModelShape
from xformer.tasks.task import Example
from xformer.trace import Trace

CONTINUED = 32
"""The default number of generated tokens."""
LARGE_BYTES = 64 * 1024**2
"""A recorded run above this size keeps little and recomputes the rest on demand."""
KEPT_BYTES = 256 * 1024**2
"""Up to this size a large run also keeps its stream and its neurons."""
_NO_LOGITS = {
    "vectors": "has no output head: it gives a vector for each position and no logits",
    "sequence_class": "reads its classes off one pooled vector, so there are no logits at each position",
    "image_class": "reads its classes off one pooled vector, so there are no logits at each position",
    "audio_class": "reads its classes off one pooled vector, so there are no logits at each position",
    "next_sentence": "reads its classes off one pooled vector, so there are no logits at each position",
    "answer_span": "scores each token as start and end of an answer, so there are no logits over words",
    "similarity": "compares a text with an image, so there are no logits over words",
}


@dataclass(frozen=True, eq=False)
class HuggingFaceModel:
    """A `PreTrainedModel` whose parts are located, with its tokenizer or image processor. Read-only."""

    opened: OpenedModel
    tokenizer: Any
    """None: the model reads token ids and named arguments only."""
    shape: ModelShape
    verification: Verification
    name: str = "model"
    image_processor: Any = None
    """Converts an image to pixel values, or None."""
    pooling: Literal["mean", "last", "first"] | None = None
    """How token vectors are pooled, if the folder says so (the `1_Pooling` of sentence-transformers)."""

    @classmethod
    def open(
        cls, model: nn.Module, tokenizer: Any = None, name: str = "model", *, image_processor: Any = None
    ) -> HuggingFaceModel:
        """Locate the parts of a loaded model. Raises `InputError` if its attention cannot be captured."""
        opened, verification = open_transformers(model)
        shape = remembered(model, "shape", lambda: _shape(opened))
        return cls(opened, tokenizer, shape, verification, name, image_processor)

    @property
    def output(self) -> OutputKind:
        """The kind of output: "next_token", "sequence_class", "vectors", …"""
        return self.opened.output  # type: ignore[return-value]

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each output: a token, a class or a position; empty for vectors."""
        return self._labels

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        if self.output in CLASSES:
            return self._classes
        if self.output == "answer_span":
            return tuple(f"token {at + 1}" for at in range(self.shape.max_len))
        if self.output in ("vectors", "similarity"):
            return tuple(str(at + 1) for at in range(self.shape.vocab_size))
        return self._words(self.shape.vocab_size)

    @property
    def _classes(self) -> tuple[str, ...]:
        if self.output == "next_sentence":
            return ("follows", "does not follow")
        config: Any = self.opened.module.config
        named = getattr(config, "id2label", None) or {}
        if self.shape.vocab_size == 2 and len(named) != 2:
            return ("no", "yes")
        return tuple(str(named.get(at, f"class {at}")) for at in range(self.shape.vocab_size))

    def _words(self, n: int) -> tuple[str, ...]:
        if self.tokenizer is None:
            return tuple(str(number) for number in range(n))
        return vocabulary(self.tokenizer, n)

    @property
    def weights(self) -> ExternalWeights:
        """The located weights."""
        return ExternalWeights(self.opened, self.name)

    @property
    def is_masked(self) -> bool:
        """Whether it is a masked language model whose tokenizer has a mask token."""
        return self.output == "masked_token" and getattr(self.tokenizer, "mask_token_id", None) is not None

    @property
    def reads_tokens(self) -> bool:
        """Whether it reads token ids, not images or sounds."""
        return str(getattr(self.opened.module, "main_input_name", "input_ids")) == "input_ids"

    def frame(self, typed: Any) -> Example:
        """Lay an input out for the model: text, token ids, an image, a batch of them, or named arguments.

        Raises `InputError` if the model cannot read it.
        """
        return example_of(self, typed)

    @property
    def input(self) -> Input:
        """The kind of input, as it is typed."""
        return self._input

    @cached_property
    def _input(self) -> Input:
        if not self.reads_tokens:
            main = str(self.opened.module.main_input_name)
            if main != "pixel_values" or self.shape.is_pair:
                return ArgumentsOnly(self.name, main)
            return PatchedImage(self.shape, self.image_processor, self.opened.module)
        if self.tokenizer is None:
            return NumbersInput()
        kind: Any
        kind, default = TokenizedText, "When Mary and John went to the store, John gave a drink to"
        if self.shape.is_pair:
            kind, default = TextPair, "The house is small."
        elif self.is_masked:
            kind, default = TextWithGaps, f"Paris is the {self.tokenizer.mask_token} of France."
        elif self.output == "answer_span":
            kind, default = TwoTexts, "Where did the cat sit? >> The cat sat on the mat."
        elif self.output == "next_sentence":
            kind, default = TwoTexts, "The cat sat on the mat. >> Then it fell asleep."
        elif self.output != "next_token":
            kind, default = PlainText, "The film was long, but I enjoyed every minute of it."
        known = purposes(self.name)
        default = known[0][1] if known else default
        return kind(self.tokenizer, self.shape.n_inputs, self.shape.max_len, default, known)

    def has_right_answer(self, example: Example) -> bool:
        """False: references are continuations or predictions."""
        return False

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as text, or the patches of an image."""
        if not self.reads_tokens and isinstance(self.input, PatchedImage):
            return self.input.names(len(tokens))
        words = self._words(self.shape.n_inputs)
        return tuple(words[token] if token < len(words) else f"#{token}" for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Record a run; see `xformer.record`. A large run keeps little and recomputes the rest; see `OnDemand`."""
        inputs, n_batch = self.inputs_of(example), len(example.stream)
        activations: dict[str, Tensor]
        if "*" in keep and n_batch == 1 and example.valid is None and self._is_large(example):
            reduce = partial(reduced, most=plane_side(sum(self.shape.heads.values())))
            added = added_bytes(self.shape, *lengths(example))
            kept = keep if added <= KEPT_BYTES else (self.opened.output_name,)
            activations = self.opened.run_on_demand(inputs, edits=edits, keep=kept, reduce=reduce)
        else:
            activations = self.opened.run(inputs, n_batch=n_batch, edits=edits, keep=keep)
        return Trace(
            None, example.stream, example.target, tuple(edits), activations, example.valid, example.target_valid
        )

    def outputs(self, example: Example) -> Float[Tensor, "batch out vocab"]:
        """The output of an unrecorded run."""
        return self.opened.plain(self.inputs_of(example))

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The logits of a stream state. Raises `UnavailableError` if they do not follow from it alone."""
        if self.opened.head is None:
            reason = _NO_LOGITS.get(self.output, "does more to the last state of its stream than can be followed")
            raise UnavailableError(f"{self.name} {reason}.")
        return self.opened.head(stream)

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """Queries or keys for other streams; see `opening.heads_read`."""
        calls = trace.activations.calls if isinstance(trace.activations, OnDemand) else None
        return heads_read(self.opened, self.inputs_of(example), path, x, side, calls)

    def steps(
        self,
        example: Example,
        n: int | None = None,
        *,
        edits: Sequence[AnyEdit] = (),
        sampling: Sampling = GREEDY,
        generator: torch.Generator | None = None,
        **others: Any,
    ) -> Iterator[Step]:
        """Generate from the example.

        Raises:
            UnavailableError: The model does not generate text.
            InputError: The input fills the context.
        """
        if self.output not in ("next_token", "pair_next_token"):
            raise UnavailableError(f"{self.name} does not go on with a text: its output is {self.described_output}.")
        is_pair = self.shape.is_pair
        read = example.target[:, :1] if is_pair and example.target is not None else example.stream
        room = self.shape.max_len - read.shape[1]
        wanted = (N_WRITTEN if is_pair else CONTINUED) if n is None else n
        if room < 1:
            raise InputError(f"{self.name} reads at most {self.shape.max_len} tokens; take some away.")

        def inputs(so_far: Tensor) -> Inputs:
            return self.inputs_of(
                Example((), (), example.stream if is_pair else so_far, so_far if is_pair else None, so_far, so_far)
            )

        end = getattr(self.tokenizer, "eos_token_id", None) if is_pair else None
        return continuing(self.opened, read, inputs, min(wanted, room), end, sampling, edits, generator)

    @property
    def described_output(self) -> str:
        """The output in a few words."""
        return {
            "next_token": "the next token",
            "masked_token": "the token at a mask",
            "pair_next_token": "the next token of the target",
            "sequence_class": "a class of the text",
            "token_class": "a class for each token",
            "answer_span": "the start and the end of an answer",
            "next_sentence": "whether the second sentence follows the first",
            "image_class": "a class of the image",
            "audio_class": "a class of the sound",
            "ctc": "a character for each moment of the sound",
            "similarity": "the similarity of text and image",
            "vectors": "a vector for each position",
        }[self.output]

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes, from shapes alone."""
        return (on_demand_bytes if self._is_large(example) else recorded_bytes)(self.shape, *lengths(example))

    def _is_large(self, example: Example) -> bool:
        """Whether activations are recomputed on demand instead of kept."""
        return (
            self.opened.backend == "attention_function" and recorded_bytes(self.shape, *lengths(example)) > LARGE_BYTES
        )

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Empty: there is no task."""
        return {}

    def inputs_of(self, example: Example) -> Inputs:
        """The arguments of the model's forward pass."""
        inputs: Inputs = {} if example.arguments is None else dict(example.arguments)
        if self.reads_tokens and "inputs_embeds" not in inputs:
            inputs["input_ids"] = example.stream
        if example.valid is not None:
            inputs["attention_mask"] = example.valid.long()
        if example.target is not None:
            inputs["decoder_input_ids"] = example.target
            if example.target_valid is not None:
                inputs["decoder_attention_mask"] = example.target_valid.long()
        if getattr(text_config(self.opened.module), "use_cache", None) is not None:
            inputs.setdefault("use_cache", False)
        return inputs


def _shape(opened: OpenedModel) -> ModelShape:
    """Sizes and layers, measured in one run."""
    model: Any = opened.module
    example = example_inputs(model, 2)
    run = opened.run(example)
    is_causal = opened.layout.attention[-1].stack == "decoder" and not model.config.is_encoder_decoder
    config = text_config(model)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    for tap in opened.layout.taps:
        if tap.name.endswith("pos_embed") and longest:
            table = model.get_submodule(tap.module)
            if getattr(table, "padding_idx", None) is not None:  # its first rows are no places (Liu et al. 2019)
                longest = table.num_embeddings - table.padding_idx - 1
    if str(getattr(model, "main_input_name", "input_ids")) != "input_ids":
        longest = run[f"{opened.layout.attention[0].path}.pattern"].shape[-1]
    return shape_of(opened, run, is_causal=is_causal, max_len=longest, n_inputs=n_tokens_of(model))


Reads = Callable[[Tensor], Tensor]
"""From the tokens so far [1, pos] to the logits of the next [vocab]."""


def continuing(
    opened: OpenedModel,
    read: Tensor,
    inputs: Callable[[Tensor], Inputs],
    n: int,
    end: int | None,
    sampling: Sampling,
    edits: Sequence[AnyEdit],
    generator: torch.Generator | None,
) -> Iterator[Step]:
    """Generate at most `n` tokens, or until the token `end`.

    Without edits the model caches keys and values. Under edits each step is a whole run, as an edit may change any earlier
    position.
    """
    choose, following = (
        choice_of(sampling, generator),
        _whole(opened, inputs, edits) if edits else _cached(opened, inputs),
    )
    for position in range(n):

        def run(so_far: Tensor = read) -> Trace:
            return Trace(None, so_far, None, tuple(edits), opened.run(inputs(so_far), edits=edits))

        step = choose.step(following(read), position, run)
        yield step
        if step.token == end:
            return
        read = torch.cat((read, read.new_tensor([[step.token]])), dim=1)


def _whole(opened: OpenedModel, inputs: Callable[[Tensor], Inputs], edits: Sequence[AnyEdit]) -> Reads:
    return lambda read: opened.run(inputs(read), edits=edits, keep=("logits",))["logits"][0, -1]


def _cached(opened: OpenedModel, inputs: Callable[[Tensor], Inputs]) -> Reads:
    """Reads only the new token, if the model keeps a cache."""
    held: dict[str, Any] = {"cache": None, "length": 0}

    @torch.no_grad()
    def reads(read: Tensor) -> Tensor:
        asked = inputs(read)
        if "use_cache" not in asked or "decoder_input_ids" in asked:
            return opened.plain(asked)[0, -1]
        asked = {**asked, "input_ids": read[:, held["length"] :], "use_cache": True, "past_key_values": held["cache"]}
        output = opened.returned(asked)
        held["cache"], held["length"] = getattr(output, "past_key_values", None), read.shape[1]
        if held["cache"] is None:
            held["length"] = 0
        return opened.output_of(output)[0, -1]

    return reads
