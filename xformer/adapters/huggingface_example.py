"""The inputs of Transformers models, converted to examples with a reference at each output:

causal             the next token
masked             the token itself; at a mask the unchanged model's prediction
encoder-decoder    "source >> target"; without a target the model generates one greedily
classes            the unchanged model's prediction
without a head     none
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.adapter import ADDED, Input, label_added, with_added
from xformer.adapters.external import ExternalAdapter
from xformer.adapters.huggingface_opening import (
    ORDINARY,
    OutputKind,
    arguments_of,
    check_arguments,
    check_mask_shape,
    main_input,
    n_inputs_of,
    n_target_tokens_of,
    text_config,
)
from xformer.adapters.inputs import (
    BETWEEN,
    ArgumentsOnly,
    PatchedImage,
    PlainText,
    TextPair,
    TextWithGaps,
    TokenizedText,
    TwoTexts,
    purposes,
    tokenize,
    vocabulary,
)
from xformer.adapters.opening import Inputs
from xformer.adapters.own_models import NumbersInput, numbered
from xformer.errors import InputError
from xformer.pooling import Pooling
from xformer.program.module_state import copied
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example, id_list, pair_rows

N_WRITTEN = 24
"""The largest number of tokens that an encoder-decoder generates when no target is given."""


TYPED: dict[str, tuple[type[TokenizedText], str]] = {
    "next_token": (TokenizedText, "When Mary and John went to the store, John gave a drink to"),
    "answer_span": (TwoTexts, "Where did the cat sit? >> The cat sat on the mat."),
    "next_sentence": (TwoTexts, "The cat sat on the mat. >> Then it fell asleep."),
}
"""The input class and the initial text of a model with one stack, by its kind of output; other kinds use `PlainText`."""


@dataclass(frozen=True, eq=False)
class HuggingFaceInputs(ExternalAdapter):
    """Converts the inputs of a `PreTrainedModel` with its tokenizer or image processor."""

    tokenizer: Any = None
    """None: the model reads token ids and named arguments only."""
    image_processor: Any = None
    """Converts an image to pixel values, or None."""
    pooling: Pooling | None = None
    """How token vectors are pooled, if the folder specifies it (`1_Pooling` of sentence-transformers)."""

    @property
    def output(self) -> OutputKind:
        """The kind of output: "next_token", "sequence_class", "vectors", …"""
        return cast(OutputKind, self.opened.output)

    @property
    def reads_tokens(self) -> bool:
        """Whether the model reads token ids, not images or sounds."""
        takes = inspect.signature(self.opened.module.forward).parameters
        return main_input(self.opened.module) == "input_ids" and "input_ids" in takes

    @property
    def input(self) -> Input:
        """The kind of input that the model reads."""
        if not self.reads_tokens:
            main = main_input(self.opened.module)
            if main != "pixel_values" or self.shape.is_encoder_decoder or self.shape.n_inputs:
                return ArgumentsOnly(self.name, main)
            return PatchedImage(self.shape, self.image_processor, self.opened.module)
        if self.tokenizer is None:
            return NumbersInput()
        kind, default = TYPED.get(self.output, (PlainText, "The film was long, but I enjoyed every minute of it."))
        if self.shape.is_encoder_decoder:
            kind, default = TextPair, "The house is small."
        elif self.output == "masked_token" and self.tokenizer.mask_token_id is not None:
            kind, default = TextWithGaps, f"Paris is the {self.tokenizer.mask_token} of France."
        known = purposes(self.name)
        return kind(self.tokenizer, self.shape.n_inputs, self.shape.max_len, known[0][1] if known else default, known)

    def words(self, n: int) -> tuple[str, ...]:
        """The text of each of the first `n` tokens; their ids without a tokenizer."""
        return numbered(n) if self.tokenizer is None else vocabulary(self.tokenizer, n)

    def token_names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The tokens as text, or the patches of an image."""
        if isinstance(self.input, PatchedImage):
            return self.input.names(len(tokens))
        words = self.words(self.shape.n_inputs)

        def names(ids: Tensor) -> list[str]:
            return [words[token] if token < len(words) else f"#{token}" for token in ids.tolist()]

        return label_added(tokens, names)

    def to_example(self, inputs: Any) -> Example:
        """Convert an input to an example.

        Args:
            inputs: Text, token ids, a pair of those, an image, a list of inputs (a batch), or named arguments.

        Raises:
            InputError: The model cannot read the input.
        """
        if isinstance(inputs, Mapping):
            return _of_arguments(self, inputs)
        if not self.reads_tokens:
            return _of_pixels(self, inputs)
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return Example.batch([_single(self, one) for one in _rows(self, inputs)], 0 if pad is None else pad)

    def outputs(self, example: Example) -> Float[Tensor, "batch out vocab"]:
        """The output of an unrecorded run."""
        return self.opened.plain(self.inputs_of(example))

    def inputs_of(self, example: Example) -> Inputs:
        """The arguments of the model's forward pass."""
        inputs: Inputs = {} if example.arguments is None else dict(example.arguments)
        own = example.input_ids[0] != ADDED
        if self.reads_tokens and "inputs_embeds" not in inputs:
            inputs["input_ids"] = example.input_ids[:, own]
        if example.valid is not None:
            inputs.setdefault("attention_mask", example.valid[:, own].long())
        if example.target is not None:
            inputs["decoder_input_ids"] = example.target
            if example.target_valid is not None:
                inputs.setdefault("decoder_attention_mask", example.target_valid.long())
        return inputs


