"""Open models of the Transformers library: find the kind of output, example inputs, and the layout."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from xformer.adapters.any_module import output_at, output_path
from xformer.adapters.external import added_positions, shape_of
from xformer.adapters.opening import Inputs, OpenedModel, Verification, open_module, resized
from xformer.adapters.probe import Origin, Streams, running
from xformer.errors import InputError
from xformer.formatting import error_message, similar_names
from xformer.model_shape import ModelShape
from xformer.program.module_state import cache_of, cached, detect_randomness, on_device, preserve_state

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


def open_transformers(model: nn.Module, inputs: Any = None) -> tuple[OpenedModel, Verification, ModelShape]:
    """Locate the parts of a `PreTrainedModel`, once per model; concurrent threads get the same result.

    A model that reads something else than its example is opened on the caller's named arguments, once for each set of names.

    Args:
        model: The model.
        inputs: The caller's inputs. Other inputs than named arguments are not used.

    Raises:
        InputError: The model does not run on its example input, or its attention cannot be captured.
    """
    given = (arguments_of(inputs) or None) if isinstance(inputs, Mapping) else None
    if given is not None and _stream_names(model, given) <= cached(model, "example", lambda: _names_of_example(model)):
        given = None  # its streams are those of the example
    called = given and tuple(sorted((name, getattr(value, "ndim", None)) for name, value in given.items()))
    parts, verification, shape = cached(model, ("parts", called), lambda: _open(model, given))
    return OpenedModel(model, **parts), verification, shape


SELECTS = ("return_dict", "logits_to_keep", "num_logits_to_keep")
"""Arguments that select what is returned, not what is computed. A reading has the outputs at all positions."""


TOKENS, MASKS = ("input_ids", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask")
"""Arguments [batch, pos]."""


def arguments_of(given: Mapping[str, Any]) -> Inputs:
    """Named arguments as a model takes them: lists and arrays become tensors, and one row of token ids a batch of one.

    Raises `InputError` if token ids are no tensor, or a list has no rows of equal length.
    """
    named = {name: value for name, value in given.items() if value is not None and name not in SELECTS}
    for name, one in named.items():
        try:
            named[name] = torch.as_tensor(one) if isinstance(one, list | np.ndarray) else one
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is no tensor, nor a list of one: {error_message(error, 200)}") from error
        if name in TOKENS and not isinstance(named[name], Tensor):
            raise InputError(
                f"{name} are token ids [batch, pos], got {one!r:.60}; pass a text by itself, not in a dict."
            )
    rows = {name: named[name] for name in (*TOKENS, *MASKS) if isinstance(named.get(name), Tensor)}
    return named | {name: one[None] if one.dim() == 1 else one for name, one in rows.items()}


ORDINARY = {*TOKENS, *MASKS, "token_type_ids", "labels"}
"""Arguments that need no comparison with the model's own call, as they are those with which models are opened."""


def check_arguments(model: nn.Module, given: Mapping[Any, Any], title: str) -> None:
    """Refuse an argument that the model would drop, such as a misspelt one, unless a tokenizer or processor gave them.

    Args:
        model: A model of Transformers.
        given: The arguments.
        title: The name of the model in the message.

    Raises:
        InputError: Neither the model nor a part of it takes one of the arguments.
    """
    if isinstance(given, UserDict):  # as BatchEncoding, with entries for other models of the family
        return
    takes = inspect.signature(model.forward).parameters
    known = {*takes, *SELECTS}
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):  # they go to the parts of the model
        from transformers.utils.generic import TransformersKwargs

        parts = {type(part) for part in model.modules()}
        known |= {name for part in parts for name in inspect.signature(part.forward).parameters}
        known |= {*TransformersKwargs.__annotations__, *ORDINARY, "use_cache"}
    for name in map(str, given):
        if name not in known:
            raise InputError(f"{title} has no argument {name:.40}; {similar_names(name, sorted(known))}")


def check_mask_shape(name: str, mask: Tensor, tokens: Tensor, *, has_cache: bool = False) -> None:
    """Refuse a mask [batch, pos] of another shape than its tokens; with a cache, it may also cover what is cached."""
    n = min(mask.shape[1], tokens.shape[1]) if has_cache else mask.shape[1]
    if (len(mask), n) != tuple(tokens.shape):
        raise InputError(f"{name} has an entry for each token, {list(tokens.shape)}, got {list(mask.shape)}.")


def _names_of_example(model: nn.Module) -> frozenset[str]:
    """The streams of an invented example; none if the model does not run on one."""
    try:
        example = _example(model)
        _run(model, example, "an example input")
    except InputError:
        return frozenset()
    return _stream_names(model, example)


def _example(model: nn.Module) -> Inputs:
    """An example input. Raises `InputError` if none can be made up."""
    try:
        return example_inputs(model)
    except Exception as error:  # a configuration may lack any of the sizes
        message = f"No example input can be made up for {type(model).__name__}: {error_message(error, 200)}"
        raise error if isinstance(error, InputError) else InputError(message) from error


