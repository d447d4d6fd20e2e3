"""The bugs that people really make when they build a transformer, each one switchable: `BUGS["no-scale"].broken(model)`.

A broken model is a `Transformer` like any other, a copy with one thing wrong: it can be recorded, decoded and trained.
What a bug sees while decoding depends on whether earlier positions are computed again; `WHOLE_RUNS` makes `decode` do so,
as the code that has these bugs does: `decode(broken, prompt, edits=[WHOLE_RUNS])`.
"""

from xformer import edits
from xformer.bugs.attention import MASK_BUGS, ROLE_BUGS, SOFTMAX_BUGS
from xformer.bugs.bug import CRASHES, Bug, Crash
from xformer.bugs.network import COMPONENT_BUGS, END_BUGS, RESIDUAL_BUGS, TRAINING_BUGS, WEIGHT_BUGS

BUGS: dict[str, Bug] = {
    bug.name: bug
    for bugs in (
        SOFTMAX_BUGS,
        MASK_BUGS,
        ROLE_BUGS,
        RESIDUAL_BUGS,
        COMPONENT_BUGS,
        END_BUGS,
        WEIGHT_BUGS,
        TRAINING_BUGS,
    )
    for bug in bugs
}

WHOLE_RUNS = edits.scale("logits", 1.0)
"""An edit that changes nothing, and under which `decode` runs the whole sequence anew at each step."""

__all__ = ["BUGS", "CRASHES", "WHOLE_RUNS", "Bug", "Crash"]
