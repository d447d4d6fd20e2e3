"""Assertions for your own test suite: invariants that any transformer must satisfy, whatever its weights.

    from xformer.testing import assert_causal, assert_cache_consistent


    def test_model():
        assert_causal(model, tokens)
        assert_cache_consistent(model, tokens)

Each raises `AssertionError` with the finding, its location and a remedy. An assertion that does not apply to a model (it takes
no mask, or has no cache) raises too, because a test that checks nothing should not pass.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from xformer.doctor.check import CHECKS, Exam
from xformer.doctor.diagnose import examine, subject_of


def assert_causal(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
    """Assert that changing a later token changes no earlier output, with and without attention weights returned.

    Args:
        model: Any module that maps token ids to logits.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text.

    Raises:
        AssertionError: The model attends to later tokens; the message has layer, head and cell.

    Example:
        >>> import xformer
        >>> from xformer.testing import assert_causal
        >>> assert_causal(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
    """
    _assert(model, inputs, tokenizer, ("causality", "causality_with_attention"), causal=True)


def assert_padding_invariant(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
    """Assert that padding on the right, or on the left if the model takes positions, changes no output of a token.

    Args:
        model: Any module that maps token ids to logits.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text.

    Raises:
        AssertionError: Padding changes an output.

    Example:
        >>> import xformer
        >>> from xformer.testing import assert_padding_invariant
        >>> assert_padding_invariant(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
    """
    _assert(model, inputs, tokenizer, ("right_padding", "left_padding"))


def assert_cache_consistent(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
    """Assert that decoding with a key/value cache gives the outputs of the full run, wherever the input is split.

    Args:
        model: Any module that maps token ids to logits.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text.

    Raises:
        AssertionError: The cache changes an output.

    Example:
        >>> import xformer
        >>> from xformer.testing import assert_cache_consistent
        >>> assert_cache_consistent(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
    """
    _assert(model, inputs, tokenizer, ("cache",))


def assert_backends_agree(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
    """Assert that all attention backends of the model give the same output.

    Args:
        model: Any module that maps token ids to logits.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text.

    Raises:
        AssertionError: A backend changes the output.

    Example:
        >>> import xformer
        >>> from xformer.testing import assert_backends_agree
        >>> assert_backends_agree(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
    """
    _assert(model, inputs, tokenizer, ("backends",))


def assert_batch_invariant(model: nn.Module, inputs: Any = None, tokenizer: Any = None) -> None:
    """Assert that an input gives the same output alone and in a batch.

    Args:
        model: Any module that maps token ids to logits.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text.

    Raises:
        AssertionError: Other rows of the batch change an output.

    Example:
        >>> import xformer
        >>> from xformer.testing import assert_batch_invariant
        >>> assert_batch_invariant(xformer.load("checkpoints/induction").model, [3, 7, 12, 9])
    """
    _assert(model, inputs, tokenizer, ("batch",))


def _assert(
    model: nn.Module, inputs: Any, tokenizer: Any, names: tuple[str, ...], *, causal: bool | None = None
) -> None:
    exam = Exam(subject_of(model, inputs, tokenizer, causal=causal))
    found = [examine(exam, CHECKS[name]) for name in names]
    broken = [one for one in found if one.verdict == "broken"]
    if broken:
        raise AssertionError("\n".join(f"{one.check}: {one.whole_sentence} {one.remedy}" for one in broken))
    if not any(one.verdict == "holds" for one in found) or any(one.verdict == "could not run" for one in found):
        unchecked = [one for one in found if one.verdict != "holds"]
        raise AssertionError("\n".join(f"{one.check} was not checked: {one.sentence}" for one in unchecked))
