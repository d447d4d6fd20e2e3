"""The words that a sentence uses are explained, once, and nothing else is."""

from __future__ import annotations

from pages.shared.text import WORDS, escape_markdown, explained, words_in


def test_words_are_found_in_the_plural_in_bold_and_escaped_but_not_inside_others() -> None:
    assert words_in("Two **logits**, one softmax and again a logit.") == ["logit", "softmax"]
    assert words_in(escape_markdown("an anti-diagonal")) == ["anti-diagonal"]
    found = words_in("The unembedding of the residual stream, post-norm")
    assert found == ["unembedding", "residual stream", "post-norm"]
    assert words_in("a keyboard, a header, tv and 3.2 KL; normal") == ["KL"]
    assert words_in("keys and values", except_for={"key"}) == ["value"]
    assert explained("![x](http://evil) <b>nothing</b>") is None
    assert explained("logit ![x](http://evil)") == f"**logit**: {WORDS['logit']}."
