"""A model of the Transformers library as something that can be called and watched: what goes in, what comes out, is it causal.

Whether a model is causal is measured, not read from a name: another last token, and no earlier prediction may move.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from xformer.errors import InputError
from xformer.subjects.foreign.opened import Inputs, OpenedModel
from xformer.subjects.foreign.opening import Verification, open_module

N_SOURCE, N_TARGET = 11, 7
"""Lengths of the inputs that a model is tried with: unlike each other, and unlike most sizes in a model."""


def open_transformers(model: nn.Module) -> tuple[OpenedModel, Verification]:
    """Open a `PreTrainedModel`. Raises `InputError` where its attention cannot be read, or is not what it says it is."""
    model.eval()
    config: Any = model.config
    examples = tuple(example_inputs(model, seed) for seed in (0, 1))
    causal = is_causal(model, examples[0])
    if _says_it_is_causal(model) and not causal:
        raise InputError(
            f"{type(model).__name__} is a class of causal models, but its early predictions change when a late token changes: "
            "its mask was lost, or its configuration is not a decoder's, and what it shows would be wrong."
        )
    return open_module(
        model,
        call,
        logits_of,
        examples,
        ids_of,
        is_causal=causal,
        n_target=(lambda inputs: inputs["decoder_input_ids"].shape[-1])
        if config.is_encoder_decoder
        else (lambda inputs: None),
    )


def _says_it_is_causal(model: nn.Module) -> bool:
    from transformers.models.auto import modeling_auto

    name, config = type(model).__name__, cast(Any, model.config)
    is_causal = name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    fills_gaps = name in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()
    return is_causal and not fills_gaps and not config.is_encoder_decoder


def call(model: nn.Module, inputs: Inputs) -> Any:
    """One forward pass, nothing cached for a later one."""
    return model(**inputs)


def logits_of(output: Any) -> Tensor:
    """The logits that a model returns; of one without a head the last state of its stream."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "prediction_logits", "start_logits", "last_hidden_state"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    values = output if isinstance(output, tuple | list) else output.values()
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if first is None:
        raise InputError("This model returns no tensor that could be shown.")
    return first


def ids_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """The tokens that it reads: the source's, then the target's."""
    names = ("input_ids", "decoder_input_ids")
    return tuple(inputs[name] for name in names if name in inputs)


def example_inputs(model: nn.Module, seed: int = 0) -> Inputs:
    """Something that a model can read: arbitrary tokens, an image or a sound of the size it takes."""
    config: Any = model.config
    draw = torch.Generator().manual_seed(seed)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    main = getattr(model, "main_input_name", "input_ids")
    n_tokens = int(getattr(text, "vocab_size", 0) or 0)
    special = {getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    usual = torch.tensor([token for token in range(n_tokens) if token not in special], dtype=torch.long)

    def tokens(n: int) -> Tensor:
        return usual[torch.randint(len(usual), (1, n), generator=draw)]

    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 32)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        inputs: Inputs = {main: torch.rand(1, getattr(vision, "num_channels", 3), height, width, generator=draw)}
    elif main == "input_features":
        inputs = {main: torch.rand(1, config.num_mel_bins, 2 * config.max_source_positions, generator=draw)}
    else:
        most = int(getattr(text, "max_position_embeddings", N_SOURCE + 4) or N_SOURCE + 4)
        inputs = {"input_ids": tokens(max(2, min(N_SOURCE, most - 3)))}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(N_TARGET)
    if getattr(text, "use_cache", None) is not None:
        inputs["use_cache"] = False
    return inputs


@torch.no_grad()
def is_causal(model: nn.Module, inputs: Inputs) -> bool:
    """Whether no earlier prediction moves when the last token is another one."""
    ids = ids_of(inputs)
    if not ids or getattr(model.config, "is_encoder_decoder", False):
        return False
    other = ids[0].clone()
    other[:, -1] = ids[0][:, 0] if int(ids[0][0, 0]) != int(ids[0][0, -1]) else ids[0][:, 1]
    before, after = (logits_of(call(model, {**inputs, "input_ids": read})) for read in (ids[0], other))
    if before.dim() < 3 or torch.equal(before, after):
        return False
    scale = float(before.abs().max())
    return bool(torch.allclose(before[:, :-1], after[:, :-1], atol=1e-5 * max(scale, 1.0)))
