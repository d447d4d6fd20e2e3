"""A model under examination: any kind of model, called in one way.

    subject = Subject.of(model, [5, 9, 2])
    subject.logits(Run(tokens, valid=valid))        [batch, pos, vocab], eval mode, no gradient
    subject.record(Run(tokens))                     its activations by name

What a plain module can be asked depends on the names of its arguments: `attention_mask`, `position_ids`, `past_key_values`, …
as in Transformers, and a few others that are in use (`ARGUMENTS`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from xformer.adapters.attachment import unwrapped
from xformer.errors import InputError, UnavailableError, XformerError
from xformer.layers.attention import Cache
from xformer.model import Transformer
from xformer.tape import Tape

ARGUMENTS = {
    "tokens": ("input_ids", "idx", "ids", "tokens", "x", "input"),
    "valid": ("attention_mask", "valid", "padding_mask", "key_padding_mask", "src_key_padding_mask"),
    "positions": ("position_ids", "positions", "input_pos", "pos"),
    "attention": ("output_attentions", "return_attention", "return_attentions", "return_attn", "need_weights"),
    "past": ("past_key_values", "past", "cache", "kv_cache"),
    "keep": ("use_cache",),
    "labels": ("labels", "targets", "target"),
    "segments": ("segment_ids", "document_ids", "sequence_ids", "seq_ids"),
    "target": ("decoder_input_ids",),
}
"""What a check can ask for, and the names that such an argument goes by; the first one that `forward` takes is used."""
TRUE_IS_PADDING = ("padding_mask", "key_padding_mask", "src_key_padding_mask")
"""Masks that are true where there is padding (torch.nn.Transformer); the others are 1 where there is a token."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a model is called with."""

    tokens: Int[Tensor, "batch pos"]
    valid: Bool[Tensor, "batch pos"] | None = None
    """False where a cell is padding; None: nowhere, and no mask is given."""
    positions: Int[Tensor, "batch pos"] | None = None
    """The index of each token, where that is not its place in the row."""
    segments: Int[Tensor, "batch pos"] | None = None
    """The document that each token belongs to, where a row holds several."""
    target: Int[Tensor, "batch target"] | None = None
    with_attention: bool = False
    """Whether the attention weights are asked for, too."""
    seed: int = 0
    """For models that draw random numbers."""
    recorded: bool = False
    """Whether a model of xformer takes the path on which every step is recorded, and not the fast one."""
    n_cached: int = 0
    """So many tokens are read first and kept as keys and values; the rest is read from there in one go."""

    @property
    def read(self) -> Int[Tensor, "batch out"]:
        """The tokens whose positions the logits belong to."""
        return self.tokens if self.target is None else self.target

    def with_read(self, tokens: Int[Tensor, "batch out"]) -> Run:
        """The same call with other tokens at the positions of the logits."""
        return replace(self, tokens=tokens) if self.target is None else replace(self, target=tokens)

    def each(self, change: Callable[[Tensor], Tensor]) -> Run:
        """The same call with each of its tensors changed."""
        values = {name: getattr(self, name) for name in TENSORS}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})