def _rows(model: HuggingFaceInputs, inputs: Any) -> list[Any]:
    """The inputs of a batch; a single input is a batch of one."""
    if isinstance(inputs, Tensor):
        if inputs.dim() not in (1, 2) or inputs.is_floating_point():
            raise InputError(f"Token ids are integers [pos] or [batch, pos], got {inputs.dtype} {list(inputs.shape)}.")
        return inputs.tolist() if inputs.dim() == 2 else [inputs.tolist()]
    if model.shape.is_encoder_decoder and (rows := pair_rows(inputs)) is not None:
        return rows
    reads_two = model.shape.is_encoder_decoder or model.output in ("answer_span", "next_sentence", "sequence_class")
    is_two = reads_two and isinstance(inputs, tuple) and len(inputs) == 2 and not isinstance(inputs[0], int)
    if isinstance(inputs, str) or is_two:
        return [inputs]
    rows = list(inputs)
    return [rows] if all(isinstance(one, int) for one in rows) else rows


def _single(model: HuggingFaceInputs, inputs: Any) -> Example:
    if model.output == "similarity":
        raise InputError(f"{model.name} compares texts with images; pass {{'input_ids': …, 'pixel_values': …}}.")
    if isinstance(inputs, Tensor):
        inputs = inputs.tolist()
    if model.output == "pair_next_token" or (model.shape.is_encoder_decoder and model.output == "vectors"):
        return _pair(model, inputs)
    if isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(one, str) for one in inputs):
        _check_tokenizer(model)
        inputs = tokenize(model.tokenizer, *inputs)
    example = Example.unlabelled(torch.tensor([_ids(model, inputs)]))
    types = _token_types(model, example.input_ids)
    if types is not None:
        example = replace(example, arguments={"token_type_ids": types})
    if model.shape.is_encoder_decoder:
        example = replace(example, target=_own_target(model, example))
    return _labelled(model, example)


def _token_types(model: HuggingFaceInputs, stream: Int[Tensor, "1 pos"]) -> Int[Tensor, "1 pos"] | None:
    """0 for the first of two texts, 1 for the second (Devlin et al. 2019); None if the model has no token types."""
    sep = getattr(model.tokenizer, "sep_token_id", None)
    config: Any = model.opened.module.config
    if sep is None or getattr(config, "type_vocab_size", 0) < 2 or int((stream == sep).sum()) < 2:
        return None
    is_after = (stream == sep).cumsum(dim=1) - (stream == sep).long()
    return (is_after > 0).long()


def _labelled(model: HuggingFaceInputs, example: Example) -> Example:
    """Add the positions that the model adds, and the reference at each output."""
    if model.shape.added != (0, 0) and model.reads_tokens:
        valid = None if example.valid is None else with_added(example.valid, model.shape.added, fill=1)
        example = replace(example, input_ids=with_added(example.input_ids, model.shape.added), valid=valid)
    stream, kind = example.input_ids, model.output
    labels, valid = torch.full_like(stream, IGNORED), example.valid
    if example.is_numbered and kind in ("next_token", "masked_token"):  # the tokens are unknown
        return example
    if kind == "next_token":
        labels = _following(stream, valid)
    elif kind == "masked_token":
        labels = _filled(model, example)
    elif kind == "pair_next_token" and example.target is not None:
        labels = _following(example.target, example.target_valid)
    elif kind != "vectors":
        labels = model.outputs(example).argmax(dim=-1).cpu()
        if kind == "token_class":
            labels[_is_special(model, stream)] = IGNORED
    if kind in ("masked_token", "token_class"):
        labels[(stream == ADDED) if valid is None else (stream == ADDED) | ~valid] = IGNORED
    labels[labels == ADDED] = IGNORED
    answer = tuple(label for label in labels[0].tolist() if label != IGNORED)
    return replace(example, labels=labels, answer=answer)