def _run(model: nn.Module, inputs: Inputs, what: str) -> Any:
    """The model's return value in eval mode. Raises `InputError` with its message if it does not run on the inputs."""
    is_seeded = cache_of(model).is_random
    with preserve_state(model), torch.no_grad(), running(None), detect_randomness(model):
        try:
            returned = call(model, inputs)
        except Exception as error:  # a model may raise anything for inputs it cannot read
            shapes = {name: value.shape for name, value in inputs.items() if isinstance(value, Tensor)}
            read = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            named = f"{type(model).__name__} could not be run on {what} ({read})"
            raise InputError(f"{named}: {error_message(error, 200)}") from error
    return returned if cache_of(model).is_random == is_seeded else _run(model, inputs, what)


_SAME = {"inputs_embeds": "input_ids", "decoder_inputs_embeds": "decoder_input_ids"}
"""Arguments that stand in for token ids."""


def _stream_names(model: nn.Module, inputs: Inputs) -> frozenset[str]:
    """The arguments that decide which layers run: all with positions except masks, numbers of positions and the like."""
    names = {"input_ids", "decoder_input_ids", main_input(model)}

    def is_stream(name: str, value: Any) -> bool:
        is_vectors = isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1
        return name in names or name == "encoder_outputs" or (is_vectors and "mask" not in name)

    return frozenset(_SAME.get(name, name) for name, value in inputs.items() if is_stream(name, value))


def _open(model: nn.Module, given: Inputs | None) -> tuple[dict[str, Any], Verification, ModelShape]:
    example = _example(model) if given is None else given
    returned = _run(model, example, "an example input" if given is None else "this input")
    kind = output_kind(model, returned, example)
    other = example_inputs(model, 1) if given is None else example
    changed, returned_by_changed, streams = _with_another(model, example, other)
    shown = output_of(kind, returned, example, model)
    examples, outputs = [example, *changed], [returned, *returned_by_changed]
    opened, verification, run = open_module(
        model, call, shown, examples, streams, ids_of, returned=outputs, output=kind
    )
    if kind == "next_token" and opened.layout.attention[-1].stack == "encoder":
        if is_causal_class(model):
            lost = (
                f"{type(model).__name__} is a class of causal models, but its attention lets tokens attend to later ones: its "
                "mask was lost, or its configuration lacks is_decoder=True."
            )
            verification = replace(verification, warnings=(*verification.warnings, lost))
        else:
            opened = replace(opened, output="masked_token")
    return opened.parts, verification, _shape(opened, example, run)


def _with_another(model: nn.Module, example: Inputs, other: Inputs) -> tuple[list[Inputs], list[Any], Streams]:
    """`other` with other numbers of tokens if the model runs on it, or as it is; and what the model returns for it.

    Both lists are empty if there is nothing but the example.
    """
    tokens: dict[str, int] = {name: 1 for name in ("input_ids", main_input(model)) if _is_ids(other.get(name))}
    tokens |= {name: 2 for name in ("decoder_input_ids",) if _is_ids(other.get(name))}
    n_target, decoder = None, None
    if is_encoder_decoder(model):
        decoder = _decoder_path(model)
        first = next(value for value in example.values() if isinstance(value, Tensor))
        n_target = example.get("decoder_input_ids", first).shape[-1]
    streams = Streams(
        n_target,
        decoder,
        has_memory="encoder_hidden_states" in example,
        are_several=len(_stream_names(model, example)) > 1,
    )
    for sign, at_start in ((-1, True), (-1, False), (1, False)):
        longer = {name: sign * n for name, n in tokens.items()}
        if not longer or any(other[name].shape[1] + n < 1 for name, n in longer.items()):
            continue
        changed = resized(other, longer, at_start=at_start)
        with suppress(InputError):
            returned = _run(model, changed, "another input")
            moved: dict[Origin, int] = {"target" if n > 1 else "source": sign * n for n in tokens.values()}
            return [changed], [returned], replace(streams, moved=moved)
    others = [] if other is example else [other]
    return others, [_run(model, one, "another input") for one in others], streams


def _is_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dim() == 2


def _shape(opened: OpenedModel, example: Inputs, run: dict[str, Tensor]) -> ModelShape:
    """Sizes and layers, as measured in the recorded run of the example."""
    model: Any = opened.module
    is_causal = opened.layout.attention[-1].stack == "decoder" and not model.config.is_encoder_decoder
    config = text_config(model)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    for tap in opened.layout.taps:
        if tap.name.endswith("pos_embed") and longest:
            table = model.get_submodule(tap.module)
            if getattr(table, "padding_idx", None) is not None:  # its first rows are not positions (Liu et al. 2019)
                longest = table.num_embeddings - table.padding_idx - 1
    if main_input(model) != "input_ids":
        longest = run[f"{opened.layout.attention[0].path}.pattern"].shape[-1]
    if not isinstance(longest, int) or longest < 1:  # XLNet has -1
        longest = None
    return shape_of(
        opened,
        run,
        is_causal=is_causal,
        max_len=longest,
        n_inputs=n_tokens_of(model),
        added=_added(opened, example, run),
    )


