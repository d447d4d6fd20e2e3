"""Technical terms in a sentence are found and explained once each."""

from __future__ import annotations

from pages.controls.text import WORDS, escape_markdown, explained, words_in


def test_terms_are_found_in_plural_bold_and_escaped_text_but_not_inside_other_words() -> None:
    assert words_in("Two **logits**, one softmax and again a logit.") == ["logit", "softmax"]
    assert words_in(escape_markdown("an anti-diagonal")) == ["anti-diagonal"]
    found = words_in("The unembedding of the residual stream, post-norm")
    assert found == ["unembedding", "residual stream", "post-norm"]
    assert words_in("a keyboard, a header, tv and 3.2 KL; normal") == ["KL"]
    assert words_in("keys and values", except_for={"key"}) == ["value"]
    assert explained("![x](http://evil) <b>nothing</b>") is None
    assert explained("logit ![x](http://evil)") == f"**logit**: {WORDS['logit']}."
