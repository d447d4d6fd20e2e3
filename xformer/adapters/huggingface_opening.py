"""Open models of the Transformers library: find the kind of output, example inputs, and the layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from xformer.adapters.attachment import cached, detect_randomness, on_device, preserve_state
from xformer.adapters.opening import Inputs, OpenedModel, Verification, open_module
from xformer.adapters.probe import running
from xformer.errors import InputError
from xformer.formatting import error_message

N_SOURCE, N_TARGET = 11, 7
"""Lengths of example inputs; they differ from each other and from most sizes in a model."""
N_SAMPLES = 4_400
"""The length of an example sound, in samples."""
OutputKind = Literal[
    "next_token", "masked_token", "pair_next_token", "sequence_class", "token_class", "answer_span", "next_sentence",
    "image_class", "audio_class", "ctc", "similarity", "vectors",
]  # fmt: skip
"""The kind of a model's output."""
CLASSES = ("sequence_class", "token_class", "next_sentence", "image_class", "audio_class")
"""The kinds whose outputs are classes named in the configuration."""
DESCRIBED: dict[OutputKind, str] = {
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
}
"""A phrase for each kind."""


def open_transformers(model: nn.Module) -> tuple[OpenedModel, Verification]:
    """Locate the parts of a `PreTrainedModel`, once per model; concurrent threads get the same result.

    Raises:
        InputError: The model does not run on an example input, or its attention cannot be captured.
    """

    def find() -> tuple[dict[str, Any], Verification]:
        opened, verification = _open(model)
        return opened.parts, verification

    parts, verification = cached(model, "parts", find)
    return OpenedModel(model, **parts), verification


def _open(model: nn.Module) -> tuple[OpenedModel, Verification]:
    examples, returned = _runnable(model)
    kind = output_kind(model, returned, examples[0])
    n_target = None
    if is_pair(model):
        n_target = examples[0].get("decoder_input_ids", next(iter(examples[0].values()))).shape[-1]
    decoder = None if n_target is None else _decoder_path(model)
    opened, verification = open_module(
        model, call, OUTPUT_OF[kind], examples, ids_of, n_target=n_target, decoder=decoder, output=kind
    )
    if kind == "next_token" and opened.layout.attention[-1].stack == "encoder":
        if is_causal_class(model):
            lost = (
                f"{type(model).__name__} is a class of causal models, but its attention lets tokens attend to later ones: its "
                "mask was lost, or its configuration lacks is_decoder=True."
            )
            return opened, replace(verification, warnings=(*verification.warnings, lost))
        opened = replace(opened, output="masked_token")
    return opened, verification


def _runnable(model: nn.Module) -> tuple[list[Inputs], Any]:
    """Two example inputs on which the model runs, and its output for the first."""
    examples = [example_inputs(model, seed) for seed in (0, 1)]
    with preserve_state(model), torch.no_grad(), running(None), detect_randomness(model):
        try:
            return examples, call(model, examples[0])
        except Exception as error:  # a model may raise anything for inputs it cannot read
            shapes = {name: value.shape for name, value in examples[0].items() if isinstance(value, Tensor)}
            read = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            what = f"{type(model).__name__} could not be run on an example input ({read})"
            raise InputError(f"{what}: {error_message(error, 200)}") from error


def is_pair(model: nn.Module) -> bool:
    """Whether an encoder and a decoder run in one pass."""
    config: Any = model.config
    return bool(getattr(config, "is_encoder_decoder", False)) and _decoder_path(model) is not None


def _decoder_path(model: nn.Module) -> str | None:
    """The path of the decoder module of an encoder-decoder, or None."""
    with suppress(AttributeError, NotImplementedError):
        encoder, decoder = cast(Any, model).get_encoder(), cast(Any, model).get_decoder()
        names = {id(part): name for name, part in model.named_modules()}
        if decoder is not None and encoder is not None and decoder is not encoder and decoder is not model:
            return names.get(id(decoder))
    return None


def is_causal_class(model: nn.Module) -> bool:
    """Whether the model's class in Transformers is for causal language modeling only."""
    from transformers.models.auto import modeling_auto

    name = type(model).__name__
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    return name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() and name not in masked


def call(model: nn.Module, inputs: Inputs) -> Any:
    """One forward pass on the model's device."""
    return model(**on_device(inputs, model))


def _logits(returned: Any) -> Tensor:
    logits = getattr(returned, "logits", None)
    return returned.prediction_logits if logits is None else logits


def _by_token(returned: Any) -> Tensor:
    logits = _logits(returned)  # [batch, pos] if there is one score per token, its log-odds
    return logits if logits.dim() == 3 else torch.stack([torch.zeros_like(logits), logits], dim=-1)


OUTPUT_OF: dict[OutputKind, Callable[[Any], Tensor]] = {
    **dict.fromkeys(("next_token", "masked_token", "pair_next_token", "ctc"), _logits),
    **dict.fromkeys(
        ("sequence_class", "next_sentence", "image_class", "audio_class"), lambda one: _logits(one)[:, None]
    ),
    "token_class": _by_token,
    "answer_span": lambda one: torch.stack([one.start_logits, one.end_logits], dim=1),
    "similarity": lambda one: one.logits_per_text[:, None],
    "vectors": lambda one: one.last_hidden_state,
}
"""Selects the shown output by its kind: [batch, out, vocab], or for "vectors" the last state [batch, pos, d_model]."""


