"""`make pages`: generate the terms of the glossary, the gallery page and the playlists of the lessons."""

from __future__ import annotations

import argparse
from pathlib import Path

from pages.controls.text import WORDS
from tools import gallery
from xformer import playlist, read
from xformer.live import lesson

DOCS = Path(__file__).parents[1] / "docs"
PLAYLISTS = Path(playlist.__file__).with_name("playlists")
WORDS_BEGIN = "<!-- what follows is written by `make pages` from pages/controls/glossary.toml -->\n"


def words() -> str:
    """Return the section of the glossary with the terms that the app explains."""
    return WORDS_BEGIN + "\n" + "\n".join(f"**{word}**\n:   {meaning}\n" for word, meaning in sorted_words())


def sorted_words() -> list[tuple[str, str]]:
    """Return the terms in alphabetical order."""
    return sorted(WORDS.items(), key=lambda pair: pair[0].lower())


def glossary(text: str) -> str:
    """Return the text of docs/glossary.md with its terms updated."""
    return text.partition(WORDS_BEGIN)[0] + words()


def playlists() -> dict[str, str]:
    """Return the playlists of the lessons as JSON text, by lesson name."""
    made = {}
    for file in sorted(DOCS.glob("lessons/*.md")):
        found = lesson.load(file)
        model = read(f"checkpoints/{found.checkpoint or found.preset}", found.input, keep=["logits"]).adapter
        made[file.stem] = playlist.from_lesson(found, list(model.shape.heads)).to_text()
    return made


def main() -> None:
    """Write the pages. Images of the gallery are not redrawn."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    (DOCS / "gallery.md").write_text(gallery.page(), encoding="utf-8")
    file = DOCS / "glossary.md"
    file.write_text(glossary(file.read_text(encoding="utf-8")), encoding="utf-8")
    for name, text in playlists().items():
        PLAYLISTS.joinpath(f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
