"""The words that a sentence uses are explained, once, and nothing else is."""

from __future__ import annotations

from pages.shared.text import WORDS, escape_markdown, explained, words_in
from tests.pages.conftest import Open


def test_words_are_found_in_the_plural_in_bold_and_escaped_but_not_inside_others() -> None:
    assert words_in("Two **logits**, one softmax and again a logit.") == ["logit", "softmax"]
    assert words_in(escape_markdown("an anti-diagonal")) == ["anti-diagonal"]
    found = words_in("The unembedding of the residual stream, post-norm")
    assert found == ["unembedding", "residual stream", "post-norm"]
    assert words_in("a keyboard, a header, tv and 3.2 KL; normal") == ["KL"]
    assert words_in("keys and values", except_for={"key"}) == ["value"]
    assert explained("![x](http://evil) <b>nothing</b>") is None
    assert explained("logit ![x](http://evil)") == f"**logit**: {WORDS['logit']}."


def test_what_to_notice_explains_each_word_once(open_page: Open) -> None:
    app = open_page("pages/residual/page.py", model="reverse")
    helps = [element.help for element in app.markdown if element.help]
    shown_text = "\n".join(helps)
    assert "**unembedding**" in shown_text
    assert all(shown_text.count(f"**{word}**:") <= 1 for word in WORDS)