def _following(tokens: Int[Tensor, "batch pos"], valid: Tensor | None) -> Int[Tensor, "batch pos"]:
    """The token after each position; ignored at the last position and at padding."""
    labels = torch.full_like(tokens, IGNORED)
    labels[:, :-1] = tokens[:, 1:]
    if valid is not None:
        labels[~valid] = IGNORED
        labels[:, :-1][~valid[:, 1:]] = IGNORED
    return labels


def _check_tokenizer(model: HuggingFaceInputs) -> None:
    if model.tokenizer is None:
        raise InputError("Text input needs a tokenizer; pass tokenizer=AutoTokenizer.from_pretrained(…).")


def _ids(model: HuggingFaceInputs, inputs: str | Sequence[int]) -> list[int]:
    """The tokens of a text, including special tokens, or the given ids."""
    if isinstance(inputs, str):
        if model.tokenizer is None and not inputs.replace(" ", "").isdecimal():
            _check_tokenizer(model)
        ids = list(model.input.read(inputs))
    else:
        ids = id_list(inputs)
    n, most = model.shape.n_inputs, model.shape.max_len
    if not ids:
        raise InputError(f"{model.name} reads 1 to {most} tokens, got none; type a word.")
    if len(ids) > most:
        raise InputError(f"{model.name} reads 1 to {most} tokens, got {len(ids)}; remove some.")
    _check_range(model, ids, n)
    return ids


def _is_special(model: HuggingFaceInputs, stream: Int[Tensor, "batch pos"]) -> Tensor:
    """Which tokens are special tokens of the tokenizer other than the mask."""
    if model.tokenizer is None:
        return torch.zeros_like(stream, dtype=torch.bool)
    special = {*model.tokenizer.all_special_ids} - {model.tokenizer.mask_token_id}
    return torch.isin(stream, torch.tensor(sorted(special), dtype=torch.long))


def _filled(model: HuggingFaceInputs, example: Example) -> Int[Tensor, "batch pos"]:
    """The references of a bidirectional model; special tokens have none."""
    labels = example.input_ids.clone()
    labels[_is_special(model, example.input_ids)] = IGNORED
    mask = getattr(model.tokenizer, "mask_token_id", None)
    masked = example.input_ids == (-1 if mask is None else mask)
    rows = masked.any(dim=1)
    if rows.any():
        labels[rows] = IGNORED
        labels[masked] = model.outputs(example).argmax(dim=-1).cpu()[masked]
    return labels


def _check_range(model: HuggingFaceInputs, ids: Sequence[int], n_tokens: float) -> None:
    if not all(0 <= token < n_tokens for token in ids):
        raise InputError(f"Token ids of {model.name} range from 0 to {n_tokens - 1}, got {max(ids, key=abs)}.")


def _n_target_tokens(model: HuggingFaceInputs) -> float:
    """The size of the decoder's vocabulary, which may differ from the encoder's."""
    return n_target_tokens_of(model.opened.module) or math.inf


def _pair(model: HuggingFaceInputs, inputs: Any) -> Example:
    """Source and target of an encoder-decoder."""
    parts: Any = [inputs]
    if isinstance(inputs, str):
        parts = inputs.split(BETWEEN, 1)
    elif len(inputs) == 2 and not isinstance(inputs[0], int):
        parts = inputs
    ids, target = _ids(model, parts[0]), parts[-1]
    stream, start = torch.tensor([ids]), _start(model)
    if len(parts) == 1:
        target_ids = [start] if model.output == "vectors" else _written(model, stream, start)
    elif isinstance(target, str):
        _check_tokenizer(model)
        target_ids = list(model.tokenizer(text_target=target.strip())["input_ids"])
    else:
        target_ids = id_list(target)
    _check_range(model, target_ids, _n_target_tokens(model))
    labels, read = torch.tensor([target_ids]), torch.tensor([[start, *target_ids[:-1]]])
    if model.output == "vectors":
        labels = torch.full_like(read, IGNORED)
    return Example(tuple(ids), tuple(target_ids), stream, read, with_added(stream, model.shape.added), labels)


