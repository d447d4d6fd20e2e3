"""Every step of a model of xformer against its equation (`xformer.diagnosis`)."""

from __future__ import annotations

import re

from xformer.diagnosis.diagnose import diagnose, examination
from xformer.doctor.check import Exam, Outcome, check, not_applicable
from xformer.model import Transformer
from xformer.site import Site


@check("equations", "every step computes what its equation says")
def equations(exam: Exam) -> Outcome:
    """The first finding of the step-by-step examination; the others follow from it or stand beside it."""
    model = exam.subject.module
    if not isinstance(model, Transformer):
        return not_applicable("The steps of this model are not those of xformer.")
    inputs = examination(model.config)
    report = diagnose(inputs.record(model), valid=inputs.valid, target_valid=inputs.target_valid, model=model)
    wrong = [one for one in report.findings if one.severity != "note"]
    if not wrong:
        return Outcome("holds", f"{len(report.checked)} equations hold at every layer.")
    first = wrong[0]
    site = Site.find(first.where[0])
    head = re.search(r"head (\d+)|attn\.(\d+)$", first.where[0])
    return Outcome(
        "broken",
        first.sentence,
        f"This is the bug {first.kind!r}; the Bug lab shows it beside a right model.",
        layer=None if site is None else site.layer,
        head=None if head is None else int(head[1] or head[2]),
        cause=first.kind,
    )
