"""A uniform interface to any model that the doctor checks.

    token_model = TokenModel.of(model, [5, 9, 2])
    token_model.logits(ModelCall(tokens, valid=valid))        [batch, pos, vocab], eval mode, no gradient

The capabilities of a plain module follow from the names of its arguments: `attention_mask`, `position_ids`,
`past_key_values`, … as in Transformers, and other common names (`ARGUMENTS`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.any_module import StreamOrder
from xformer.adapters.huggingface_opening import (
    check_arguments,
    check_mask_shape,
    is_causal_class,
    is_encoder_decoder,
    text_config,
)
from xformer.adapters.opening import planned
from xformer.doctor.arguments import (
    ARGUMENTS,
    TRUE_IS_PADDING,
    cut_to,
    mask_left_out,
    pad_compared,
    past_of,
    required_of,
)
from xformer.doctor.causal_signs import declared_causal, is_half_hidden, masks_with_triangle
from xformer.doctor.copies import converted, own_randomness, with_shared_weights
from xformer.doctor.model_call import TENSORS, ModelCall, layout_of
from xformer.doctor.token_inputs import (
    arbitrary_tokens,
    as_rows,
    encoded,
    lengths_of_tables,
    n_tokens_read,
    reads_pairs,
)
from xformer.errors import InputError, UnavailableError, XformerError
from xformer.formatting import error_message
from xformer.layers.attention import Cache
from xformer.model import Transformer
from xformer.program.inputs import call_module
from xformer.program.module_state import held_by, unwrapped
from xformer.program.record import record
from xformer.tape import Tape

TRIED = 640
"""The longest context length that is tried; no check reads longer inputs of a module with tables."""
MAX_OFFSET = 4
"""Largest number of positions of a table that are for no token, as that of a class token, and one more."""
ENOUGH = 64
"""The number of tokens of which the patterns show whether a model is causal."""


POSITIONS_FIRST = "The checks need a model that reads token ids [batch, pos], and this one reads them [pos, batch]."


@dataclass(frozen=True, eq=False)
class TokenModel:
    """A model and how to call it. `module` is a copy that shares the model's weights."""

    module: nn.Module
    base: ModelCall
    """The input of the diagnosis, one row."""
    n_tokens: int
    """The size of the vocabulary."""
    pad: int = 0
    """The id of the padding token."""
    causal: bool = False
    """Whether outputs may depend only on earlier tokens."""
    is_causal_given: bool = False
    """Whether the caller says that it is causal, or that it is not."""
    tokenizer: Any = None
    text: str = ""
    """The text of the input, if it was given as text."""
    original: nn.Module | None = None
    """The model from which this one was converted, if given."""
    loss: Callable[[nn.Module, Tensor], Tensor] | None = None
    """The loss of a batch of token ids [batch, pos], if the model does not compute its own."""
    labelled: Mapping[str, Tensor] | None = None
    """The given batch with its labels: tokens, labels, and valid if it has a padding mask."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of `forward`; those with a size for each token are cut for shorter inputs."""
    by_row: frozenset[str] = frozenset()
    """The names of other arguments with a row for each input."""
    needs_labels: bool = False
    """Whether the model returns only the last position unless it is given labels."""
    tick: Callable[[], None] = lambda: None
    """A callback before each run of the model; an exception in it ends the check."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any = None,
        tokenizer: Any = None,
        *,
        causal: bool | None = None,
        original: Any = None,
        loss: Any = None,
    ) -> TokenModel:
        """Determine how to call a model.

        Args:
            model: An xformer or Transformers model, or any module that maps token ids [batch, pos] to logits.
            inputs: A text, token ids, a tensor, a dict of arguments, or a tuple of the tensors that an encoder and a decoder
                read; None uses arbitrary tokens.
            tokenizer: The tokenizer, if `inputs` is a text.
            causal: Whether the model is meant to be causal; None: detect automatically.
            original: The model from which this one was converted.
            loss: A function that returns the loss of a module on a batch of token ids.

        Raises:
            InputError: The model reads no tokens, or cannot be run on these inputs.
        """
        model = unwrapped(model)
        module = with_shared_weights(model)
        text, named = "", {}
        if isinstance(inputs, str):
            text, inputs = inputs, encoded(inputs, tokenizer)
        if isinstance(inputs, tuple) and len(inputs) == 2 and reads_pairs(model):
            inputs = {"0": inputs[0], "decoder_input_ids": as_rows(inputs[1])}
        if isinstance(inputs, Mapping):
            named = dict(inputs)
            if hasattr(model, "main_input_name"):
                check_arguments(model, inputs, type(model).__name__)
            inputs = named.pop(next((name for name in (*ARGUMENTS["tokens"], "0") if name in named), ""), None)
        n_tokens = n_tokens_read(model)
        tokens = arbitrary_tokens(model, n_tokens) if inputs is None else as_rows(inputs)
        if n_tokens == 0 and not tokens.is_floating_point():
            n_tokens = int(tokens.max()) + 1
        if tokens.is_floating_point():
            raise InputError("The checks need a model that reads token ids [batch, pos], and these are not integers.")
        for name in named.keys() & {*ARGUMENTS["valid"]}:
            if isinstance(named[name], Tensor) and named[name].dim() == 2:
                check_mask_shape(name, named[name], tokens)
        target = named.pop(next((name for name in ARGUMENTS["target"] if name in named), ""), None)
        if target is None and reads_pairs(model):
            target = arbitrary_tokens(model, n_tokens, seed=1)
        pads = (getattr(text_config(model), name, None) for name in ("pad_token_id", "pad_token"))
        pad = next((one for one in pads if isinstance(one, int) and 0 <= one < n_tokens), 0)
        base = ModelCall(tokens[:1], target=None if target is None else target[:1])
        known = {name for names in ARGUMENTS.values() for name in names}
        extra = {name: value for name, value in named.items() if name not in known}
        rows = {
            name: one for name, one in extra.items() if isinstance(one, Tensor) and one.shape[:1] == tokens.shape[:1]
        }
        extra |= {name: one[:1] for name, one in rows.items()}
        more = {"tokenizer": tokenizer, "text": text, "original": original, "loss": loss, "extra": extra}
        made = cls(module, base, n_tokens, pad, **more, by_row=frozenset(rows))
        if missing := [name for name in made.unknown_arguments if name in made.required and name not in extra]:
            words = (
                f"{type(model).__name__}.forward also needs {', '.join(missing)}, whose values the checks cannot know"
            )
            some = f"{{{made.takes.get('tokens', '0')!r}: ids, {missing[0]!r}: …}}"
            raise InputError(f"{words}; give all of its arguments, as in diagnose(model, {some}).")
        made = replace(made, labelled=made.batch_with_labels(tokens, named))
        try:
            n_outputs = made.logits(base).shape[1]
            if n_outputs == 1 < base.read.shape[1] and "labels" in made.takes:
                made = replace(made, needs_labels=True)
                made.logits(base)
        except XformerError:
            raise
        except Exception as error:  # a module may raise anything for inputs it cannot read
            what = f"{type(model).__name__} could not be run on tokens {list(base.tokens.shape)}"
            raise InputError(f"{what}: {error_message(error, 200)}") from error
        if tokens.shape[1] == 1 < len(tokens) and made.reads_positions_first:  # one text, as a column
            raise InputError(POSITIONS_FIRST)
        is_causal = made.looks_causal if causal is None else causal
        return replace(made, causal=is_causal, is_causal_given=causal is not None)

    def batch_with_labels(self, tokens: Tensor, named: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """Return the tokens, labels and mask of given arguments; None if they have no labels for every token."""
        labels, mask = (named.get(self.takes.get(use, "")) for use in ("labels", "valid"))
        if not isinstance(labels, Tensor) or labels.shape != tokens.shape:
            return None
        batch = {"tokens": tokens, "labels": labels}
        if isinstance(mask, Tensor) and mask.shape == tokens.shape:
            batch["valid"] = mask == 0 if self.takes["valid"] in TRUE_IS_PADDING else mask != 0
        return batch

    @property
    def reads_positions_first(self) -> bool:
        """Whether a module of unknown origin has the batch as the second axis of its token ids."""
        if isinstance(self.module, Transformer) or self.is_transformers:
            return False
        inputs = self.arguments(self.base)
        with suppress(Exception):  # what has no plan cannot be told
            return StreamOrder.of(planned(self.module, call_module, inputs), inputs).axis == 1
        return False

    # How to call the model.

    @cached_property
    def takes(self) -> dict[str, str]:
        """The arguments of `forward` that checks can use: a mapping from the keys of `ARGUMENTS` to their names."""
        if isinstance(self.module, Transformer):
            return {}
        names = inspect.signature(self.module.forward).parameters
        found = {use: next((name for name in known if name in names), "") for use, known in ARGUMENTS.items()}
        found |= {"attention": "output_attentions"} if self.is_transformers else {}
        return {use: name for use, name in found.items() if name}

    @cached_property
    def required(self) -> set[str]:
        """The arguments of `forward` without a default."""
        return set() if isinstance(self.module, Transformer) else required_of(self.module)

    def can(self, use: str) -> bool:
        """Return whether the model accepts a padding mask ("valid"), positions, a cache ("past"), …"""
        if isinstance(self.module, Transformer):
            if use == "past":
                return self.module.decoder is not None
            return use in ("valid", "segments") and not self.reads_images
        return use in self.takes or (use == "valid" and self.pad_in_code is not None)

    @cached_property
    def pad_in_code(self) -> int | None:
        """The token of padding that a plain module without an argument for a mask looks for in its tokens; None for none."""
        if isinstance(self.module, Transformer) or self.is_transformers or "valid" in self.takes:
            return None
        call, inputs = self.last_call(self.base)
        try:
            program = record(self.module, call, inputs)
        except Exception:  # a module may raise anything
            return None
        return pad_compared(program, "tokens", self._padding_of_tables)

    @property
    def _padding_of_tables(self) -> set[int]:
        """The tokens of padding of the module's tables."""
        tables = (one for one in self.module.modules() if isinstance(one, nn.Embedding))
        return {one.padding_idx for one in tables if one.padding_idx is not None}

    def arguments(self, run: ModelCall) -> dict[str, Any]:
        """Return the arguments of `forward` for a call; the key "0" is a positional argument of unknown name.

        Raises:
            UnavailableError: The model does not accept an argument that the call needs.
        """
        takes = self.takes
        tokens, extra = run.tokens, {name: self._fitted(name, value, run) for name, value in self.extra.items()}
        given = {use: getattr(run, use) for use in ("valid", "positions", "segments", "target")}
        given["attention"] = run.with_attention or None
        if run.valid is not None and "valid" not in takes and self.pad_in_code is not None:
            tokens, given["valid"] = torch.where(run.valid, tokens, self.pad_in_code), None
        needed = {use for use, name in takes.items() if name in self.required}
        if "valid" in needed and run.valid is None:
            given["valid"] = torch.ones_like(tokens, dtype=torch.bool)
        if "positions" in needed and run.positions is None:
            given["positions"] = torch.arange(run.read.shape[1], device=tokens.device).expand_as(run.read)
        named: dict[str, Any] = {takes.get("tokens", "0"): tokens, **extra}
        named |= {takes[use]: None for use in needed & {"past", "labels", "segments"}}
        for use, value in given.items():
            if value is None:
                continue
            if use not in takes:
                raise UnavailableError(f"forward has no argument {ARGUMENTS[use][0]}.")
            name = takes[use]
            if use == "valid":
                value = ~value if name in TRUE_IS_PADDING else value if name == "valid" else value.long()
            named[name] = value
        if "keep" in takes:
            named.setdefault(takes["keep"], False)
        if self.needs_labels:
            named[takes["labels"]] = run.read
        return named

    def _fitted(self, name: str, value: Any, run: ModelCall) -> Any:
        """Another argument for as many tokens and rows as a call has.

        Raises:
            UnavailableError: It was given for fewer tokens, or its axes cannot be distinguished.
        """
        if not isinstance(value, Tensor):
            return value
        lengths = self._lengths_of(run)
        if any(given != n for given, n in lengths.items()):
            value = cut_to(name, value, lengths)
        is_of_rows = name in self.by_row and len(value) == 1 < len(run.tokens)
        return value.expand(len(run.tokens), *value.shape[1:]) if is_of_rows else value

    def _lengths_of(self, run: ModelCall) -> dict[int, int]:
        """The lengths of the input of the diagnosis, and those of a call in their place."""
        source, target = (self.base.tokens, run.tokens), (self.base.read, run.read)
        lengths = {source[0].shape[1]: source[1].shape[1]}
        n = lengths.setdefault(target[0].shape[1], target[1].shape[1])
        if n != target[1].shape[1]:
            raise UnavailableError(
                "Source and target have as many tokens, so the axes of a given mask cannot be distinguished; try other lengths."
            )
        return lengths

    @property
    def _sized(self) -> list[str]:
        """The names of other arguments with a size for each token."""
        lengths = {self.base.tokens.shape[1], self.base.read.shape[1]} - {1}
        return [name for name, one in self.extra.items() if isinstance(one, Tensor) and lengths & {*one.shape[-2:]}]

    def call(self, named: Mapping[str, Any], seed: int = 0) -> Any:
        """Call the module with named arguments, in eval mode and with a separate random state."""
        named = {name: self._here(value) if isinstance(value, Tensor) else value for name, value in named.items()}
        args = [value for name, value in named.items() if name.isdigit()]
        with own_randomness(self.device, seed):
            return self.module(*args, **{name: value for name, value in named.items() if not name.isdigit()})

    @torch.no_grad()
    def logits(self, run: ModelCall) -> Float[Tensor, "batch out vocab"]:
        """Return the outputs at every position of `run.read`, on the CPU."""
        if not run.n_cached:
            return self.last_call(run)[0]().cpu()
        self.tick()
        before, rest = self._halves(run.each(self._here))
        return torch.cat([before, self._rest(run, rest)], dim=1).cpu()

    def last_call(self, run: ModelCall) -> tuple[Callable[[], Float[Tensor, "batch out vocab"]], Any]:
        """Return the last call of a run, and its inputs. With a cache it reads the rest; the cached tokens are read here."""
        self.tick()
        run = run.each(self._here)
        if run.n_cached:
            rest = self._halves(run)[1]
            return (lambda: self._rest(run, rest)), [one for one in held_by(rest, set()) if isinstance(one, Tensor)]
        inputs = {name: getattr(run, name) for name in TENSORS}
        if isinstance(self.module, Transformer):
            return (lambda: self._own(run)), inputs
        named = self.arguments(run)
        inputs |= {name: named[name] for name in self.extra} | {"tokens": named[self.takes.get("tokens", "0")]}
        return (lambda: self.output_of(self.call(named, run.seed), run)), inputs

    def _own(self, run: ModelCall) -> Tensor:
        tape = Tape((), ()) if run.recorded else None
        with own_randomness(self.device, run.seed):
            return self.module(run.tokens, run.target, valid=run.valid, layout=layout_of(run), tape=tape)

    def _rest(self, run: ModelCall, rest: Any) -> Tensor:
        if isinstance(self.module, Transformer):
            return self.module.extend(*rest)
        return self.output_of(self.call(rest, run.seed), run.with_read(run.read[:, run.n_cached :]))

    def _halves(self, run: ModelCall) -> tuple[Tensor, Any]:
        """Return the outputs of the cached tokens, and the arguments of the last call."""
        if self._sized:
            what = f"The argument {self._sized[0]} has a size for each token, so it is not known what it should be with a cache"
            raise UnavailableError(f"{what}.")
        n, step = run.n_cached, run.cached_by or run.n_cached
        parts = [slice(start, min(start + step, n)) for start in range(0, n, step)]
        if isinstance(self.module, Transformer):
            memory = None if run.target is None else self.module.encode(run.tokens)
            cache = Cache.empty(self.module.config.n_layers)
            before = [self.module.extend(run.read[:, part], cache, memory) for part in parts]
            return torch.cat(before, dim=1), (run.read[:, n:], cache, memory)
        whole = replace(run, n_cached=0)
        takes_positions = self.can("positions") and run.target is None
        index = torch.arange(run.read.shape[1], device=self.device)[None] if takes_positions else None
        keep = {self.takes["keep"]: True} if "keep" in self.takes else {}
        outputs, past, arguments = list[Tensor](), dict[str, Any](), dict[str, Any]()
        for part in (*parts, slice(n, None)):
            call = replace(whole.with_read(run.read[:, part]), positions=None if index is None else index[:, part])
            arguments = self.arguments(call) | keep | past
            if part.start == n:
                break
            returned = self.call(arguments)
            outputs.append(self.output_of(returned, call))
            past = {self.takes["past"]: past_of(returned)}
            if None in past.values():
                raise UnavailableError("The model did not return the keys and values that were requested.")
        return torch.cat(outputs, dim=1), arguments

    def output_of(self, returned: Any, run: ModelCall) -> Float[Tensor, "batch out vocab"]:
        """Extract the logits, or the last hidden state of a model without a head, from the result of a call."""
        from xformer.adapters.any_module import output_at, output_path  # imported late: xformer models do not need it

        output = getattr(returned, "start_logits", None)  # of an answer's start and end, one is enough for a check
        if output is None:
            output = output_at(returned, output_path(returned, self.arguments(run), self.module))
        return output if output.dim() > 2 else output[:, None]

    @cached_property
    def base_logits(self) -> Float[Tensor, "batch out vocab"]:
        """The outputs for `base`, with which many checks compare others."""
        return self.logits(self.base)

    @cached_property
    def has_output_by_position(self) -> bool:
        """Whether there is an output for every token, not one for the whole input."""
        return self.base_logits.shape[1] == self.base.read.shape[1]

    def changed(self, module: nn.Module) -> TokenModel:
        """Return the same interface to another module."""
        return replace(self, module=module)

    def copied(self, dtype: torch.dtype | None = None) -> TokenModel:
        """Return the same interface to a deep copy of the module, whose weights can be changed."""
        return self.changed(converted(self.module, dtype or self.dtype))

    def shared(self) -> TokenModel:
        """Return the same interface to a copy that shares the weights, whose configuration and hooks can be changed."""
        return self.changed(with_shared_weights(self.module))

    # Properties of the model.

    @property
    def config(self) -> Any:
        """The configuration of the model's text part, or None."""
        return text_config(self.module)

    @property
    def is_transformers(self) -> bool:
        """Whether this is a model of the Transformers library."""
        return hasattr(self.module, "main_input_name") and hasattr(self.module, "config")

    @property
    def reads_images(self) -> bool:
        """Whether this is an xformer model that reads the pixels of an image."""
        return isinstance(self.module, Transformer) and bool(self.module.config.image)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next((one.device for one in self.module.parameters()), torch.device("cpu"))

    def _here(self, value: Tensor) -> Tensor:
        return value.to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the weights."""
        return next((one.dtype for one in self.module.parameters() if one.is_floating_point()), torch.float32)

    @property
    def eps(self) -> float:
        """The machine epsilon of the weights, at least float32's: Transformers computes softmax and rotations in float32."""
        return max(torch.finfo(self.dtype).eps, torch.finfo(torch.float32).eps)

    @cached_property
    def max_len(self) -> int:
        """The longest input that is known to be valid: the declared context length, but no more than any table or mask holds.

        Without a declaration or a table, it is the length of the given input. It must not be exceeded, because on a GPU an
        index beyond a table aborts the process.
        """
        names = ("max_position_embeddings", "n_positions", "max_len", "block_size", "max_seq_len", "context_length")
        given = (getattr(owner, name, None) for owner in (self.config, self.module) for name in names)
        declared = [value for value in given if isinstance(value, int) and value > 0]
        if self.is_transformers or isinstance(self.module, Transformer):
            return declared[0] if declared else self.base.read.shape[1]
        n, tables = (
            max(self.base.read.shape[1], self.base.tokens.shape[1]),
            lengths_of_tables(self.module, self.n_tokens),
        )
        longest = n if self._sized else min((size for size in (*declared[:1], *tables) if size >= n), default=n)
        return self._tried(longest, n)

    def _tried(self, longest: int, n: int) -> int:
        """The number of tokens that the model reads, if its tables also hold a class token or start at a later position."""
        if not n < longest <= TRIED:
            return longest
        model = self
        if self.device.type != "cpu":
            model = self.copied()
            model.module.cpu()
        for length in range(longest, longest - MAX_OFFSET, -1):
            tokens = self.other_tokens(
                self.base.read.cpu().repeat(1, -(-length // self.base.read.shape[1]))[:, :length]
            )
            with suppress(Exception):  # a module may raise anything beyond its tables
                model.logits(self.base.with_read(tokens))
                return max(n, length)
        return n

    @property
    def unknown_arguments(self) -> list[str]:
        """The arguments of `forward` that are not recognised."""
        if isinstance(self.module, Transformer):
            return []
        names = [
            name
            for name, one in inspect.signature(self.module.forward).parameters.items()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        known = set(self.takes.values())
        return [name for name in (names if "tokens" in self.takes else names[1:]) if name not in known]

    def other_tokens(self, tokens: Tensor, seed: int = 0) -> Tensor:
        """Replace each token by another one that is not padding."""
        draw = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, max(2, self.n_tokens - 1), tokens.shape, generator=draw).to(tokens.device)
        other = (tokens + shift) % self.n_tokens
        clash = (other == self.pad) | (other == tokens)
        return torch.where(clash, (other + 1) % self.n_tokens, other)

    def shortened(self, n: int) -> ModelCall:
        """Return the input of the diagnosis with its last `n` tokens (some models need the end token), or the whole image."""
        run = self.base
        if self.reads_images:
            return run
        return ModelCall(run.tokens[:, -n:], target=None if run.target is None else run.target[:, -n:])

    @property
    def looks_causal(self) -> bool:
        """Whether the model is meant to be causal: it is declared so, it has a causal mask, or later keys get no attention."""
        if isinstance(self.module, Transformer):
            return bool(self.module.config.causal) or self.module.config.architecture == "encoder-decoder"
        if self.is_transformers:
            flags = [getattr(self.config, name, True) for name in ("is_causal", "causal")]
            is_bidirectional = False in flags or getattr(self.config, "attn_type", "") == "bi"  # XLM, XLNet
            return (is_causal_class(self.module) or is_encoder_decoder(self.module)) and not is_bidirectional
        declared = declared_causal(self.module)
        if declared is False or (declared and not self.mask_left_out):
            return declared
        if masks_with_triangle(self.module, *self.last_call(self.shortened(16))):
            return True
        from xformer.adapters.any_module import AnyModule  # imported late: xformer models do not need it

        named = self.arguments(self.shortened(ENOUGH))
        try:
            run = AnyModule.open(self.module, named).opened.run(named)
        except Exception:  # its attention cannot be captured; a module may raise anything
            return False
        return is_half_hidden(value for name, value in run.items() if name.endswith("attn.pattern"))

    @property
    def mask_left_out(self) -> str:
        """The argument of a plain module for a mask of the attention that the call does not pass; "" if there is none."""
        if isinstance(self.module, Transformer) or self.is_transformers:
            return ""
        return mask_left_out(self.module, self.extra)
