"""Real-world bugs in transformer implementations, which can be put into any model: `BUGS["no_scale"].broken(model)`.

A broken model is a copy with one mistake, and a `Transformer` like any other: it can be recorded, decoded and trained. Some
bugs behave differently with a key/value cache. `decode(broken, prompt, edits=[WHOLE_RUNS])` recomputes earlier positions at
every step, as code with these bugs usually does.
"""

from xformer import edits
from xformer.doctor.faults.attention import MASK_BUGS, ROLE_BUGS, SOFTMAX_BUGS
from xformer.doctor.faults.bug import CRASHES, Bug, Crash
from xformer.doctor.faults.network import COMPONENT_BUGS, END_BUGS, RESIDUAL_BUGS, TRAINING_BUGS, WEIGHT_BUGS

_ATTENTION = (*SOFTMAX_BUGS, *MASK_BUGS, *ROLE_BUGS)
_NETWORK = (*RESIDUAL_BUGS, *COMPONENT_BUGS, *END_BUGS, *WEIGHT_BUGS, *TRAINING_BUGS)
BUGS: dict[str, Bug] = {bug.name: bug for bug in (*_ATTENTION, *_NETWORK)}

WHOLE_RUNS = edits.scale("logits", 1.0)
"""An edit that changes nothing but makes `decode` run the whole sequence at every step."""

__all__ = ["BUGS", "CRASHES", "WHOLE_RUNS", "Bug", "Crash"]
