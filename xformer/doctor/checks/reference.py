"""The check of a model against a reference whose weights have the same names and sizes: its outputs and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from xformer.doctor.check import CheckContext, Finding, Pair, assume, by, check, sizes_of
from xformer.doctor.checks.rows import with_padding
from xformer.doctor.checks.training import loss_on_its_inputs
from xformer.doctor.localise import localise
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.errors import UnavailableError

SAME = 1e-4
"""Largest difference between the outputs or gradients of two implementations of one function, as rounding differs."""
LONGER = 32
"""The number of tokens of the longest input, if both models read as many."""
REMEDY = "Compare that part with the code of the reference."


@check("reference", "with the weights of the reference, outputs and gradients are those of the reference")
def reference(context: CheckContext) -> Finding:
    """Compare outputs on the input, a padded and a longer one, and then the gradients of all weights."""
    other = context.reference
    assume(
        other is not None, "No module is given as the specification; for example diagnose(model, inputs, spec=other)."
    )
    assert other is not None
    if (difference := _apart_in_weights(context.model.module, other.module)) is not None:
        return difference
    model = with_weights_of(context.model, other.module)
    own = replace(context, model=model)
    own.need_determinism()
    limit, sizes, refused = max(context.limit, SAME), list[tuple[float, Pair]](), ""
    for pair in _pairs(own, other):
        try:
            sizes.append((own.apart(pair), pair))
        except UnavailableError as error:
            refused = str(error)
    assume(sizes, refused)
    size, pair = max(sizes, key=lambda one: one[0])
    if size > limit:
        words = (
            f"With the weights of the reference, the outputs differ {by(size)} from those of the reference{pair.title}."
        )
        place = None
        with suppress(Exception):  # the verdict stands without a location
            place = localise(own, pair)
        return Finding("broken", words, REMEDY, size, context.floor, place=place, cause="other_than_reference")
    apart = _gradients_apart(model, other)
    if apart is not None and apart[1] > 10 * limit:
        name, size = apart
        words = f"With the weights of the reference, the outputs agree, but the gradient of {name} differs {by(size)}."
        remedy = "Look for .detach(), .data or torch.no_grad between that weight and the output."
        return Finding("broken", words, remedy, size, context.floor, cause="other_than_reference")
    what = "outputs and gradients" if apart is not None else "outputs"
    return Finding("holds", f"With the weights of the reference, {what} are those of the reference.", size=size)


def with_weights_of(model: TokenModel, module: nn.Module) -> TokenModel:
    """The model with the weights of another module, which have the same names and sizes."""
    model = model.copied()
    own, given = (
        dict(one.named_parameters(remove_duplicate=False)) | dict(one.named_buffers()) for one in (model.module, module)
    )
    for name in sizes_of(module):
        own[name].data.copy_(given[name])
    return model


def _apart_in_weights(module: nn.Module, other: nn.Module) -> Finding | None:
    """The finding if a weight is missing in one of two modules, or is two in one of them; None if all correspond.

    Raises:
        NotApplicableError: Most weights have other names or sizes.
    """
    own, its = sizes_of(module), sizes_of(other)
    names = [name for name in (own | its) if own.get(name) != its.get(name)]
    words = "The weights of the model do not have the names and sizes of those of the reference"
    assume(
        len(names) < len(own | its) / 2,
        f"{words} (the first is {names[0] if names else ''}), so outputs cannot be compared.",
    )
    if names:
        few = f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
        return Finding("unusual", f"Weights of the model and the reference differ in name or size: {few}.", f"{REMEDY}")
    weights = [dict(one.named_parameters(remove_duplicate=False)) for one in (module, other)]
    first = [{id(one): name for name, one in reversed(of.items())} for of in weights]
    for name in weights[0]:
        one, another = (names_of[id(of[name])] for names_of, of in zip(first, weights, strict=True))
        if one != another:
            shared, where, apart = (one, "model", "reference") if one != name else (another, "reference", "model")
            sentence = f"{name} and {shared} are one weight in the {where}, and two in the {apart}."
            remedy = "Look for one module in several places, as in [layer] * n, or for weights that should be tied."
            return Finding("broken", sentence, remedy, cause="other_than_reference")
    return None


def _pairs(own: CheckContext, other: TokenModel) -> Iterator[Pair]:
    """The input, a longer one, and one with padding, in both models; the title says which."""
    model = own.model
    base = model.base
    at = range(base.read.shape[1]) if model.has_output_by_position else [0]
    yield Pair(base, base, at, second_model=other)
    n = min(model.max_len, other.max_len, LONGER)
    if base.target is None and n > base.read.shape[1] and model.has_output_by_position:
        tokens = model.other_tokens(base.read.repeat(1, -(-n // base.read.shape[1]))[:, :n])
        run = ModelCall(tokens)
        yield Pair(run, run, range(n), title=f", with {n} tokens", second_model=other)
    for left in (False, True) if model.can("valid") and other.can("valid") else ():
        run = with_padding(own, left=left)
        if run is not None and run.valid is not None:
            is_of_tokens = run.target is None and model.has_output_by_position
            places = run.valid[0].nonzero().flatten().tolist() if is_of_tokens else at
            yield Pair(
                run, run, places, title=f", with padding on the {'left' if left else 'right'}", second_model=other
            )


def _gradients_apart(model: TokenModel, other: TokenModel) -> tuple[str, float] | None:
    """The weight whose gradients differ most, and by how much; None if they cannot be computed."""
    gradients = []
    for one in (model, other.copied()):
        one.module.requires_grad_(True)
        named = dict(one.module.named_parameters())
        with torch.enable_grad(), suppress(RuntimeError):  # an in-place operation; the check `gradients` reports it
            found = torch.autograd.grad(
                loss_on_its_inputs(one), [*named.values()], allow_unused=True, materialize_grads=True
            )
            gradients.append(dict(zip(named, found, strict=True)))
    if len(gradients) < 2 or gradients[0].keys() != gradients[1].keys():
        return None
    largest = max(float(one.abs().max()) for one in gradients[1].values())
    sizes = {
        name: float((one - gradients[1][name]).abs().max()) / max(largest, 1e-30) for name, one in gradients[0].items()
    }
    worst = max(sizes, key=lambda name: sizes[name])
    return worst, sizes[worst]