TENSORS = ("tokens", "valid", "positions", "segments", "target")
"""The fields of `Run` with a row for each input."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with what is known about how it is called. `module` is a copy on the same weights."""

    module: nn.Module
    base: Run
    """The inputs that the diagnosis was asked for: one row."""
    n_tokens: int
    """The size of the vocabulary."""
    pad: int = 0
    causal: bool = False
    """Whether an output may depend on earlier tokens only."""
    tokenizer: Any = None
    text: str = ""
    """The text that the inputs were made of, where there is one."""
    original: nn.Module | None = None
    """The model that this one was converted from, where it is given."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of `forward`, handed on as they are."""
    tick: Callable[[], None] = lambda: None
    """Called before each run of the model; what it raises ends the check."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        inputs: Any = None,
        tokenizer: Any = None,
        *,
        causal: bool | None = None,
        original: Any = None,
    ) -> Subject:
        """Find out how a model is called.

        Args:
            model: One of ours, one of Transformers, or any module that maps token ids [batch, pos] to logits.
            inputs: A text, token ids, a tensor, or named arguments; None takes arbitrary tokens.
            tokenizer: For a text.
            causal: Whether the model is meant to be causal; None finds out.
            original: The model that this one was converted from.

        Raises:
            InputError: The model reads no tokens, or cannot be run on these.
        """
        model = unwrapped(model)
        module = _with_shared_weights(model)
        config: Any = getattr(model, "config", None)
        text, named = "", {}
        if isinstance(inputs, str):
            text, inputs = inputs, _encoded(inputs, tokenizer)
        if isinstance(inputs, Mapping):
            named = dict(inputs)
            inputs = named.pop(next((name for name in (*ARGUMENTS["tokens"], "0") if name in named), ""), None)
        n_tokens = _n_tokens(model)
        tokens = _arbitrary(model, n_tokens) if inputs is None else _as_rows(inputs)
        if n_tokens == 0 and not tokens.is_floating_point():
            n_tokens = int(tokens.max()) + 1
        if tokens.is_floating_point():
            raise InputError("The checks need a model of token ids [batch, pos], and these inputs are no integers.")
        target = named.pop("decoder_input_ids", None)
        if target is None and _is_pair(model):
            target = _arbitrary(model, n_tokens, seed=1)
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        pads = (getattr(text_config, name, None) for name in ("pad_token_id", "pad_token"))
        pad = next((one for one in pads if isinstance(one, int) and 0 <= one < n_tokens), 0)
        base = Run(tokens[:1], target=None if target is None else target[:1])
        subject = cls(
            module,
            base,
            n_tokens,
            pad,
            tokenizer=tokenizer,
            text=text,
            original=original,
            extra={
                name: value for name, value in named.items() if name not in {n for a in ARGUMENTS.values() for n in a}
            },
        )
        try:
            subject.logits(base)
        except XformerError:
            raise
        except Exception as error:  # a module may raise anything for inputs it cannot read
            raise InputError(
                f"{type(model).__name__} could not be run on tokens {list(base.tokens.shape)}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
        return replace(subject, causal=subject.looks_causal if causal is None else causal)

    # How it is called.

    @cached_property
    def takes(self) -> dict[str, str]:
        """The arguments of `forward` that a check can use: from what they are for to their name."""
        if isinstance(self.module, Transformer):
            return {}
        names = inspect.signature(self.module.forward).parameters
        found = {
            use: next(name for name in known if name in names)
            for use, known in ARGUMENTS.items()
            if any(name in names for name in known)
        }
        return found | ({"attention": "output_attentions"} if self.is_transformers else {})

    def can(self, use: str) -> bool:
        """Whether the model can be given padding ("valid"), positions, a cache ("past"), …"""
        if isinstance(self.module, Transformer):
            return (
                self.module.decoder is not None
                if use == "past"
                else use in ("valid", "segments") and not self.reads_images
            )
        return use in self.takes

    def arguments(self, run: Run) -> dict[str, Any]:
        """The arguments of `forward` for a call; a number stands for the place of one without a known name.

        Raises:
            UnavailableError: The model cannot be given something that the call has.
        """
        takes = self.takes
        named: dict[str, Any] = {takes.get("tokens", "0"): run.tokens, **self.extra}
        given = {
            "valid": run.valid,
            "positions": run.positions,
            "segments": run.segments,
            "target": run.target,
            "attention": run.with_attention or None,
        }
        for use, value in given.items():
            if value is None:
                continue
            if use not in takes:
                raise UnavailableError(f"forward takes no {ARGUMENTS[use][0]}.")
            name = takes[use]
            if use == "valid":
                value = ~value if name in TRUE_IS_PADDING else value if name == "valid" else value.long()
            named[name] = value
        if "keep" in takes:
            named.setdefault(takes["keep"], False)
        return named

    def call(self, named: Mapping[str, Any], seed: int = 0) -> Any:
        """Call the module with named arguments, in eval mode and with random numbers of its own."""
        named = {name: self._here(value) if isinstance(value, Tensor) else value for name, value in named.items()}
        args = [value for name, value in named.items() if name.isdigit()]
        with _own_randomness(self.device, seed):
            return self.module(*args, **{name: value for name, value in named.items() if not name.isdigit()})

    @torch.no_grad()
    def logits(self, run: Run) -> Float[Tensor, "batch out vocab"]:
        """What the model puts out for every position of `run.read`, in main memory."""
        self.tick()
        return self._logits(run.each(self._here)).cpu()

    def _logits(self, run: Run) -> Tensor:
        if run.n_cached:
            before, rest = self._halves(run)
            if isinstance(self.module, Transformer):
                return torch.cat([before, self.module.extend(*rest)], dim=1)
            after = run.with_read(run.read[:, run.n_cached :])
            return torch.cat([before, self.output_of(self.call(rest, run.seed), after)], dim=1)
        if isinstance(self.module, Transformer):
            if run.recorded:
                return self._recorded(run)["logits"]
            with _own_randomness(self.device, run.seed):
                return self.module(run.tokens, run.target, valid=run.valid, layout=_layout(run))
        return self.output_of(self.call(self.arguments(run), run.seed), run)

    def _halves(self, run: Run) -> tuple[Tensor, Any]:
        """The outputs of the tokens that are read first, and what the model is then called with."""
        n = run.n_cached
        if isinstance(self.module, Transformer):
            memory = None if run.target is None else self.module.encode(run.tokens)
            cache = Cache.empty(self.module.config.n_layers)
            return self.module.extend(run.read[:, :n], cache, memory), (run.read[:, n:], cache, memory)
        whole = replace(run, n_cached=0)
        index = (
            torch.arange(run.read.shape[1], device=self.device)[None]
            if self.can("positions") and run.target is None
            else None
        )
        first, rest = (
            replace(whole.with_read(run.read[:, part]), positions=None if index is None else index[:, part])
            for part in (slice(None, n), slice(n, None))
        )
        keep = {self.takes["keep"]: True} if "keep" in self.takes else {}
        returned = self.call(self.arguments(first) | keep)
        past = _past_of(returned)
        if past is None:
            raise UnavailableError("The model was asked for its keys and values, and returned none.")
        return self.output_of(returned, first), self.arguments(rest) | keep | {self.takes["past"]: past}

    def output_of(self, returned: Any, run: Run) -> Float[Tensor, "batch out vocab"]:
        """The logits, or the last state of a model without a head, in what a call returned."""
        from xformer.adapters.any_module import first_tensor  # only now: not needed for models of ours

        output = getattr(returned, "prediction_logits", None)
        output = first_tensor(returned) if output is None else output
        if output.dim() == 3 and output.shape[1] == 1 < run.read.shape[1] and "labels" in self.takes:
            # Some models score the last position only, unless they are given what comes next.
            named = self.arguments(run) | {self.takes["labels"]: run.read}
            output = first_tensor(self.call(named))
        return output if output.dim() > 2 else output[:, None]

    @cached_property
    def base_logits(self) -> Float[Tensor, "batch out vocab"]:
        """The outputs for `base`: many checks compare others with them."""
        return self.logits(self.base)

    @cached_property
    def has_output_by_position(self) -> bool:
        """Whether there is an output for every token, and not one for the whole input."""
        return self.base_logits.shape[1] == self.base.read.shape[1]

    @torch.no_grad()
    def record(self, run: Run) -> dict[str, Tensor]:
        """The activations of a call by name, in the order of the computation: "decoder.0.attn.pattern", …

        Raises:
            XformerError: The attention of this model cannot be read.
        """
        with _own_randomness(self.device, run.seed):
            return {name: value.cpu() for name, value in self._recorded(run.each(self._here)).items()}

    def _recorded(self, run: Run) -> dict[str, Tensor]:
        if isinstance(self.module, Transformer):
            if run.n_cached:
                raise UnavailableError("A run from a cache is not recorded.")
            tape = Tape()
            self.module(run.tokens, run.target, valid=run.valid, layout=_layout(run), tape=tape)
            return dict(tape.activations)
        named = self._halves(run)[1] if run.n_cached else self.arguments(run)
        return self._opened.run(named, n_batch=len(run.tokens))

    @cached_property
    def _opened(self) -> Any:
        from xformer.adapters.any_module import AnyModule  # only now: not needed for models of ours
        from xformer.adapters.huggingface_opening import open_transformers

        if hasattr(self.module, "main_input_name"):
            return open_transformers(self.module)[0]
        return AnyModule.open(self.module, self.arguments(self.base)).opened

    def changed(self, module: nn.Module) -> Subject:
        """The same inputs for another module."""
        return replace(self, module=module)

    def copied(self, dtype: torch.dtype | None = None) -> Subject:
        """The same with weights of its own, which may be changed."""
        return self.changed(copy.deepcopy(self.module).to(dtype or self.dtype))

    def shared(self) -> Subject:
        """The same as another module on the same weights: its configuration and hooks may be changed."""
        return self.changed(_with_shared_weights(self.module))

    # What is known about it.

    @property
    def config(self) -> Any:
        """The configuration of its text part, or None."""
        config: Any = getattr(self.module, "config", None)
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def is_transformers(self) -> bool:
        """Whether the model is one of the Transformers library."""
        return hasattr(self.module, "main_input_name") and hasattr(self.module, "config")

    @property
    def reads_images(self) -> bool:
        """Whether the model is one of xformer that reads the pixels of an image."""
        return isinstance(self.module, Transformer) and bool(self.module.config.image)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next((one.device for one in self.module.parameters()), torch.device("cpu"))

    def _here(self, value: Tensor) -> Tensor:
        return value.to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its weights."""
        return next((one.dtype for one in self.module.parameters() if one.is_floating_point()), torch.float32)

    @property
    def eps(self) -> float:
        """The rounding of its numbers; float32's in a float64 model, as Transformers computes softmax and rotations in it."""
        return max(torch.finfo(self.dtype).eps, torch.finfo(torch.float32).eps)

    @property
    def max_len(self) -> int:
        """The longest input: what the model says; else the rows of its smallest other table that the input fits; else 512.

        On a GPU an index beyond a table ends the whole process.
        """
        names = ("max_position_embeddings", "n_positions", "max_len", "block_size", "max_seq_len", "context_length")
        for owner in (self.config, self.module):
            for name in names:
                value = getattr(owner, name, None)
                if isinstance(value, int) and value > 0:
                    return value
        n = self.base.read.shape[1]
        tables = [one.num_embeddings for one in self.module.modules() if isinstance(one, nn.Embedding)]
        if self.n_tokens in tables:
            tables.remove(self.n_tokens)
        return min((rows for rows in tables if rows >= n), default=512)

    def other_tokens(self, tokens: Tensor, seed: int = 0) -> Tensor:
        """Another token in the place of each: neither the same nor padding."""
        draw = torch.Generator().manual_seed(seed)
        shift = torch.randint(1, max(2, self.n_tokens - 1), tokens.shape, generator=draw).to(tokens.device)
        other = (tokens + shift) % self.n_tokens
        clash = (other == self.pad) | (other == tokens)
        return torch.where(clash, (other + 1) % self.n_tokens, other)

    @property
    def looks_causal(self) -> bool:
        """Whether the model is meant to be causal: it says so, or most of what it could see ahead gets no attention."""
        if isinstance(self.module, Transformer):
            return bool(self.module.config.causal) or self.module.config.architecture == "encoder-decoder"
        if self.is_transformers:
            from xformer.adapters.huggingface_opening import is_causal_class, is_pair

            is_bidirectional = getattr(self.config, "is_causal", True) is False
            return (is_causal_class(self.module) or is_pair(self.module)) and not is_bidirectional
        flags = [
            getattr(one, name)
            for one in self.module.modules()
            for name in ("is_causal", "causal")
            if hasattr(one, name)
        ]
        if flags:
            return any(value is True for value in flags)
        if any(_is_triangle(buffer) for buffer in self.module.buffers()):
            return True
        if any(word in type(self.module).__name__.lower() for word in ("gpt", "causal", "decoder")):
            return True
        try:
            patterns = [value for name, value in self.record(self.base).items() if name.endswith("attn.pattern")]
        except XformerError:
            return False
        return any(_share_ahead(pattern) < 0.5 for pattern in patterns if pattern.shape[-1] == pattern.shape[-2] > 2)