def output_kind(model: nn.Module, returned: Any, inputs: Inputs) -> OutputKind:
    """Determine the kind of a model's output from the returned value. Masked language models count as "next_token" here.

    Raises:
        InputError: The model returns no supported output.
    """

    def has(name: str) -> bool:
        return isinstance(getattr(returned, name, None), Tensor)

    name, main = type(model).__name__, main_input(model)
    if has("start_logits"):
        return "answer_span"
    if has("logits_per_text"):
        return "similarity"
    if not has("logits") and not has("prediction_logits"):
        if not has("last_hidden_state"):
            raise InputError(f"{name} returns neither logits nor a last hidden state, so there is no output to show.")
        return "vectors"
    if name.endswith("ForNextSentencePrediction"):
        return "next_sentence"
    logits = _logits(returned)
    if logits.dim() == 2:
        is_by_token = name.endswith("ForPreTraining") and logits.shape == inputs.get("input_ids", logits[:0]).shape
        kinds: dict[str, OutputKind] = {"pixel_values": "image_class", "input_ids": "sequence_class"}
        return "token_class" if is_by_token else kinds.get(main, "audio_class")
    if is_pair(model):
        return "pair_next_token"
    if main != "input_ids":
        return "ctc" if logits.dim() == 3 and main != "pixel_values" else "vectors"
    return "next_token" if cast(Any, model).get_output_embeddings() is not None else "token_class"


def ids_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """The token ids among the inputs: those of the source, then those of the target."""
    names = ("input_ids", "decoder_input_ids")
    return tuple(inputs[name] for name in names if name in inputs)


def n_tokens_of(model: nn.Module) -> int:
    """The size of the vocabulary that a model, or its decoder, reads; 0 for models of images or sounds."""
    table = getattr(model, "embed_tokens", None)  # some decoders, as FSMT's, are plain modules
    with suppress(NotImplementedError, AttributeError):
        table = table or cast(Any, model).get_input_embeddings()
    if isinstance(table, nn.Embedding):
        return table.num_embeddings
    return int(getattr(text_config(model), "vocab_size", 0) or 0)


def n_target_tokens_of(model: nn.Module) -> int:
    """The size of the vocabulary that the decoder of a pair reads, which may differ from the encoder's; 0 if unknown."""
    return n_tokens_of(cast(Any, model).get_decoder())


def main_input(model: nn.Module) -> str:
    """The name of the model's main argument: "input_ids", "pixel_values", …"""
    return str(getattr(model, "main_input_name", "input_ids"))


def text_config(model: nn.Module) -> Any:
    """The text part of the configuration, or all of it; None for a model without one."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def example_inputs(model: nn.Module, seed: int = 0) -> Inputs:
    """Valid inputs: arbitrary tokens, an image or a sound of the right size."""
    config: Any = model.config
    text, draw = text_config(model), torch.Generator().manual_seed(seed)
    main = main_input(model)
    takes = inspect.signature(model.forward).parameters
    n_tokens = n_tokens_of(model)
    special = {getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    usual = torch.tensor([token for token in range(n_tokens) if token not in special], dtype=torch.long)
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)

    def tokens(n: int, vocabulary: Tensor = usual) -> Tensor:
        return vocabulary[torch.randint(len(vocabulary), (1, n), generator=draw)]

    def image() -> Tensor:
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 32)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return torch.rand(1, getattr(vision, "num_channels", 3), height, width, generator=draw).to(dtype)

    inputs: Inputs = {}
    if main == "pixel_values":
        inputs[main] = image()
    elif main == "input_features":
        n = 2 * getattr(config, "max_source_positions", 50)
        inputs[main] = torch.rand(1, getattr(config, "num_mel_bins", 80), n, generator=draw).to(dtype)
    elif main == "input_values":
        inputs[main] = torch.rand(1, N_SAMPLES, generator=draw).to(dtype)
    else:
        most = int(getattr(text, "max_position_embeddings", N_SOURCE + 4) or N_SOURCE + 4)
        ids = tokens(max(2, min(N_SOURCE, most - 3)))
        end = getattr(text, "eos_token_id", None)
        if isinstance(end, int) and 0 <= end < n_tokens:  # some models take their output at the end token
            ids[:, -1] = end
        inputs["input_ids"] = ids
    if "pixel_values" in takes and main == "input_ids" and hasattr(config, "vision_config") and _is_dual(model):
        inputs["pixel_values"] = image()
    if is_pair(model) and not type(model).__name__.endswith(("ForSequenceClassification", "ForQuestionAnswering")):
        n_target_tokens = n_target_tokens_of(model) or n_tokens  # a translator may have two vocabularies
        inputs["decoder_input_ids"] = tokens(N_TARGET, usual[usual < n_target_tokens])
    return inputs


def _is_dual(model: nn.Module) -> bool:
    """Whether the model compares texts with images and so reads both (Radford et al. 2021)."""
    return hasattr(model, "get_text_features") and hasattr(model, "get_image_features")