def _start(model: HuggingFaceInputs) -> int:
    """The token that a decoder starts with. Raises `InputError` if the configuration has no valid one."""
    start = getattr(model.opened.module.config, "decoder_start_token_id", None)
    bos = getattr(text_config(model.opened.module), "bos_token_id", None)
    token = (bos or 0) if start is None else start
    n_tokens = _n_target_tokens(model)
    if not isinstance(token, int) or not 0 <= token < n_tokens:
        raise InputError(f"decoder_start_token_id must be an id from 0 to {n_tokens - 1}, like 0, got {token!r:.40}.")
    return token


def _written(model: HuggingFaceInputs, stream: Int[Tensor, "1 pos"], start: int) -> list[int]:
    written: list[int] = []
    while len(written) < N_WRITTEN:
        read = torch.tensor([[start, *written]])
        written.append(int(model.outputs(Example((), (), stream, read, stream, read))[0, -1].argmax()))
        if written[-1] == getattr(model.tokenizer, "eos_token_id", None):
            break
    return written


def _of_arguments(model: HuggingFaceInputs, given: Mapping[str, Any]) -> Example:
    """Build an example from named arguments of the model's forward pass."""
    arguments = arguments_of(copied(given))
    _check_main(model, arguments)
    check_arguments(model.opened.module, given, model.name)
    own_call = dict(arguments)
    ids, target = arguments.pop("input_ids", None), arguments.pop("decoder_input_ids", None)
    is_numbered = False
    if isinstance(ids, Tensor):
        stream = ids.cpu()
        if stream.dim() != 2 and model.reads_tokens:
            raise InputError(f"input_ids are token ids [batch, pos], got {list(stream.shape)}.")
        for row in stream.tolist():
            _ids(model, row)
        if not model.reads_tokens:
            arguments["input_ids"] = stream
    elif isinstance(model.input, PatchedImage):
        stream = _places(model, arguments["pixel_values"])
    else:  # position numbers stand in for tokens
        is_numbered, vectors = True, arguments.get("inputs_embeds")
        n = _n_positions(model, own_call) if vectors is None else vectors.shape[1]
        stream = torch.arange(n)[None].expand(n_inputs_of(own_call), -1)
    if target is not None:
        target = target.cpu()
        _check_range(model, target.flatten().tolist(), _n_target_tokens(model))
    example = Example.unlabelled(
        stream,
        target,
        valid=_padding(arguments, "attention_mask", stream)
        if not is_numbered or "inputs_embeds" in arguments
        else None,
        target_valid=None if target is None else _padding(arguments, "decoder_attention_mask", target),
        arguments=arguments or None,
        is_numbered=is_numbered,
    )
    takes_target = "decoder_input_ids" in inspect.signature(model.opened.module.forward).parameters
    if model.shape.is_encoder_decoder and target is None and takes_target:
        example = replace(example, target=_own_target(model, example))
    masks = [name for name in ("attention_mask", "decoder_attention_mask") if name in arguments]
    if masks or not own_call.keys() <= {*ORDINARY, main_input(model.opened.module)}:
        model.opened.verify(model.inputs_of(example), own_call, len(stream))
    for name in masks:
        _check_mask(model, example, name)
    return _labelled(model, example)


def _padding(arguments: Inputs, name: str, stream: Int[Tensor, "batch pos"]) -> Tensor | None:
    """Which positions of a stream are not padding, from a mask [batch, pos]; None for another mask, or without one.

    A mask of zeros and ones for the stream alone is taken out of the arguments; others stay, as one that also covers a cache.
    """
    mask = arguments.get(name)
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    check_mask_shape(name, mask, stream, has_cache=arguments.get("past_key_values") is not None)
    valid = mask.cpu().bool()
    if mask.shape == stream.shape and bool((mask.cpu() == valid).all()):
        del arguments[name]
    return valid[:, -stream.shape[1] :]


