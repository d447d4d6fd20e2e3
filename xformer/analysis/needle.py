"""A needle in a haystack: a long text with one sentence that matters, and the heads that look at it when asked for it.

    text = xformer.analysis.needle_text(14, 28)
    summary = xformer.attention_summary("models/SmolLM2-135M-Instruct", text)
    xformer.analysis.attention_to(summary, keys=xformer.analysis.needle_keys(summary, text))      a row per head

The test of Kamradt (2023, https://github.com/gkamradt/LLMTest_NeedleInAHaystack), measured in the attention of each head.
"""

from __future__ import annotations

from xformer.analysis.long_inputs import attention_to
from xformer.formatting import check_index, percent
from xformer.layer_path import head_title
from xformer.long_inputs import AttentionSummary

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
QUESTION, ANSWER = "The secret number of Rome is", " 7481"
FOUND = 0.1
"""A head finds the needle if it has at least this share of the last token's attention on it."""


def needle_text(before: int, after: int) -> str:
    """Write a text with one sentence that matters, the needle, and its first half again at the end, which asks for the rest.

    Args:
        before: The number of parts of filler before the needle, of five sentences each.
        after: The number of parts of filler after it.

    Returns:
        The text.

    Example:
        >>> import xformer
        >>> xformer.analysis.needle_text(14, 28).endswith("The secret number of Rome is")
        True
    """
    check_index("before", before)
    check_index("after", after)
    return f"{FILLER * before}{QUESTION}{ANSWER}. {FILLER * after}{QUESTION}"


def needle_keys(summary: AttentionSummary, text: str) -> list[int]:
    """Find the tokens of the answer in a text with a needle.

    Args:
        summary: The sums of the run on the text.
        text: The text, as from `needle_text`.

    Returns:
        The positions of the answer's tokens; none unless the text has the needle once and asks for it at its end.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> xformer.analysis.needle_keys(summary, "3 7 12 9")
        []
    """
    if not text.endswith(QUESTION) or text.count(QUESTION + ANSWER) != 1:
        return []
    until = text.index(QUESTION + ANSWER) + len(QUESTION)
    before, after = (
        len(summary.adapter.to_example(part).input_ids[0]) for part in (text[:until], text[: until + len(ANSWER)])
    )
    return list(range(before, after))


def needle_finding(summary: AttentionSummary, text: str) -> str:
    """Tell which heads find the needle.

    Args:
        summary: The sums of the run on the text.
        text: The text, as from `needle_text`.

    Returns:
        A sentence on the head with the most of the last token's attention on the answer; empty without a needle, or if no head
        has at least `FOUND` of it there.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> xformer.analysis.needle_finding(summary, "3 7 12 9")
        ''
    """
    keys = needle_keys(summary, text)
    found = attention_to(summary, keys=keys).to_dict("records") if keys else []
    finding = [one for one in found if one["weight"] >= FOUND]
    if not finding:
        return ""
    best, n_others = finding[0], len(finding) - 1
    name = head_title(best["layer"], best["head"], is_encoder_decoder=False)
    others = f" {n_others} other heads have at least {percent(FOUND, 0)} there." if n_others > 1 else ""
    return (
        f"{name} finds the needle: {percent(best['weight'], 0)} of the last token’s attention is on its number. "
        f"Spread evenly, it would be {percent(best['uniform'], 1)}.{others}"
    )
