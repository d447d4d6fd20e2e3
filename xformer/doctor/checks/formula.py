"""The check of the formulas that attentions and blocks compute, which names what is unusual in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xformer.doctor.check import CheckContext, FaultLocation, Finding, assume, check, count
from xformer.doctor.formulas import BREAKS_A_RULE, CAUSES_OF_FORMULAS, Formula, against, unread
from xformer.doctor.formulas.masks import NO_KEY
from xformer.doctor.formulas.positions import NONE, OF_STACK
from xformer.doctor.formulas.specification import in_layers

UNREAD = "Not checked, because no attention can be followed from its queries and keys to its weights."
REMEDIES = {
    "scale": "the scores should be {usual}",
    "projections": "make q, k and v with three weights, or with three slices of one",
    "positions": "the positions should be {usual}",
    "mask": "a query should see {usual}",
    "softmax": "the weights should be {usual}, dim=-1 of scores [batch, head, query, key]",
    "heads": "write it so that {usual}",
    "key/value heads": "{usual}: repeat keys and values with repeat_interleave, not repeat",
    "bias": "the scores should be {usual}",
    "rotary": "write it as {usual}",
    "norm": "the norm should be {usual}",
    "residual": "the sum should be {usual}",
    "feed_forward": "the network should be {usual}, or have another function between its projections",
    "dropout": "apply {usual}",
}
"""How each part should read."""


@check(
    "formula",
    "the code computes x + softmax(q·kᵀ / √d_head)·v and x + W₂·relu(W₁·x), with projections of its own and concatenated heads",
)
def formula(context: CheckContext) -> Finding:
    """Read the formula of each attention and block from its code. What is legal is a fault only against a specification."""
    found = tuple(against(context.formulas, context.spec)) if context.spec else context.formulas
    assume(found, "No attention was found whose formula can be read.")
    causes = list(dict.fromkeys(one.cause for one in found if one.cause))
    causes.sort(key=lambda cause: cause not in BREAKS_A_RULE)
    read = {(one.layer, one.path) for one in found if one.part in ("scale", "mask", "softmax", "projections")}
    rest = ""
    if isinstance(context.spec, tuple) and not context.has_same_weights:  # else `reference` compares all of it
        rest = unread(found, context.spec)
    if not causes and not read:
        return Finding("not applicable", f"{UNREAD} {rest}".rstrip(), formulas=found)
    if not causes and rest:
        return Finding("could not run", rest, formulas=found)
    if not causes:
        named = dict.fromkeys(one.formula for one in found if one.part == "scale")
        scores = f": scores {' and '.join(named)}" if named else ""
        return Finding("holds", f"Nothing is unusual in {count(len(read), 'attention')}{scores}.", formulas=found)
    first = next(one for one in found if one.cause == causes[0])
    sentence = " ".join([*(_sentence([one for one in found if one.cause == cause]) for cause in causes), rest]).rstrip()
    at = f" in `{first.text}` ({first.line})" if first.text else ""
    is_broken = bool(context.spec) or causes[0] in BREAKS_A_RULE
    words = REMEDIES[first.part].format(usual=first.usual)
    if first.cause == "mask_not_applied" and context.model.mask_left_out:
        words = f"pass the argument {context.model.mask_left_out}, which the call leaves out; {words}"
    remedy = f"{words[0].upper()}{words[1:]}{at}." if is_broken else f"If this is not meant: {words}{at}."
    finding = Finding("unusual", sentence, remedy, cause=causes[0], line=first.line, formulas=found)
    if not is_broken:
        return finding
    place = None if first.layer is None else FaultLocation("", "", first.layer)
    return replace(finding, verdict="broken", place=place)


def _sentence(same: Sequence[Formula]) -> str:
    """What is unusual, with its layers and its line, in one sentence."""
    first = same[0]
    layers = sorted({one.layer for one in same if one.layer is not None})
    where = f"{in_layers(layers)}, " if layers else ""
    if first.part == "positions" and OF_STACK in first.formula:  # one sentence for each stack
        where = " and ".join(f"in the {one.formula.partition(OF_STACK)[2]}" for one in same) + ", "
    line = f" ({first.line})" if first.line else ""
    what = CAUSES_OF_FORMULAS[first.cause]
    computed = f"{first.formula} instead of {first.usual}" if what.endswith("reference") else first.formula
    rest = "" if computed.startswith((NONE, NO_KEY)) else f": {computed}"
    text = f"{where}{what}{rest}{line}."
    return text[0].upper() + text[1:]
