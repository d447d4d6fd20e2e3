"""Checks of a single input: finite outputs, determinism, agreement of attention backends, and the model's equations."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from xformer.doctor.check import CheckContext, Finding, NotApplicableError, Pair, assume, broken, by, check, distance
from xformer.doctor.equations.report import check_model
from xformer.doctor.localise import first_not_finite
from xformer.doctor.token_model import TokenModel
from xformer.formatting import error_message
from xformer.layer_path import LayerPath
from xformer.model import Transformer

SWITCHES = (
    "flash",
    "use_flash",
    "use_flash_attention",
    "flash_attention",
    "use_sdpa",
    "fused",
    "grad_checkpointing",
    "gradient_checkpointing",
)
"""Attributes with which hand-written models switch between two paths that compute the same."""
BACKENDS = ("eager", "sdpa", "flex_attention")
"""The attention implementations of Transformers that come with PyTorch."""


@check("finite", "every activation is finite")
def finite(context: CheckContext) -> Finding:
    """Check the outputs; if they are not finite, locate the first activation that is not."""
    model = context.model
    if bool(model.base_logits.isfinite().all()):
        return Finding("holds", "All outputs are finite.")
    place = first_not_finite(model, model.base)
    name = "the output" if place is None else place.name
    sentence = f"The outputs contain NaN or infinity; the first activation that does is {name}."
    remedy = "Look for weights that are not finite, a division by 0, or an overflow of the weights' type."
    return Finding("broken", sentence, remedy, float("inf"), context.floor, place=place)


@check("determinism", "two runs on the same input give the same output")
def determinism(context: CheckContext) -> Finding:
    """Compare two calls in eval mode with different random seeds."""
    base, size = context.model.base, context.change_when_repeated
    if size <= context.limit:
        return Finding("holds", "Repeating an input gives the same output.", size=size, floor=context.floor)
    sentence = f"Repeating the same input changes the outputs {by(size)}."
    remedy = (
        "Look for dropout or other randomness that ignores eval mode (F.dropout without training=self.training), and for "
        "state that persists between calls."
    )
    return Finding("broken", sentence, remedy, size, context.floor, Pair(base, replace(base, seed=1), context.outputs))


@check("backends", "every attention backend gives the same output")
def backends(context: CheckContext) -> Finding:
    """Compare the model's default backend with the others that it has."""
    model, base = context.model, context.model.base
    others, failed = other_backends(model)
    pairs = [Pair(base, other.base, context.outputs, title=name, second_model=other) for name, other in others.items()]
    sizes = []
    for pair, (name, other) in zip(list(pairs), others.items(), strict=True):
        try:
            sizes.append(distance(model.base_logits[0], _logits(name, other)[0]))
        except Exception as error:  # a backend may need another machine or library
            failed.append(f"{name} ({error_message(error, 60)})")
            pairs.remove(pair)
    assume(pairs, "The model has only one attention backend." if not failed else f"Not run: {', '.join(failed)}.")
    names = ", ".join(pair.title for pair in pairs)
    rest = f" Not run: {', '.join(failed)}." if failed else ""
    holds = f"The other backends ({names}) give the same output.{rest}"
    broken = "With the attention backend {title}, the output changes {by}."
    remedy = "Check the arguments passed to that backend: the mask, the scale, is_causal, and dropout."
    return context.finding(pairs, sizes, holds, broken, remedy)


def _logits(name: str, model: TokenModel) -> torch.Tensor:
    if name == "the plain kernel":
        with sdpa_kernel(SDPBackend.MATH):
            return model.logits(model.base)
    return model.logits(model.base)


def other_backends(model: TokenModel) -> tuple[dict[str, TokenModel], list[str]]:
    """Return the model with each of its other backends, and the names of backends that could not be set."""
    if isinstance(model.module, Transformer):
        recorded = replace(model, base=replace(model.base, recorded=True))
        return {"the recorded steps": recorded}, []
    if not model.is_transformers:
        switched = {"the plain kernel": model}
        for switch in SWITCHES:
            if any(isinstance(getattr(one, switch, None), bool) for one in model.module.modules()):
                other = model.shared()
                for one in other.module.modules():
                    if isinstance(getattr(one, switch, None), bool):
                        setattr(one, switch, not getattr(one, switch))
                switched[f"{switch} switched"] = other
        return switched, []
    others, failed = {}, []
    own = getattr(model.module.config, "_attn_implementation", None)
    for name in BACKENDS:
        if name == own:
            continue
        if name == "flex_attention" and next(model.module.parameters()).device.type != "cuda":
            failed.append("flex_attention (needs a GPU)")
            continue
        other = model.shared()
        try:
            other.module.set_attn_implementation(name)  # pyright: ignore[reportCallIssue]
            others[name] = other
        except (ValueError, ImportError, AttributeError, RuntimeError):
            failed.append(name)
    return others, failed


@check("equations", "every step matches its equation")
def equations(context: CheckContext) -> Finding:
    """Report the first mistake that `xformer.doctor.equations` finds."""
    model = context.model.module
    if not isinstance(model, Transformer):
        raise NotApplicableError("Only the equations of xformer models are known.")
    report = check_model(model)
    wrong = [one for one in report.mistakes if one.severity != "note"]
    if not wrong:
        return Finding("holds", f"{len(report.checked)} equations hold at every layer.")
    first = wrong[0]
    site = LayerPath.find(first.where[0])
    found = re.search(r"head (\d+)|attn\.(\d+)$", first.where[0])
    layer, head = None if site is None else site.layer, None if found is None else int(found[1] or found[2])
    remedy = f"This is the bug {first.kind!r}; the Bug lab shows it next to a correct model."
    return broken(first.sentence, remedy, layer=layer, head=head, cause=first.kind)