def _share_ahead(pattern: Float[Tensor, "batch head query key"]) -> float:
    """The share of the cells to the right of the diagonal that get attention."""
    ahead = torch.ones(pattern.shape[-2:]).triu(1).bool()
    return float((pattern[..., ahead] > 0).float().mean())


def _is_triangle(buffer: Tensor) -> bool:
    """Whether a buffer is a causal mask: square, and constant but for a triangle."""
    if buffer.dim() < 2 or buffer.shape[-1] != buffer.shape[-2] or buffer.shape[-1] < 3:
        return False
    square = buffer.reshape(-1, *buffer.shape[-2:])[0].float()
    below, above = square[torch.ones_like(square).tril().bool()], square[torch.ones_like(square).triu(2).bool()]
    return bool((below == below[0]).all() and (above == above[0]).all() and below[0] != above[0])


def _with_shared_weights(model: nn.Module) -> nn.Module:
    """A copy of the modules and buffers, in eval mode, with the same parameters."""
    memo: dict[int, Any] = {id(one): one for one in model.parameters()}
    try:
        return copy.deepcopy(model, memo).eval()
    except Exception as error:  # a module may hold anything: a lock, a file, a generator
        raise InputError(
            f"{type(model).__name__} cannot be copied, and the checks change a copy: {' '.join(str(error).split())[:150]}"
        ) from error


