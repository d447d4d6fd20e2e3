"""Assertions for your own test suite: invariants that any transformer must satisfy, whatever its weights.

    from xformer.testing import assert_causal, assert_cache_consistent


    def test_model():
        assert_causal(model, tokens)
        assert_cache_consistent(model, tokens)

Each raises `AssertionError` with the finding, its location and a remedy. An assertion that does not apply to a model (it takes
no mask, or has no cache) raises too, because a test that checks nothing should not pass.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from xformer.doctor.check import CHECKS, CheckContext
from xformer.doctor.diagnose import run_check, token_model_of
from xformer.masks.checking import check as check_mask


class _Assertion(Protocol):
    def __call__(self, model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None: ...


_DOCSTRING = """Assert that {rule}.

Args:
    model: Any module that maps token ids to logits.
    inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
    tokenizer: The tokenizer, if `inputs` is a text.

Raises:
    AssertionError: {violation}

Example:
    >>> import xformer
    >>> from xformer.testing import {name}
    >>> {name}(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
"""


def _assertion(
    name: str, checks: tuple[str, ...], rule: str, violation: str, causal: bool | None = None, spec: str = ""
) -> _Assertion:
    """Return a documented function that raises unless the checks of the doctor that apply to a model hold."""

    def assertion(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
        context = CheckContext(token_model_of(model, inputs, tokenizer, causal=causal), spec)
        found = [run_check(context, CHECKS[check]) for check in checks]
        broken = [one for one in found if one.verdict == "broken"]
        if broken:
            raise AssertionError("\n".join(f"{one.check}: {one.whole_sentence} {one.remedy}" for one in broken))
        if not any(one.verdict == "holds" for one in found) or any(one.verdict == "could not run" for one in found):
            unchecked = [one for one in found if one.verdict != "holds"]
            raise AssertionError("\n".join(f"{one.check} was not checked: {one.sentence}" for one in unchecked))

    assertion.__name__ = assertion.__qualname__ = name
    assertion.__doc__ = _DOCSTRING.format(name=name, rule=rule, violation=violation)
    return assertion


assert_causal = _assertion(
    "assert_causal",
    ("causality", "causality_with_attention"),
    "changing a later token changes no earlier output, with and without attention weights returned",
    "The model attends to later tokens; the message has layer, head and cell.",
    causal=True,
)
assert_padding_invariant = _assertion(
    "assert_padding_invariant",
    ("right_padding", "left_padding"),
    "padding on the right, or on the left if the model takes positions, changes no output of a token",
    "Padding changes an output.",
)
assert_cache_consistent = _assertion(
    "assert_cache_consistent",
    ("cache",),
    "decoding with a key/value cache gives the outputs of the full run, wherever the input is split",
    "The cache changes an output.",
)
assert_backends_agree = _assertion(
    "assert_backends_agree",
    ("backends",),
    "all attention backends of the model give the same output",
    "A backend changes the output.",
)
assert_batch_invariant = _assertion(
    "assert_batch_invariant",
    ("batch",),
    "an input gives the same output alone and in a batch",
    "Other rows of the batch change an output.",
)
assert_usual_attention = _assertion(
    "assert_usual_attention",
    ("formula",),
    "each attention computes softmax(q·kᵀ / √d_head)·v, with projections of its own and concatenated heads",
    "An attention computes something else; the message has the formula and its line.",
    spec="attention",
)


def assert_mask(mask: Any, rule: Any, **options: Any) -> None:
    """Assert that a mask is exactly what a rule says, in every cell.

    Args:
        mask: A mask function, a BlockMask, a tensor, or anything else that `masks.as_mask` takes.
        rule: A rule, such as `masks.causal() & masks.window(512)`, or the expected mask.
        options: The other arguments of `masks.check`, such as n_query=2048 for a function.

    Raises:
        AssertionError: A cell differs; the message has the number of cells and the first one, for both directions.

    Example:
        >>> from xformer import masks
        >>> from xformer.testing import assert_mask
        >>> assert_mask(lambda b, h, q, k: q >= k, masks.causal(), n_query=2048)
    """
    found = check_mask(mask, rule, **options)
    if not found.holds:
        raise AssertionError(found.sentence)