def _added(opened: OpenedModel, example: Inputs, run: dict[str, Tensor]) -> tuple[int, int]:
    """The numbers of positions that a model adds before and after its tokens.

    Raises `InputError` if the outputs have other positions.
    """
    ids, path, added = example.get("input_ids"), opened.layout.attention[0].path, (0, 0)
    if ids is None:
        return added
    n = ids.shape[1]
    if f"{path}.query" not in opened.layout.numbered and run[f"{path}.pattern"].shape[-2] != n:
        other = example | {"input_ids": (ids + 1) % n_tokens_of(opened.module)}
        added = added_positions(opened, example, other, n, n_inputs_of(example))
    n_out = run[opened.output_name].shape[1]
    if opened.output in ("next_token", "masked_token") and n_out != n + sum(added):
        raise InputError(
            f"{type(opened.module).__name__} attends over {n + sum(added)} positions for {n} tokens, but returns outputs at "
            f"{n_out}, and which of its positions they belong to cannot be told."
        )
    return added


def n_inputs_of(inputs: Inputs) -> int:
    """The number of inputs in a batch."""
    return next((len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim() > 1), 1)


def is_encoder_decoder(model: nn.Module) -> bool:
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


def output_of(kind: OutputKind, returned: Any, inputs: Inputs, model: nn.Module) -> Callable[[Any], Tensor]:
    """Selects the shown output, as in `returned`, the model's return value for `inputs`."""
    if kind != "vectors" or isinstance(getattr(returned, "last_hidden_state", None), Tensor):
        return OUTPUT_OF[kind]
    if isinstance(getattr(returned, "params", None), tuple):  # of the distribution that a forecast is drawn from
        return lambda one: torch.stack(one.params, dim=-1)
    path = output_path(returned, inputs, model)

    def at_places(one: Any) -> Tensor:
        output = output_at(one, path)
        return output.flatten(2).mT if output.dim() == 4 else output  # scores for each place of an image

    return at_places


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
        return "vectors"
    if name.endswith("ForNextSentencePrediction"):
        return "next_sentence"
    logits = _logits(returned)
    if logits.dim() == 2:
        is_by_token = name.endswith("ForPreTraining") and logits.shape == inputs.get("input_ids", logits[:0]).shape
        kinds: dict[str, OutputKind] = {"pixel_values": "image_class", "input_ids": "sequence_class"}
        return "token_class" if is_by_token else kinds.get(main, "audio_class")
    if is_encoder_decoder(model) and (main != "pixel_values" or "decoder_input_ids" in inputs):
        return "pair_next_token"
    if "input_ids" not in inputs and "inputs_embeds" not in inputs:
        if logits.dim() == 3 and main != "pixel_values":
            return "ctc"
        if not has("last_hidden_state"):
            raise InputError(
                f"{name} returns logits {list(logits.shape)}, which belong neither to positions nor to the whole input; read "
                "its backbone, the model without this head."
            )
        return "vectors"
    is_vocabulary = cast(Any, model).get_output_embeddings() is not None or logits.shape[-1] == n_tokens_of(model)
    return "next_token" if is_vocabulary else "token_class"


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


MAX_EXAMPLE_POSITIONS = 16_384
"""Positions of an invented input, whose attention takes memory with their square: of 2048 × 2048 pixels in patches of 16."""


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
    if main == "input_ids" and (not n_tokens or main not in takes):
        raise InputError(f"No example input can be made up for {type(model).__name__}; pass its arguments by name.")
    special = {getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    usual = torch.tensor([token for token in range(n_tokens) if token not in special], dtype=torch.long)
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)

    def tokens(n: int, vocabulary: Tensor = usual) -> Tensor:
        return vocabulary[torch.randint(len(vocabulary), (1, n), generator=draw)]

    def image() -> Tensor:
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 32)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        patch = getattr(vision, "patch_size", None)
        _check_positions(height * width // patch**2 if isinstance(patch, int) else 1, "patches of an image")
        return torch.rand(1, getattr(vision, "num_channels", 3), height, width, generator=draw).to(dtype)

    inputs: Inputs = {}
    if main == "pixel_values":
        inputs[main] = image()
    elif main == "input_features":
        n = 2 * getattr(config, "max_source_positions", 50)
        _check_positions(n // 2, "positions of a sound")
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
    if is_encoder_decoder(model) and not type(model).__name__.endswith(
        ("ForSequenceClassification", "ForQuestionAnswering")
    ):
        n_target_tokens = n_target_tokens_of(model) or n_tokens  # a translator may have two vocabularies
        inputs["decoder_input_ids"] = tokens(N_TARGET, usual[usual < n_target_tokens])
    return inputs


def _check_positions(n: int, what: str) -> None:
    if n > MAX_EXAMPLE_POSITIONS:
        raise InputError(
            f"The configuration asks for {n:,} {what}, and an example may have {MAX_EXAMPLE_POSITIONS:,}; "
            "pass an input of your own."
        )


def _is_dual(model: nn.Module) -> bool:
    """Whether the model compares texts with images and so reads both (Radford et al. 2021)."""
    return hasattr(model, "get_text_features") and hasattr(model, "get_image_features")
