"""`make pages`: what docs/ says of the code: the list of the API, the words of the glossary, the lines of the gallery."""

from __future__ import annotations

import argparse
from pathlib import Path

import xformer
from benchmarks import gallery
from pages.shared.glossary import WORDS

DOCS = Path(__file__).parents[1] / "docs"
WORDS_BEGIN = "<!-- what follows is written by `make pages` from pages/shared/glossary.py -->\n"
MORE = (
    "xformer.edits",
    "xformer.interventions",
    "xformer.training.run_store",
    "xformer.training.stored_sweep",
    "xformer.errors",
)


def api() -> str:
    """docs/api.md: every public name, where it is defined."""
    parts = [
        "# API\n\n<!-- written by `make pages` from the code -->\n\nWhat `import xformer` gives, and its docstrings."
    ]
    for package, title in ((xformer, "xformer"), (xformer.viz, "Pictures"), (xformer.analysis, "Tables")):
        parts.append(f"## {title}")
        parts += [
            f"::: {home(package, name)}" for name in package.__all__ if hasattr(getattr(package, name), "__doc__")
        ]
    parts += ["## More", *(f"::: {name}" for name in MORE)]
    return "\n\n".join(parts) + "\n"


def home(package: object, name: str) -> str:
    """The full name of a public one, where it is defined; modules are listed below, or by their own names."""
    value = getattr(package, name)
    return f"{value.__module__}.{value.__name__}" if hasattr(value, "__module__") else value.__name__


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
    """Write them; the images of the gallery stay as they are."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    (DOCS / "api.md").write_text(api(), encoding="utf-8")
    (DOCS / "gallery.md").write_text(gallery.page(), encoding="utf-8")
    file = DOCS / "glossary.md"
    file.write_text(glossary(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