@contextmanager
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Random numbers of this seed inside; those of the caller go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _past_of(returned: Any) -> Any:
    """The keys and values that a call returned; None where it returned none."""
    for name in ARGUMENTS["past"]:
        if getattr(returned, name, None) is not None:
            return getattr(returned, name)
    return returned[1] if isinstance(returned, tuple) and len(returned) > 1 else None


def _layout(run: Run) -> Any:
    if run.segments is None:
        return None
    from xformer.layers.masks import Layout

    return Layout.from_segments(run.segments)


def _is_pair(model: nn.Module) -> bool:
    if isinstance(model, Transformer):
        return model.config.architecture == "encoder-decoder"
    if hasattr(model, "main_input_name"):
        from xformer.adapters.huggingface_opening import is_pair

        return is_pair(model)
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def _n_tokens(model: nn.Module) -> int:
    """The size of the input vocabulary; 0 where it cannot be found."""
    if isinstance(model, Transformer):
        return model.config.n_inputs
    if hasattr(model, "main_input_name"):
        from xformer.adapters.huggingface_opening import n_tokens_of

        return n_tokens_of(model)
    return next((one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding)), 0)


def _encoded(text: str, tokenizer: Any) -> Tensor:
    if tokenizer is None:
        raise InputError("A text needs a tokenizer, and none was given; for example diagnose(model, text, tokenizer).")
    return torch.tensor([tokenizer(text)["input_ids"]])


