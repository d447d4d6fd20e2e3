"""The adapter of models of the Transformers library.

causal             "France is"                 the reference at each position is the next token
masked             "Paris is in [MASK]."       the reference at a mask is the unchanged model's prediction
encoder-decoder    "source >> target"          without a target the model generates one greedily
classifier         "a fine film"               the reference is the unchanged model's class
without a head     "a fine film"               no prediction: a vector per token, and a pooled one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.adapter import ADDED
from xformer.adapters.huggingface_example import N_WRITTEN, HuggingFaceInputs
from xformer.adapters.huggingface_opening import CLASSES, DESCRIBED, open_transformers, text_config
from xformer.adapters.on_demand import added_bytes, lengths, on_demand_bytes, plane_side, recorded_bytes
from xformer.adapters.opening import Inputs
from xformer.adapters.probe import running
from xformer.decoding import GREEDY, Choice, Sampling, Step
from xformer.edits import Edit
from xformer.errors import InputError, UnavailableError
from xformer.program.module_state import on_device, preserve_state
from xformer.tasks.task import Example
from xformer.trace import Trace

MAX_IMAGES = 1024
"""The largest number of images that a text is compared with; there are as many outputs as images in the batch."""
LARGE_BYTES = 64 * 1024**2
"""A recorded run above this size keeps few activations and recomputes the rest on demand."""
KEPT_BYTES = 256 * 1024**2
"""Up to this size a large run also keeps its stream and its neurons."""


@dataclass(frozen=True, eq=False)
class HuggingFaceModel(HuggingFaceInputs):
    """A read-only `PreTrainedModel` with its located parts and its tokenizer or image processor."""

    @classmethod
    def open(
        cls,
        model: nn.Module,
        tokenizer: Any = None,
        name: str = "model",
        *,
        image_processor: Any = None,
        inputs: Any = None,
    ) -> HuggingFaceModel:
        """Locate the parts of a loaded model, if needed with the caller's `inputs`.

        Raises:
            InputError: Its attention cannot be captured.
        """
        opened, verification, shape = open_transformers(model, inputs)
        return cls(opened, shape, verification, name, tokenizer, image_processor)

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The text of each output: a token, a class or a position; empty for vectors."""
        n = self.shape.vocab_size
        if self.output == "answer_span":
            return tuple(f"token {at + 1}" for at in range(self.shape.max_len))
        if self.output in ("vectors", "similarity"):
            return tuple(str(at + 1) for at in range(max(n, MAX_IMAGES if self.output == "similarity" else 0)))
        if self.output == "next_sentence":
            return ("follows", "does not follow")
        if self.output not in CLASSES:
            return self.words(n)
        named = getattr(self.opened.module.config, "id2label", None) or {}
        if n == 2 and len(named) != 2:
            return ("no", "yes")
        return tuple(str(named.get(at, f"class {at}")) for at in range(n))

    def record(self, example: Example, *, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Record a run; see `xformer.record`. A large run recomputes most activations on request; see `OnDemand`."""
        inputs, n_batch = self.inputs_of(example), len(example.input_ids)
        activations: dict[str, Tensor]
        if "*" in keep and n_batch == 1 and example.valid is None and self._is_large(example):
            most = plane_side(sum(self.shape.heads.values()))
            added = added_bytes(self.shape, *lengths(example))
            kept = keep if added <= KEPT_BYTES else (self.opened.output_name,)
            activations = self.opened.run_on_demand(inputs, edits=edits, keep=kept, most=most)
        else:
            activations = self.opened.run(inputs, n_batch=n_batch, edits=edits, keep=keep)
        tokens, target = example.input_ids[:, example.input_ids[0] != ADDED], example.target
        return Trace(
            None, tokens, target, tuple(edits), activations, example.valid, example.target_valid, added=self.shape.added
        )

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """The logits of a stream state. Raises `UnavailableError` if they are not a function of it alone."""
        if self.opened.head is None:
            if self.output.endswith("_token"):
                raise UnavailableError(f"The logits of {self.name} are not a function of its final stream state alone.")
            described = DESCRIBED[self.output]
            raise UnavailableError(f"{self.name} returns {described}, so there are no logits at each position.")
        return self.opened.head(stream)

    def steps(
        self,
        example: Example,
        n: int | None = None,
        *,
        edits: Sequence[Edit] = (),
        sampling: Sampling = GREEDY,
        generator: torch.Generator | None = None,
    ) -> Iterator[Step]:
        """Generate from the example.

        Raises:
            UnavailableError: The model does not generate text.
            InputError: The input fills the context.
        """
        if self.output not in ("next_token", "pair_next_token"):
            raise UnavailableError(f"{self.name} does not generate text: its output is {DESCRIBED[self.output]}.")
        is_encoder_decoder = self.shape.is_encoder_decoder
        read = example.target[:, :1] if is_encoder_decoder and example.target is not None else example.input_ids
        room = self.shape.max_len - read.shape[1]
        if room < 1:
            most = self.shape.max_len - 1
            raise InputError(f"{self.name} can extend at most {most} tokens, got {read.shape[1]}; remove some.")
        wanted = n if n is not None else N_WRITTEN if is_encoder_decoder else self.input.continuation_length
        end = getattr(self.tokenizer, "eos_token_id", None) if is_encoder_decoder else None
        choose = Choice(sampling, generator)
        cache: dict[str, Any] = {"past_key_values": None, "length": 0}
        for position in range(min(wanted, room)):

            def run(so_far: Tensor = read, keep: Sequence[str] = ("*",)) -> Trace:
                inputs = self._continued(example, so_far)
                return Trace(None, so_far, None, tuple(edits), self.opened.run(inputs, edits=edits, keep=keep))

            logits = run(keep=("logits",)).logits if edits else self._next_logits(example, read, cache)
            step = choose.step(logits[0, -1], position, run)
            yield step
            if step.token == end:
                return
            read = torch.cat((read, read.new_tensor([[step.token]])), dim=1)

    def _continued(self, example: Example, so_far: Tensor) -> Inputs:
        """The arguments of the model for the tokens so far [1, pos]."""
        stream, target = (example.input_ids, so_far) if self.shape.is_encoder_decoder else (so_far, None)
        return self.inputs_of(Example((), (), stream, target, so_far, so_far))

    @torch.no_grad()
    def _next_logits(self, example: Example, so_far: Tensor, cache: dict[str, Any]) -> Float[Tensor, "1 pos vocab"]:
        """The logits of an unedited run; a model that caches keys and values reads new tokens only."""
        inputs, past, module = self._continued(example, so_far), {}, self.opened.module
        adds = self.shape.added != (0, 0) or hasattr(module, "active_peft_config")  # again in each call
        if (
            getattr(text_config(module), "use_cache", None) is not None
            and not self.shape.is_encoder_decoder
            and not adds
        ):
            n_cached = 0 if cache["past_key_values"] is None else cache["length"]
            inputs |= {"input_ids": so_far[:, n_cached:], "use_cache": True}
            past = {"past_key_values": cache["past_key_values"]}  # ours, so it is extended and not copied
        with running(None), preserve_state(module):
            output = module(**on_device(inputs, module), **past)
        cache |= {"past_key_values": getattr(output, "past_key_values", None), "length": so_far.shape[1]}
        return self.opened.output_of(output).cpu()

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes, from shapes alone."""
        return (on_demand_bytes if self._is_large(example) else recorded_bytes)(self.shape, *lengths(example))

    def _is_large(self, example: Example) -> bool:
        """Whether activations are recomputed on demand instead of kept."""
        is_deferrable = self.opened.backend == "attention_function"
        return is_deferrable and recorded_bytes(self.shape, *lengths(example)) > LARGE_BYTES
