"""The equations of a transformer as identities of its trace: each step is computed again from what went into it.

    resid₀ = embed + positions     in = x or n(x)        q = in W_Q + b  (turned)      scores = q·k/√d_head + bias
    pattern = softmax(scores)      z = pattern v         out = z W_O + b               x′ = x + out  or  n(x + out)
    pre = in W₁ + b₁               post = act(pre)       out = post W₂ + b₂            logits = n(x) W + b

With the model at hand its weights are put in; from a trace alone an affine step is one that fits, and where the rows are too
few to tell, it counts as not looked at. Any of them broken is an error whatever it is called; the checks that know a mistake by
name go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xformer.diagnosis.attention import masks, mixes, outputs, patterns, projections, roles, scores
from xformer.diagnosis.case import Case, Finding, Measurement, error
from xformer.diagnosis.ends import positions, turns
from xformer.diagnosis.stream import (
    activations,
    between_layers,
    embeddings,
    final_norms,
    first_streams,
    hidden,
    inputs,
    logits,
    second,
    sums,
)


@dataclass(frozen=True)
class Identity:
    """One equation, the name of its being broken, and the places of a trace where it can be measured."""

    kind: str
    equation: str
    measure: Callable[[Case], Iterator[Measurement]]


IDENTITIES = (
    Identity("wrong-embedding", "a token has one vector: its row of the table", embeddings),
    Identity("wrong-positions", "a position has one vector, counted from its sequence's first token", positions),
    Identity("wrong-start", "the first layer gets embedding + position", first_streams),
    Identity("wrong-order", "each layer goes on from what the one before left", between_layers),
    Identity("wrong-input", "a sublayer reads the stream (pre-norm: the normalised stream)", inputs),
    Identity("wrong-projection", "q, k, v = x W + b, each of its own row and stream", projections),
    Identity("wrong-turn", "what turns queries and keys, and the bias of scores, are those of the positions", turns),
    Identity("one-role-twice", "q, k and v are three projections", roles),
    Identity("wrong-scores", "scores = q·k/√d_head (+ bias), −∞ where masked", scores),
    Identity("wrong-mask", "the mask is that of the configuration and the padding", masks),
    Identity("wrong-pattern", "pattern = softmax(scores) over the keys", patterns),
    Identity("wrong-mix", "z = pattern · v", mixes),
    Identity("wrong-output", "the attention’s output = z W_O + b, heads joined in order", outputs),
    Identity("wrong-sum", "the stream after a sublayer = what was there + its output (post-norm: normalised)", sums),
    Identity("wrong-hidden", "feed-forward before = x W₁ + b₁", hidden),
    Identity("wrong-activation", "feed-forward after = the configured nonlinearity of it", activations),
    Identity("wrong-feed-forward", "feed-forward output = after · W₂ + b₂", second),
    Identity("wrong-final-norm", "the last norm stands where it is configured, and only there", final_norms),
    Identity("wrong-logits", "logits = final stream · W + b", logits),
)


def check_identities(case: Case) -> tuple[list[Finding], dict[str, int]]:
    """One finding for each identity and place where it is broken, and in how many places each was looked at."""
    found, looked = [], {}
    for identity in IDENTITIES:
        excesses = [(at, at.excess) for at in identity.measure(case) if at.excess is not None]
        looked[identity.kind] = len(excesses)
        for at, excess in excesses:
            if excess > 1:
                sentence = f"Right is: {identity.equation}. {at.why or 'That does not hold here.'}"
                numbers = {} if excess == float("inf") else {"off_by_times_rounding": excess}
                found.append(error(identity.kind, at.place, sentence, numbers))
    return found, looked
