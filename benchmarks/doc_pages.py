"""`make pages`: the pages of docs/ that are made from the code: the API, the words of the glossary, the gallery."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import api_page, gallery
from pages.shared.text import WORDS

DOCS = Path(__file__).parents[1] / "docs"
WORDS_BEGIN = "<!-- what follows is written by `make pages` from pages/shared/text.py -->\n"


def words() -> str:
    """The words of the field as the app explains them."""
    return WORDS_BEGIN + "\n" + "\n".join(f"**{word}**\n:   {meaning}\n" for word, meaning in sorted_words())


def sorted_words() -> list[tuple[str, str]]:
    """The words by the alphabet."""
    return sorted(WORDS.items(), key=lambda pair: pair[0].lower())


def glossary(text: str) -> str:
    """docs/glossary.md with its words as they are now."""
    return text.partition(WORDS_BEGIN)[0] + words()


def main() -> None:
    """Write the pages. The images of the gallery stay as they are."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    (DOCS / "api.md").write_text(api_page.page(), encoding="utf-8")
    (DOCS / "gallery.md").write_text(gallery.page(), encoding="utf-8")
    file = DOCS / "glossary.md"
    file.write_text(glossary(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