def _as_rows(inputs: Any) -> Tensor:
    tokens = inputs if isinstance(inputs, Tensor) else torch.tensor(inputs)
    if tokens.dim() not in (1, 2) or tokens.numel() == 0:
        raise InputError(
            f"Token ids are shaped [pos] or [batch, pos], got {list(tokens.shape)}; for example [[3, 7, 12]]."
        )
    return tokens[None] if tokens.dim() == 1 else tokens


def _arbitrary(model: nn.Module, n_tokens: int, seed: int = 0) -> Tensor:
    """Arbitrary tokens without special ones, for a model that was given no inputs."""
    draw = torch.Generator().manual_seed(seed)
    if isinstance(model, Transformer):
        n = model.config.image**2 or min(12, model.config.max_len)
        return torch.randint(1, n_tokens, (1, n), generator=draw)
    if hasattr(model, "main_input_name"):
        from xformer.adapters.huggingface_opening import example_inputs

        example = example_inputs(model, seed)
        name = "decoder_input_ids" if seed and "decoder_input_ids" in example else "input_ids"
        if name not in example:
            raise InputError(f"The checks need a model of token ids, and {type(model).__name__} reads none.")
        return example[name]
    if n_tokens == 0:
        raise InputError(
            "This module has no table of token embeddings, so give inputs; for example torch.tensor([[3, 7]])."
        )
    return torch.randint(0, n_tokens, (1, min(12, n_tokens)), generator=draw)