def _check_mask(model: HuggingFaceInputs, example: Example, name: str) -> None:
    """Refuse a mask of 4 axes that the model adds to its scores although its values only say yes or no.

    Raises `InputError` if a key that it forbids gets weight in a self-attention.
    """
    mask = (example.arguments or {})[name]
    if not isinstance(mask, Tensor) or mask.is_floating_point() or mask.dim() != 4:
        return
    allowed = mask.cpu().bool()
    forbidden = ~allowed & allowed.any(dim=-1, keepdim=True)
    run = model.opened.run(model.inputs_of(example), n_batch=len(example.input_ids), keep=("*.pattern",))
    stack = "decoder" if name.startswith("decoder") else model.shape.attention[0].stack
    for site in model.shape.attention:
        pattern = run[f"{site.path}.pattern"]
        is_masked = site.stack == stack and not site.is_cross and pattern.shape[-2:] == mask.shape[-2:]
        if is_masked and bool(((pattern > 0) & forbidden).any()):
            kind = str(mask.dtype).removeprefix("torch.")
            raise InputError(
                f"This model's own attention adds a mask of type {kind} to its scores, so it masks nothing; pass {name} as "
                'floats with -inf at forbidden cells, or load the model with attn_implementation="sdpa" for booleans.'
            )


def _n_positions(model: HuggingFaceInputs, inputs: Inputs) -> int:
    """The number of positions of the first attention layer for these inputs, measured in a run."""
    name = f"{model.shape.attention[0].path}.pattern"
    return model.opened.run(inputs, n_batch=n_inputs_of(inputs), keep=(name,))[name].shape[-2]


def _places(model: HuggingFaceInputs, pixels: Tensor) -> Int[Tensor, "batch pos"]:
    """The numbers of an image's positions: those of its patches, unless the layers differ in their number of positions."""
    assert isinstance(model.input, PatchedImage)
    n = _n_positions(model, {"pixel_values": pixels}) if model.shape.numbered else model.input.n_positions(pixels)
    return torch.arange(n)[None].expand(len(pixels), -1)


def _check_main(model: HuggingFaceInputs, arguments: Mapping[str, Any]) -> None:
    """Raise `InputError` if the main argument is missing."""
    takes = inspect.signature(model.opened.module.forward).parameters
    main = main_input(model.opened.module)
    wanted = [name for name in [main] + ["pixel_values"] * (model.output == "similarity") if name in takes]
    instead = {"input_ids": "inputs_embeds", "input_features": "input_values"}.get(main)
    missing = [name for name in wanted if name not in arguments and instead not in arguments]
    if missing:
        got = ", ".join(str(name)[:40] for name in list(arguments)[:6]) or "nothing"
        raise InputError(f"{model.name} needs {' and '.join(wanted)} by name, got {got}.")


def _own_target(model: HuggingFaceInputs, example: Example) -> Int[Tensor, "batch out"]:
    """The decoder input when none is given: the labels or the source, shifted by one.

    Raises `InputError` if the model requires a decoder input or derives a different one.
    """
    labels = (example.arguments or {}).get("labels", example.input_ids)
    start = torch.full_like(labels[:, :1], _start(model))
    pad = getattr(model.opened.module.config, "pad_token_id", None) or 0
    shifted = torch.cat([start, labels[:, :-1]], dim=1).masked_fill(labels.roll(1, 1) == IGNORED, pad)
    try:
        wanted = model.outputs(example)
    except Exception as error:  # a model may raise anything for a missing input
        raise InputError(
            f"{model.name} is an encoder-decoder; pass decoder_input_ids with input_ids, or a tuple (source, target)."
        ) from error
    without = {name: value for name, value in (example.arguments or {}).items() if name != "labels"}
    found = model.outputs(replace(example, target=shifted, arguments=without or None))
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-4, atol=1e-4):
        raise InputError(f"The decoder input of {model.name} cannot be derived; pass decoder_input_ids.")
    return shifted


def _of_pixels(model: HuggingFaceInputs, inputs: Any) -> Example:
    """An image, or a batch of images."""
    if not isinstance(model.input, PatchedImage):
        model.input.read("")  # raises an error that names the accepted input
    assert isinstance(model.input, PatchedImage)
    source, pixels = model.input.pixels(inputs)  # [batch, channel, row, column]
    example = Example.unlabelled(_places(model, pixels), arguments={"pixel_values": pixels})
    return _labelled(model, replace(example, source=source))
