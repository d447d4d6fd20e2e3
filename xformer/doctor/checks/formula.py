"""The check of the formula that each attention computes, which names what is unusual in it."""

from __future__ import annotations

from collections.abc import Sequence

from xformer.doctor.check import CheckContext, Finding, assume, check, count
from xformer.doctor.checks.attention import shortened
from xformer.doctor.formulas import BREAKS_A_RULE, CAUSES_OF_FORMULAS, Formula, formulas
from xformer.doctor.watch import stepwise

REMEDIES = {
    "scale": "the scores should be {usual}",
    "projections": "make q, k and v with three weights, or with three slices of one",
    "positions": "the positions should be {usual}",
    "mask": "a query should see {usual}",
    "heads": "concatenate the heads, as z.transpose(1, 2).flatten(2) does",
}
"""How each part should read."""


@check(
    "formula", "each attention computes softmax(q·kᵀ / √d_head)·v, with projections of its own and concatenated heads"
)
def formula(context: CheckContext) -> Finding:
    """Read the formula of each attention from its code. What is unusual is a fault only against a specification."""
    model = stepwise(context.model)
    found = tuple(formulas(model, shortened(model, 16)))
    assume(found, "No attention was found whose formula can be read.")
    causes = list(dict.fromkeys(one.cause for one in found if one.cause and one.cause not in BREAKS_A_RULE))
    if not causes:
        named = dict.fromkeys(one.formula for one in found if one.part == "scale")
        scores = f": scores {' and '.join(named)}" if named else ""
        return Finding(
            "holds",
            f"Nothing is unusual in {count(len({one.path for one in found}), 'attention')}{scores}.",
            formulas=found,
        )
    first = next(one for one in found if one.cause == causes[0])
    sentence = " ".join(_sentence([one for one in found if one.cause == cause]) for cause in causes)
    at = f" in `{first.text}` ({first.line})" if first.text else ""
    remedy = f"{'' if context.spec else 'If this is not meant: '}{REMEDIES[first.part].format(usual=first.usual)}{at}."
    verdict = "broken" if context.spec else "unusual"
    return Finding(verdict, sentence, remedy, cause=causes[0], line=first.line, formulas=found)


def _sentence(same: Sequence[Formula]) -> str:
    """What is unusual, with its layers and its line, in one sentence."""
    first = same[0]
    layers = sorted({one.layer for one in same if one.layer is not None})
    where = f"In {'layer' if len(layers) == 1 else 'layers'} {', '.join(map(str, layers))}, " if layers else ""
    line = f" ({first.line})" if first.line else ""
    what = CAUSES_OF_FORMULAS[first.cause]
    text = f"{where}{what}: {first.formula}{line}."
    return text[0].upper() + text[1:]
