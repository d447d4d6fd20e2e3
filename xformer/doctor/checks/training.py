"""Checks of training and loading: gradients, tied weights, the tokenizer, and conversions."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xformer.adapters.module_map import Layers
from xformer.doctor.check import (
    CheckContext,
    Finding,
    NotApplicableError,
    Pair,
    assume,
    broken,
    by,
    check,
    count,
    distance,
)
from xformer.doctor.checks.loss import cross_entropy
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import watch
from xformer.model import Transformer

CHANCE = 0.9
"""A loss above this fraction of ln(vocabulary) counts as no better than guessing."""
UNUSED = (
    r"expert|router|mask_token|pooler|"
    r"(^|[._])(to_|w_?|linear_)?(k|keys?)(_proj|_lin|_linear|_layer)?[._]bias$|(^|[._])b_?[kK]$"
)
"""Parameters that may legitimately get no gradient: unused experts, routers, and key biases (the softmax cancels them)."""
ROUTER = r"(.*)\bgate\."
"""A gate: the router of the experts beside it, or else a part of the network that every input uses."""
OPEN = 0.1
"""The value of weights that start at 0, as the factors of residuals in ReZero, when gradients are computed again."""
USUAL = (
    r"(attn|attention|mlp|ffn|feed_forward)\.(q|k|v|o|out|query|key|value|gate|up|down|fc\w*|c|dense|qkv|\d+)(_proj|_attn|_fc)?\."
    r"(weight|bias)$"
)
"""Parameters that every input uses. Longer inputs may use others; those must get a gradient if another layer's do."""


@check("gradients", "every parameter gets a gradient")
def gradients(context: CheckContext) -> Finding:
    """Find parameters of layers and embeddings whose gradient of the cross-entropy is missing or 0 everywhere."""
    return _gradients(context)


def _with_open_gates(model: TokenModel) -> TokenModel:
    """A copy in which no weight is 0 everywhere."""
    model = model.copied()
    for one in model.module.parameters():
        if not one.any():
            one.data.fill_(OPEN)
    return model


def _gradients(context: CheckContext, *, started: bool = False) -> Finding:
    """The finding about the gradients; `started`: weights that start at 0 are no longer 0."""
    model = context.model
    if not model.reads_images:
        shortest = min(model.base.read.shape[1], model.base.tokens.shape[1])
        assume(
            shortest > 2, "The input is too short, so queries and keys may get no gradient; give at least three tokens."
        )
    if not any(one.requires_grad for one in model.module.parameters()):  # frozen when it was opened
        model = model.copied()
        model.module.requires_grad_(True)
    named = {name: one for name, one in model.module.named_parameters() if one.requires_grad}
    with torch.enable_grad():
        loss = loss_on_its_inputs(model)
        if not loss.requires_grad:
            sentence = "No parameter gets a gradient: the output is detached from all of them."
            return broken(sentence, "Look for torch.no_grad or .detach() around the whole forward pass.")
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    is_started = any(one is not None and not one.any() for one in found) and not started
    if is_started and any(not one.any() for one in named.values()):  # gates that start at 0 let no gradient through
        return _gradients(replace(context, model=_with_open_gates(model)), started=True)
    used = {name for name in named if not _is_unused(name, named)}
    silent = [
        name
        for name, gradient in zip(named, found, strict=True)
        if name in used and (gradient is None or not bool(gradient.any()))
    ]
    tables = {id(one.weight) for one in model.module.modules() if isinstance(one, nn.Embedding)}
    got = {re.sub(r"\d+", "#", name) for name in used if name not in silent}
    wrong = [
        name
        for name in silent
        if id(named[name]) in tables
        or (re.search(r"\.\d+\.", name) and (re.sub(r"\d+", "#", name) in got or re.search(USUAL, name)))
    ]
    with torch.enable_grad():
        is_slope = bool(wrong) or not isinstance(model.module, Transformer) or _is_slope(model)
    if not is_slope:
        sentence = "The gradient of the weights disagrees with the finite difference of the outputs."
        return broken(
            sentence, "Look for .detach(), .data or a custom backward pass between the weights and the outputs."
        )
    gates = ", once weights that start at 0 have another value" if started else ""
    rest = f" ({len(silent)} others get none: {', '.join(silent[:3])})" if silent else ""
    holds = Finding("holds", f"All {len(used) - len(silent)} parameters of the layers get a gradient{gates}{rest}.")
    if not wrong and (not silent or model.is_transformers):
        return holds
    layers = Layers(model.module, [one.path for one in watch(model, model.shortened(16))])
    inside = [name for name in silent if layers.of_path(name) is not None]
    if not wrong and inside:
        words = f"{count(len(inside), 'parameter')} of the layers {'gets' if len(inside) == 1 else 'get'} no gradient"
        remedy = "If this is not meant: look for .detach() after these weights, and for weights that are never used."
        return Finding("unusual", f"{words}: {', '.join(inside[:4])}{' …' if len(inside) > 4 else ''}.", remedy)
    if not wrong:
        return holds
    in_layers = [name for name in wrong if layers.of_path(name) is not None]
    last = (in_layers or wrong)[-1]  # the graph is cut right after the last parameter without a gradient
    few = f"{', '.join(silent[:4])}{' …' if len(silent) > 4 else ''}"
    return broken(
        f"{count(len(silent), 'parameter')} {'gets' if len(silent) == 1 else 'get'} no gradient: {few}.",
        "Look for .detach(), .data, torch.no_grad or an argmax between these parameters and the loss, and for modules that are "
        "created but never called.",
        layer=layers.of_path(last),
        cause=_part_of(last),
    )


