"""A language model that somebody else made, with its tokenizer: one more subject, read like our own.

causal             "France is"                 every position is held against the token that really comes next
masked             "Paris is in [MASK]."       a mask has no right answer: there stands what the unchanged model says
encoder-decoder    "source >> target"          without a target it writes one itself, the likeliest token each time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.decoding import GREEDY, Sampling, Step
from xformer.edits import AnyEdit
from xformer.errors import InputError, UnavailableError
from xformer.model_shape import ModelShape
from xformer.room import megabytes
from xformer.subjects.foreign.captured_call import heads_read
from xformer.subjects.foreign.continuing import continuing
from xformer.subjects.foreign.on_demand import OnDemand
from xformer.subjects.foreign.opened import Inputs, OpenedModel
from xformer.subjects.foreign.opening import Verification
from xformer.subjects.foreign.purposes import purposes
from xformer.subjects.foreign.run_bytes import added_bytes, lengths, on_demand_bytes, recorded_bytes
from xformer.subjects.foreign.shape import shape_of
from xformer.subjects.foreign.small_pattern import plane_side, reduced
from xformer.subjects.foreign.text_framing import N_WRITTEN, framed_text
from xformer.subjects.foreign.text_input import TextPair, TextWithGaps, TokenizedText
from xformer.subjects.foreign.token_text import vocabulary
from xformer.subjects.foreign.transformers_model import example_inputs, open_transformers
from xformer.subjects.foreign.weights import ForeignWeights
from xformer.tasks.task import Example
from xformer.trace import Trace

CONTINUED = 32
"""How many tokens it goes on with where nobody says how many."""
LARGE_BYTES = 64 * 1024**2
"""What a recorded run takes at most of which everything is kept."""
KEPT_BYTES = 256 * 1024**2
"""What stream and neurons of a larger one may take to be kept with it."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A `PreTrainedModel` that is open, and the tokenizer that cuts its texts. Only read."""

    opened: OpenedModel
    tokenizer: Any
    shape: ModelShape
    verification: Verification
    name: str = "model"

    @classmethod
    def open(cls, model: Any, tokenizer: Any, name: str = "model") -> LanguageModel:
        """Take a loaded model over. Raises `InputError` where it cannot be read by any way."""
        if tokenizer is None:
            raise InputError(
                "A language model is read with its tokenizer; give tokenizer=AutoTokenizer.from_pretrained(…)."
            )
        opened, verification = open_transformers(model)
        example = opened.run(example_inputs(model, 2))
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        is_causal = opened.layout.attention[-1].stack == "decoder" and not model.config.is_encoder_decoder
        shape = shape_of(opened, example, is_causal=is_causal, max_len=longest)
        return cls(opened, tokenizer, shape, verification, name)

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each token; a number for what the tokenizer has no word for."""
        return vocabulary(self.tokenizer, self.shape.vocab_size)

    @property
    def weights(self) -> ForeignWeights:
        """Those that were found."""
        return ForeignWeights(self.opened, self.name)

    @property
    def is_masked(self) -> bool:
        """Whether it fills gaps: it sees both sides, and its tokenizer has a token for what is missing."""
        return self.shape.architecture == "encoder" and self.tokenizer.mask_token_id is not None

    def frame(self, typed: str | Sequence[int]) -> Example:
        """A text, or tokens, laid out for the model with what stands at each output. Raises `InputError` for none."""
        return framed_text(self, typed)

    @property
    def input(self) -> TokenizedText:
        """What it reads, as a person types it."""
        return self._input

    @cached_property
    def _input(self) -> TokenizedText:
        kind, default = TokenizedText, "When Mary and John went to the store, John gave a drink to"
        if self.shape.is_pair:
            kind, default = TextPair, "The house is small."
        elif self.is_masked:
            kind, default = TextWithGaps, f"Paris is the {self.tokenizer.mask_token} of France."
        known = purposes(self.name)
        default = known[0][1] if known else default
        return kind(self.tokenizer, self.shape.n_inputs, self.shape.max_len, default, known)

    def has_right_answer(self, example: Example) -> bool:
        """A text may go on in many ways."""
        return False

    def names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as they are written."""
        return tuple(self.labels[token] for token in tokens.tolist())

    def record(self, example: Example, *, edits: Sequence[AnyEdit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run it once; see `xformer.record`. Of a large run everything can be asked for, and little is kept: see `OnDemand`."""
        inputs, n_batch = self._inputs(example), len(example.stream)
        activations: dict[str, Tensor]
        if "*" in keep and n_batch == 1 and self._is_large(example):
            reduce = partial(reduced, most=plane_side(sum(self.shape.heads.values())))
            kept = keep if added_bytes(self.shape, *lengths(example)) <= KEPT_BYTES else ("logits",)
            activations = self.opened.run_on_demand(inputs, edits=edits, keep=kept, reduce=reduce)
        else:
            activations = self.opened.run(inputs, n_batch=n_batch, edits=edits, keep=keep)
        return Trace(None, example.stream, example.target, tuple(edits), activations)

    def logits(self, example: Example) -> Float[Tensor, "1 pos vocab"]:
        """What it predicts, nothing recorded."""
        return self.opened.plain(self._inputs(example))

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """What the model makes of the last state of its stream. Raises `InputError` where that is not all it needs."""
        if self.opened.head is None:
            raise InputError(f"The logits of {self.name} do not follow from the last state of its stream alone.")
        return self.opened.head(stream)

    def heads_read(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """The layer is called by itself; see `captured_call`."""
        calls = trace.activations.calls if isinstance(trace.activations, OnDemand) else None
        return heads_read(self.opened, self._inputs(example), path, x, side, calls)

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
        """What it goes on with; a model that fills gaps says nothing by itself.

        Raises `UnavailableError` for one, `InputError` where there is no place left.
        """
        if not self.shape.is_causal and not self.shape.is_pair:
            raise UnavailableError(f"{self.name} sees both sides of a gap and fills it; it does not go on with a text.")
        is_pair = self.shape.is_pair
        read = example.target[:, :1] if is_pair and example.target is not None else example.stream
        room = self.shape.max_len - read.shape[1]
        wanted = (N_WRITTEN if is_pair else CONTINUED) if n is None else n
        if room < 1:
            raise InputError(f"{self.name} reads at most {self.shape.max_len} tokens; take some away.")

        def inputs(so_far: Tensor) -> Inputs:
            return self._inputs(
                Example((), (), example.stream if is_pair else so_far, so_far if is_pair else None, so_far, so_far)
            )

        end = self.tokenizer.eos_token_id if is_pair else None
        return continuing(self.opened, read, inputs, min(wanted, room), end, sampling, edits, generator)

    def check_fits(self, example: Example, allowed_bytes: int) -> None:
        """Raise `InputError` where recording a run of it would take more memory than that."""
        n, n_target = lengths(example)
        needed = (on_demand_bytes if self._is_large(example) else recorded_bytes)(self.shape, n, n_target)
        if needed > allowed_bytes:
            raise InputError(
                f"Looking into {n:,} tokens of {self.name} takes {megabytes(needed)} of memory, and "
                f"{megabytes(allowed_bytes)} are allowed here; type a shorter text."
            )

    def _is_large(self, example: Example) -> bool:
        """Whether keeping all of a run would take so much that it is worked out again instead."""
        return self.opened.rung == 1 and recorded_bytes(self.shape, *lengths(example)) > LARGE_BYTES

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Nobody knows what is needed."""
        return {}

    def _inputs(self, example: Example) -> Inputs:
        inputs: Inputs = {"input_ids": example.stream}
        if example.target is not None:
            inputs["decoder_input_ids"] = example.target
        if getattr(self.opened.module.config, "use_cache", None) is not None:
            inputs["use_cache"] = False
        return inputs