def _is_unused(name: str, named: Collection[str]) -> bool:
    """Whether a parameter may legitimately get no gradient."""
    gate = re.match(ROUTER, name)
    is_router = gate is not None and any(one.startswith(gate[1]) and "expert" in one for one in named)
    return is_router or re.search(UNUSED, name) is not None


def _is_slope(model: TokenModel) -> bool:
    """Return whether the gradient along a random direction of all weights agrees with finite differences, in float64."""
    module, base = model.copied(torch.float64).module, model.base.each(lambda one: one.to(model.device))
    weights, draw = dict(module.named_parameters()), torch.Generator().manual_seed(0)
    ways = {name: torch.randn(one.shape, generator=draw, dtype=one.dtype).to(one) for name, one in weights.items()}
    sizes = {name: float(one.detach().norm().clamp(min=1.0)) / one.numel() ** 0.5 for name, one in weights.items()}

    def outputs(step: Tensor) -> Tensor:
        moved = {name: one + step * sizes[name] * ways[name] for name, one in weights.items()}
        return torch.func.functional_call(module, moved, (base.tokens, base.target))

    start = torch.zeros((), dtype=torch.float64, device=model.device, requires_grad=True)
    options: dict[str, Any] = {"eps": 1e-7, "fast_mode": True, "check_undefined_grad": False, "raise_exception": False}
    return torch.autograd.gradcheck(outputs, (start,), **options)


def loss_on_its_inputs(model: TokenModel) -> Tensor:
    """The cross-entropy of the outputs with the tokens that were read as the right ones, with its graph."""
    logits = _differentiable_logits(model, model.base)
    labels = model.base.read[:, : logits.shape[1]] % logits.shape[-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _differentiable_logits(model: TokenModel, run: ModelCall) -> Tensor:
    """The outputs of a run, with their graph."""
    if isinstance(model.module, Transformer):
        run = run.each(lambda one: one.to(model.device))
        return model.module(run.tokens, run.target).cpu()
    return model.output_of(model.call(model.arguments(run)), run).cpu()


def _part_of(name: str) -> str:
    """Return the key of `CAUSES` that fits a parameter's name."""
    parts = {"q": r"q_proj|query", "k": r"k_proj|key", "v": r"v_proj|value", "norm": r"norm|ln"}
    parts |= {"out": r"o_proj|out_proj|weight_out", "feed-forward": r"mlp|ffn|fc|feed"}
    return next((part for part, words in parts.items() if re.search(words, name)), name)


@check("tied_weights", "weights that the configuration ties are equal, and none are left at random initial values")
def tied_weights(context: CheckContext) -> Finding:
    """Compare the output layer with the embedding, and the loss on the text with guessing."""
    model = context.model
    is_tied = _is_tied(model)
    tables = _ends_of(model)
    if is_tied and tables is not None and not torch.equal(*tables):
        sentence = "The configuration ties the output layer to the embedding, but their weights differ."
        remedy = "Call tie_weights() after loading or resizing, and save both or neither."
        return broken(sentence, remedy, distance(*tables), 0.0, cause="output")
    tokens = model.base.tokens
    if model.text and model.causal and model.base.target is None and tokens.shape[1] >= 5:
        loss, guess = cross_entropy(model.base_logits.float(), tokens, 1), math.log(model.n_tokens)
        if loss > CHANCE * guess:
            sentence = (
                f"The loss on the text is {loss:.2f}, and guessing among {model.n_tokens} tokens gives {guess:.2f}: some "
                "weights are random, or the tokenizer belongs to another model."
            )
            remedy = "Check the loader's report of missing and unexpected weights, especially of the output layer."
            return broken(sentence, remedy, loss / guess, CHANCE, cause="output")
        tied = "The tied weights are equal, and the" if is_tied else "The"
        return Finding("holds", f"{tied} loss on the text is {loss:.2f}; guessing gives {guess:.2f}.")
    if is_tied is None or tables is None:
        raise NotApplicableError("No configuration declares tied weights, and there is no text to score.")
    return Finding("holds", "The tied weights are equal." if is_tied else "No weights are tied.")


def _is_tied(model: TokenModel) -> bool | None:
    """Return whether the configuration ties the output layer to the embedding; None if it does not declare it."""
    name = "tied_output" if isinstance(model.module, Transformer) else "tie_word_embeddings"
    for owner in (model.config, getattr(model.module, "config", None)):
        if isinstance(getattr(owner, name, None), bool):
            return getattr(owner, name)
    return None


def _ends_of(model: TokenModel) -> tuple[Tensor, Tensor] | None:
    """Return the weights of the embedding and of the output layer, if both exist and have the same shape."""
    module: Any = model.module
    if model.is_transformers:
        ends = [module.get_input_embeddings(), module.get_output_embeddings()]
    else:
        tables = [one for one in module.modules() if isinstance(one, nn.Embedding)]
        layers = [one for one in module.modules() if isinstance(one, nn.Linear)]
        ends = [*tables[:1], *layers[-1:]]
    weights = [one.weight for one in ends if isinstance(getattr(one, "weight", None), Tensor)]
    return (weights[0], weights[1]) if len(weights) == 2 and weights[0].shape == weights[1].shape else None


@check("special_tokens", "the text has one start token, and every special token is a single token of the model")
def special_tokens(context: CheckContext) -> Finding:
    """Check the tokens of the input and of the chat template."""
    model, tokenizer = context.model, context.model.tokenizer
    assume(hasattr(tokenizer, "all_special_tokens"), "There is no tokenizer.")
    wrong = next(_wrong_tokens(model, tokenizer), None)
    if wrong is not None:
        return Finding("broken", *wrong)
    return Finding("holds", "The text has one start token, and every special token is a single token of the model.")


def _wrong_tokens(model: TokenModel, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """Yield the sentence and the remedy of each fault."""
    first = getattr(tokenizer, "bos_token_id", None)
    ids = model.base.tokens[0].tolist()
    if first is not None and ids[:2] == [first, first]:
        yield (
            f"The input starts with {tokenizer.bos_token} twice.",
            "Text from the chat template already contains the start token: tokenize it with add_special_tokens=False.",
        )
    for token in tokenizer.all_special_tokens:
        split = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(split) != 1 or split[0] >= model.n_tokens:
            yield (
                f"The special token {token} becomes {split[:6]}; the model has {model.n_tokens} tokens.",
                "Resize the embedding to the tokenizer, or use the tokenizer that the model was trained with.",
            )
    template = getattr(tokenizer, "chat_template", None)
    if template and first is not None:
        turn = [{"role": "user", "content": "Hello"}]
        ids = tokenizer.apply_chat_template(turn, tokenize=True, return_dict=True)["input_ids"]
        if ids[:2] == [first, first]:
            yield f"A chat starts with {tokenizer.bos_token} twice.", "Remove the start token from the chat template."


@check("conversion", "a converted or quantised copy gives the outputs of its original")
def conversion(context: CheckContext) -> Finding:
    """Compare with the model given as `original`; a copy of lower precision may differ by its own rounding."""
    model = context.model
    if model.original is None:
        raise NotApplicableError("No original was given; for example diagnose(model, inputs, original=other).")
    other = TokenModel.of(model.original, model.base.tokens, causal=model.causal)
    eps = max(one.eps for one in (model, other))
    at = range(model.base.read.shape[1]) if model.has_output_by_position else [0]
    pair = Pair(model.base, model.base, at, second_model=other)
    size = context.apart(pair)
    limit = max(context.limit, 64 * eps)
    if size <= limit:
        return Finding("holds", "The model gives the same outputs as its original.", size=size, floor=context.floor)
    sentence = f"The outputs differ from the original's {by(size)}."
    remedy = "Compare module by module: xformer.compare_runs(original, model, inputs)."
    return Finding("broken", sentence, remedy, size, context.floor, pair)
